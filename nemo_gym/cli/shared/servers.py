"""Run the servers of a configuration while a command runs."""

import argparse
import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from omegaconf import DictConfig, open_dict

from nemo_gym import component_search_roots
from nemo_gym.cli.shared import options
from nemo_gym.cli.shared.concurrency import cancel_on
from nemo_gym.cli.terminal import output
from nemo_gym.cli.terminal.log import ServerLogPrinter
from nemo_gym.config.instances import server_instances
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.errors import ConfigError
from nemo_gym.global_config import GlobalConfigDictParser
from nemo_gym.launch.cell import ServerImportError
from nemo_gym.launch.engines.base import Placement, ServerRun, choose_engine
from nemo_gym.launch.ports import with_open_head_port
from nemo_gym.launch.server_block_check import check_server_blocks
from nemo_gym.launch.supervisor import ServerDidNotStart
from nemo_gym.serve.run_registry import registering
from nemo_gym.server_utils import ServerClient
from nemo_gym.transport.http_sessions import (
    CONCURRENCY_KEY,
    OTHER_OPEN_FILES,
    open_files_limit,
    raise_open_files_limit,
)

STATUS_SECONDS = 0.5
"""Time between two updates of the line that shows the start."""


def load_servers_config(args: argparse.Namespace) -> DictConfig:
    """Resolve and check the configuration of a run; unset ports are chosen when the servers start.

    Raises:
        ServerDidNotStart: the module of a server cannot be imported.
    """
    resolved = options.resolve_config(args)
    try:
        warnings = check_server_blocks(resolved, component_search_roots())
    except ServerImportError as error:
        raise ServerDidNotStart(error.problem, where=error.where, fix=error.fix) from error
    for warning in warnings:
        output.warn(warning)
    GlobalConfigDictParser().raise_on_no_server_instances(resolved.config)
    return with_open_head_port(resolved)


def allow_concurrency(config: DictConfig, concurrency: int | None, *, cells: int = 1) -> None:
    """Let this process and the servers of `config` open a connection for each of `concurrency` calls in flight.

    Warns if the system allows a process too few open files for its part of them.
    """
    if concurrency is None:
        return
    with open_dict(config):
        config[CONCURRENCY_KEY] = concurrency
    raise_open_files_limit()
    needed, allowed = math.ceil(concurrency / cells) + OTHER_OPEN_FILES, open_files_limit()
    if needed > allowed:
        output.warn(
            f"{concurrency:,} rollouts at once need {needed:,} open files in a process, but the system allows "
            f"{allowed:,}; further calls wait for a connection. Raise the limit: ulimit -n {needed}"
        )


@asynccontextmanager
async def start_status(count: int) -> AsyncIterator[None]:
    """Show on a terminal, while the block runs, that servers start, and for how long."""

    async def refresh() -> None:
        begin = time.monotonic()
        while True:
            seconds = time.monotonic() - begin
            output.show_status(f"starting {count} servers" + (f" · {seconds:.0f} s" if seconds >= 1 else ""))
            await asyncio.sleep(STATUS_SECONDS)

    task = asyncio.create_task(refresh())
    try:
        yield
    finally:
        task.cancel()
        output.show_status("")


@asynccontextmanager
async def running_servers(
    config: DictConfig, stop: asyncio.Event, *, cells: int, verbose: bool, is_public: bool = False
) -> AsyncIterator[ServerRun]:
    """Run the servers of `config` while the block runs; with `verbose`, print all of their output.

    The engine of the configuration places them. `is_public`: clients on other machines than theirs call them.

    Raises:
        ServerDidNotStart: the servers cannot be started as configured, or a model endpoint does not answer.
        CommandInterrupted: `stop` was set before all servers were ready.
    """
    printer = ServerLogPrinter(verbose=verbose)
    placement = Placement(config, component_search_roots(), cells, printer, is_public, output.notify)
    run = choose_engine(config).create_run(placement)
    try:
        try:
            async with start_status(len(server_instances(config))):
                await cancel_on(stop, run.__aenter__())
                await cancel_on(stop, run.wait_for_endpoints(output.notify))
        except ConfigError as error:
            raise ServerDidNotStart(error.problem, where=error.where, fix=error.fix) from error
        with registering(run.config):
            yield run
    finally:
        await run.stop()


def client_for(config: DictConfig) -> ServerClient:
    """Return a client for the servers that this process runs."""
    head = BaseServerConfig.model_validate(dict(config["head_server"]))
    return ServerClient(head_server_config=head, global_config_dict=config)
