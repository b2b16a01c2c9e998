"""The servers of an evaluation, ours or running already, and collecting from them until the end or an interrupt."""

import argparse
import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from omegaconf import DictConfig

from nemo_gym.cli import output
from nemo_gym.cli.live import Waiting, nobody_knows
from nemo_gym.cli.progress import Progress
from nemo_gym.cli.serving import servers, servers_config
from nemo_gym.config.defaults import OFFLINE_PORT
from nemo_gym.config.resolve import Request, resolve
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.errors import ConfigError, GymError
from nemo_gym.global_config import surroundings
from nemo_gym.launch.ports import with_open_head_port
from nemo_gym.launch.registry import choose_run
from nemo_gym.net import local
from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper
from nemo_gym.rollouts.flight import Flight
from nemo_gym.rollouts.jsonl import read_rows
from nemo_gym.rollouts.planned import Planned
from nemo_gym.rollouts.store import RolloutStore
from nemo_gym.server_utils import ServerClient, setup_server_client

T = TypeVar("T")


class DidNotStart(GymError):
    """The servers an evaluation needs are not there."""

    exit_status = 3


@dataclass(frozen=True)
class Session:
    """Servers that are up."""

    config: DictConfig
    """As the servers have it, ports included."""
    client: ServerClient
    lost: Callable[[], list[str]] = list
    """The server processes that ended for good."""
    waiting: Waiting = nobody_knows
    """Tells what rollouts wait for."""
    by_http: Callable[[], None] = lambda: None
    """From now on servers are called over HTTP: the short way belongs to our event loop."""


class Collector(RolloutCollectionHelper):
    """Collects from the servers of a session and tells its progress."""

    def __init__(
        self, session: Session, progress: Progress, on_plan: Callable[[Planned], None] = lambda _: None
    ) -> None:
        def planned(plan: Planned) -> None:
            progress.on_plan(plan)
            on_plan(plan)

        super().__init__(observers=[progress], flights=progress.flights, on_plan=planned)
        self._session = session
        self._progress = progress

    def setup_server_client(self, head_server_config: BaseServerConfig | None = None) -> ServerClient:
        return self._session.client if head_server_config is None else super().setup_server_client(head_server_config)

    def read_back(self, config: RolloutCollectionConfig) -> None:
        """Learn from the files how a collection went that somebody else did."""
        store = RolloutStore(config.output_jsonl_fpath)
        scored, failed, rows = (read_rows(path) for path in (store.output, store.failures, store.materialized))
        self._progress.read_back(scored, failed, sum(1 for _ in rows))


def own_config(args: argparse.Namespace, overrides: list[str]) -> DictConfig:
    """The configuration of this command; with --no-serve it needs no servers in it.

    A head that nobody named has an open port.
    """
    if not args.no_serve:
        return servers_config(overrides)
    resolved = resolve(Request(overrides=overrides, offline=True), surroundings())
    for warning in resolved.warnings:
        output.talk(f"Warning: {warning}")
    return with_open_head_port(resolved)


def head_of(args: argparse.Namespace, config: DictConfig) -> BaseServerConfig:
    """The head of the servers that are running: the one named, or the one registered on this machine.

    Raises:
        NoRunFound: there is none.
        RunNotChosen: there are several.
    """
    named = config["head_server"]
    if args.run is None and named["port"] != OFFLINE_PORT:
        return BaseServerConfig(host=named["host"], port=named["port"])
    entry = choose_run(args.run)
    return BaseServerConfig(host=entry.host, port=entry.port)


def connected(head: BaseServerConfig) -> Session:
    """The servers that a running head knows.

    Raises:
        HeadServerUnreachable: nobody answers there.
    """
    client = setup_server_client(head)
    return Session(client.global_config_dict, client)


@asynccontextmanager
async def started(args: argparse.Namespace, config: DictConfig, stop: asyncio.Event) -> AsyncIterator[Session]:
    """The servers of `config`, up as long as the block runs.

    Raises:
        DidNotStart: they cannot be started as configured, or a model does not answer.
        Interrupted: `stop` was set before they were up.
    """
    async with AsyncExitStack() as up:
        try:
            cells = os.cpu_count() or 1
            run = await up.enter_async_context(servers(config, stop, cells=cells, echo=bool(args.verbose)))
        except ConfigError as error:
            raise DidNotStart(error.problem, where=error.where, fix=error.fix) from error
        head = BaseServerConfig.model_validate(dict(run.config["head_server"]))
        client = ServerClient(head_server_config=head, global_config_dict=run.config)

        def by_http() -> None:
            for instance in run.instances:
                local.unmount(instance.host, instance.port)

        async def waiting(flights: Sequence[Flight]) -> dict[str, str]:
            texts = await run.waiting_for([flight.key.place for flight in flights])
            return {str(flight.key): texts[flight.key.place] for flight in flights if flight.key.place in texts}

        yield Session(run.config, client, run.lost, waiting, by_http)


async def until_stopped(
    work: Coroutine[Any, Any, T], stop: asyncio.Event, land: Callable[[], None], grace: float
) -> tuple[bool, T | None]:
    """Do the work; whether it was interrupted, and what it gave. What it raises, this raises.

    When `stop` is set, `land` is called, and what is in flight has `grace` seconds to finish before it is cancelled.
    """
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        interrupted = not working.done()
        if interrupted:
            land()
            await asyncio.wait({working}, timeout=grace)
    finally:
        stopping.cancel()
        working.cancel()  # nothing, if it is done
        await asyncio.wait({working, stopping})
    return interrupted, None if working.cancelled() else working.result()
