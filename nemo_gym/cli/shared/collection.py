"""The servers of an evaluation, started by the command or running already, and the collector that calls them."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from traceback import format_exception
from typing import Any

from omegaconf import DictConfig

from nemo_gym.cli.shared import options
from nemo_gym.cli.shared.concurrency import CommandInterrupted, run_in_own_loop
from nemo_gym.cli.shared.scoring import client_for
from nemo_gym.cli.shared.servers import load_servers_config, running_servers
from nemo_gym.cli.terminal import output
from nemo_gym.cli.terminal.live import WaitQuery, no_wait_query
from nemo_gym.cli.terminal.progress import Progress
from nemo_gym.config.defaults import OFFLINE_PORT
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.errors import ConfigError, GymError, RolloutFailed
from nemo_gym.journal import read_rows
from nemo_gym.launch.ports import with_open_head_port
from nemo_gym.launch.run_registry import choose_run
from nemo_gym.rollout_collection import RolloutCollectionHelper
from nemo_gym.rollouts.collect import RolloutInFlight
from nemo_gym.rollouts.plan import PlanSummary
from nemo_gym.rollouts.store import RolloutStore
from nemo_gym.serve.addresses import base_url
from nemo_gym.serve.head import WAITING_PATH
from nemo_gym.server_utils import ServerClient, get_response_json, setup_server_client
from nemo_gym.transport import in_process
from nemo_gym.transport.client_response import is_ok
from nemo_gym.transport.http import send
from nemo_gym.transport.retries import RetryPolicy
from nemo_gym.wire.stored_rollout import RolloutId


class DidNotStart(GymError):
    """The servers of an evaluation did not start."""

    exit_status = 3


class DriverFailed(RolloutFailed):
    """The rollout collection driver, a function named in the configuration, raised an error or wrote nothing."""


@dataclass(frozen=True)
class Session:
    """The running servers of an evaluation and the client that calls them."""

    config: DictConfig
    """The configuration of the servers, with their ports."""
    client: ServerClient
    lost_servers: Callable[[], list[str]] = list
    """Returns the names of the server processes that ended and will not be restarted."""
    wait_query: WaitQuery = no_wait_query
    use_http: Callable[[], None] = lambda: None
    """Makes every later call use HTTP: cell links work on the event loop of this command only."""


class Collector(RolloutCollectionHelper):
    """A collector that calls the servers of a session and reports to a Progress."""

    def __init__(
        self, session: Session, progress: Progress, on_plan: Callable[[PlanSummary], None] = lambda _: None
    ) -> None:
        def report_plan(plan: PlanSummary) -> None:
            progress.on_plan(plan)
            on_plan(plan)

        def report_reading(rows: int, fraction: float) -> None:
            progress.on_reading(rows, fraction)
            if not progress.in_flight.is_admitting:  # no file has been changed while rows are read
                raise CommandInterrupted("interrupted before the first rollout; nothing was changed")

        super().__init__(
            observers=[progress], in_flight=progress.in_flight, on_plan=report_plan, on_reading=report_reading
        )
        self._session = session
        self._progress = progress

    def setup_server_client(self, head_server_config: BaseServerConfig | None = None) -> ServerClient:
        return self._session.client if head_server_config is None else super().setup_server_client(head_server_config)

    def count_changes(self, changes: "OutputChanges") -> None:
        """Count the outcomes in the files that a driver wrote."""
        scored, failed, rows = (read_rows(path) if changed else iter(()) for path, changed in changes.files())
        self._progress.count_records(scored, failed, sum(1 for _ in rows))


class OutputChanges:
    """The output files (results, failures, rows) that changed since this object was created."""

    def __init__(self, target: str | Path) -> None:
        self.target = target
        store = RolloutStore(target)
        paths = (store.output, store.failures, store.materialized)
        self._initial_fingerprints = {path: _fingerprint(path) for path in paths}

    def __bool__(self) -> bool:
        return any(changed for _, changed in self.files())

    def files(self) -> list[tuple[Path, bool]]:
        """Return the three files, each with True if it exists and changed."""
        return [
            (path, _fingerprint(path) not in (None, initial)) for path, initial in self._initial_fingerprints.items()
        ]


def _fingerprint(path: Path) -> tuple[int, int, int] | None:
    """Return the inode, size and modification time of a file; None if it is missing."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


