"""The servers of an evaluation, ours or running already, and collecting from them until the end or an interrupt."""

import argparse
import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from traceback import format_exception
from typing import Any, TypeVar

from omegaconf import DictConfig

from nemo_gym.cli import output
from nemo_gym.cli.apart import apart
from nemo_gym.cli.live import Waiting, nobody_knows
from nemo_gym.cli.progress import Progress
from nemo_gym.cli.serving import Interrupted, servers, servers_config
from nemo_gym.config.defaults import OFFLINE_PORT
from nemo_gym.config.resolve import Request, resolve
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.errors import ConfigError, GymError, RolloutFailed
from nemo_gym.global_config import surroundings
from nemo_gym.launch.ports import with_open_head_port
from nemo_gym.launch.registry import choose_run
from nemo_gym.net import local
from nemo_gym.net.client import send
from nemo_gym.net.retry import RetryPolicy
from nemo_gym.net.status import is_ok
from nemo_gym.rollout_collection import RolloutCollectionHelper
from nemo_gym.rollouts.flight import Flight
from nemo_gym.rollouts.jsonl import read_rows
from nemo_gym.rollouts.planned import Planned
from nemo_gym.rollouts.store import RolloutStore
from nemo_gym.serve.addresses import base_url
from nemo_gym.serve.head import WAITING_PATH, Place
from nemo_gym.server_utils import ServerClient, get_response_json, setup_server_client

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

        def reading(rows: int, share: float) -> None:
            progress.on_reading(rows, share)
            if progress.flights.landing:  # what it raises ends the reading, before anything is changed
                raise Interrupted("interrupted before the first rollout; nothing was changed")

        super().__init__(observers=[progress], flights=progress.flights, on_plan=planned, on_reading=reading)
        self._session = session
        self._progress = progress

    def setup_server_client(self, head_server_config: BaseServerConfig | None = None) -> ServerClient:
        return self._session.client if head_server_config is None else super().setup_server_client(head_server_config)

    def read_back(self, written: "Written") -> None:
        """Learn from the files that changed how a collection went that somebody else did."""
        scored, failed, rows = (read_rows(path) if is_new else iter(()) for path, is_new in written.files())
        self._progress.read_back(scored, failed, sum(1 for _ in rows))


class Written:
    """Tells what was written into an output since this was made: results, failures, rows."""

    def __init__(self, target: str | Path) -> None:
        self.target = target
        store = RolloutStore(target)
        self._before = {path: _seen(path) for path in (store.output, store.failures, store.materialized)}

    def __bool__(self) -> bool:
        return any(is_new for _, is_new in self.files())

    def files(self) -> list[tuple[Path, bool]]:
        """The three files, and whether each is another than it was."""
        return [(path, _seen(path) not in (None, before)) for path, before in self._before.items()]


def _seen(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


class DriverFailed(RolloutFailed):
    """The program that collects in our place did not."""


async def driven(driver: Callable[[], Awaitable[Any]], name: str, written: Written) -> None:
    """Have somebody else collect.

    Raises:
        DriverFailed: it raised something, or wrote nothing.
    """
    try:
        await apart(driver)
    except GymError:
        raise
    except Exception as error:  # a boundary: somebody else's program
        output.talk("".join(format_exception(error)).rstrip())
        raise DriverFailed(f"{type(error).__name__}: {error}", where=f"rollout_collection_driver {name}") from error
    if not written:
        raise DriverFailed(
            "it returned and wrote nothing there, so there is nothing to report",
            where=f"{written.target} (rollout_collection_driver {name})",
            fix="write each rollout as a line of config.output_jsonl_fpath, or use RolloutCollectionHelper",
        )


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


def by_key(flights: Sequence[Flight], told: Mapping[Place, str]) -> dict[str, str]:
    """What is known of these rollouts' waiting, by the text of their keys."""
    return {str(flight.key): told[flight.key.place] for flight in flights if flight.key.place in told}


def connected(head: BaseServerConfig) -> Session:
    """The servers that a running head knows.

    Raises:
        HeadServerUnreachable: nobody answers there.
    """
    client = setup_server_client(head)

    async def waiting(flights: Sequence[Flight]) -> dict[str, str]:
        url, places = f"{base_url(head.host, head.port)}{WAITING_PATH}", [flight.key.place for flight in flights]
        reply = await send("POST", url, policy=RetryPolicy(attempts=1), where="head server", json=places)
        if not is_ok(reply):  # a head of another version
            return {}
        told = {(one["task"], one["rollout"]): one["call"] for one in await get_response_json(reply)}
        return by_key(flights, told)

    return Session(client.global_config_dict, client, waiting=waiting)


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
            return by_key(flights, await run.waiting_for([flight.key.place for flight in flights]))

        yield Session(run.config, client, run.lost, waiting, by_http)


async def until_stopped(
    work: Coroutine[Any, Any, T], stop: asyncio.Event, land: Callable[[], float]
) -> tuple[bool, T | None]:
    """Do the work; whether it was interrupted, and what it gave. What it raises, this raises.

    When `stop` is set, `land` says how many seconds what is in flight has to finish before it is cancelled.
    """
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        interrupted = not working.done()
        if interrupted:
            await asyncio.wait({working}, timeout=land())
    finally:
        stopping.cancel()
        working.cancel()  # nothing, if it is done
        await asyncio.wait({working, stopping})
    return interrupted, None if working.cancelled() else working.result()