async def run_driver(driver: Callable[[], Awaitable[Any]], name: str, changes: OutputChanges) -> None:
    """Run a rollout collection driver.

    Raises:
        DriverFailed: the driver raised an error or wrote nothing.
    """
    try:
        await run_in_own_loop(driver)
    except GymError:
        raise
    except Exception as error:  # the driver is foreign code and may raise anything
        output.notify("".join(format_exception(error)).rstrip())
        raise DriverFailed(f"{type(error).__name__}: {error}", where=f"rollout_collection_driver {name}") from error
    if not changes:
        raise DriverFailed(
            "the driver returned without writing rollouts",
            where=f"{changes.target} (rollout_collection_driver {name})",
            fix="write each rollout as a line of config.output_jsonl_fpath, or use RolloutCollectionHelper",
        )


def load_config(overrides: list[str], *, serve: bool) -> DictConfig:
    """Resolve the configuration of an evaluation; with `serve` it must define servers."""
    return load_servers_config(overrides) if serve else with_open_head_port(options.resolve_config(overrides))


def find_head(run: str | None, config: DictConfig) -> BaseServerConfig:
    """Return the head server of a running run: that of the configuration, or of a run registered on this machine.

    Raises:
        NoRunFound: no run is registered.
        RunNotChosen: several runs are registered.
    """
    head = config["head_server"]
    if run is None and head["port"] != OFFLINE_PORT:
        return BaseServerConfig(host=head["host"], port=head["port"])
    entry = choose_run(run)
    return BaseServerConfig(host=entry.host, port=entry.port)


def _calls_by_key(rollouts: Sequence[RolloutInFlight], calls: Mapping[RolloutId, str]) -> dict[str, str]:
    """Return the awaited call of each rollout by the text of the rollout's key."""
    return {str(rollout.key): calls[rollout.key.rollout_id] for rollout in rollouts if rollout.key.rollout_id in calls}


def connect(head: BaseServerConfig) -> Session:
    """Connect to the servers of a running head server.

    Raises:
        HeadServerUnreachable: the head server does not answer.
    """
    client = setup_server_client(head)

    async def query_head(rollouts: Sequence[RolloutInFlight]) -> dict[str, str]:
        url, keys = f"{base_url(head.host, head.port)}{WAITING_PATH}", [rollout.key.rollout_id for rollout in rollouts]
        reply = await send("POST", url, policy=RetryPolicy(attempts=1), callee="head server", json=keys)
        if not is_ok(reply):  # a head server of another version
            return {}
        calls = {(call["task"], call["rollout"]): call["call"] for call in await get_response_json(reply)}
        return _calls_by_key(rollouts, calls)

    return Session(client.global_config_dict, client, wait_query=query_head)


@asynccontextmanager
async def started_servers(config: DictConfig, stop: asyncio.Event, *, verbose: bool) -> AsyncIterator[Session]:
    """Run the servers of `config` while the block runs.

    Raises:
        DidNotStart: the servers cannot be started as configured, or a model endpoint does not answer.
        CommandInterrupted: `stop` was set before all servers were ready.
    """
    async with AsyncExitStack() as stack:
        try:
            cells = os.cpu_count() or 1
            run = await stack.enter_async_context(running_servers(config, stop, cells=cells, verbose=verbose))
        except ConfigError as error:
            raise DidNotStart(error.problem, where=error.where, fix=error.fix) from error

        def use_http() -> None:
            for instance in run.instances:
                in_process.unmount(instance.host, instance.port)

        async def query_run(rollouts: Sequence[RolloutInFlight]) -> dict[str, str]:
            return _calls_by_key(rollouts, await run.pending_calls([rollout.key.rollout_id for rollout in rollouts]))

        yield Session(run.config, client_for(run.config), run.lost_processes, query_run, use_http)
