"""The servers of an evaluation, the collector that calls them, and drivers that replace the collector."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from traceback import format_exception
from typing import Any, TypeVar

from omegaconf import DictConfig

from nemo_gym.cli.shared.concurrency import CommandInterrupted, run_in_own_loop
from nemo_gym.cli.terminal import output
from nemo_gym.cli.terminal.live import WaitQuery
from nemo_gym.cli.terminal.progress import Progress
from nemo_gym.config.defaults import OFFLINE_PORT
from nemo_gym.config.instances import server_instances
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.errors import GymError, RolloutFailed
from nemo_gym.journal import read_rows
from nemo_gym.launch.engines.base import ServerRun
from nemo_gym.rollout_collection import RolloutCollectionHelper
from nemo_gym.rollouts.dispatch import NodeStatistics
from nemo_gym.rollouts.plan import PlanSummary
from nemo_gym.rollouts.store import RolloutStore
from nemo_gym.serve.addresses import base_url
from nemo_gym.serve.head import WAITING_PATH, HeadServerUnreachable
from nemo_gym.serve.run_registry import choose_run, live_runs
from nemo_gym.server_utils import ServerClient, get_response_json, setup_server_client
from nemo_gym.transport.client_response import is_ok
from nemo_gym.transport.http import send
from nemo_gym.transport.retries import RetryPolicy
from nemo_gym.wire.stored_rollout import RolloutId

PROBE_SECONDS = 2.0
"""Interval between two probes of the servers of another command, and their timeout."""

T = TypeVar("T")


class DriverFailed(RolloutFailed):
    """The rollout collection driver, a function named in the configuration, raised an error or wrote nothing."""


@dataclass(frozen=True)
class Session:
    """The running servers of an evaluation and the client that calls them."""

    config: DictConfig
    """The configuration of the servers, with their ports."""
    client: ServerClient
    wait_query: WaitQuery | None = None
    run: ServerRun | None = None
    """The servers, if this command started them."""
    head: BaseServerConfig | None = None
    """The head server, if another command started the servers."""


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
            observers=[progress],
            in_flight=progress.in_flight,
            on_plan=report_plan,
            on_reading=report_reading,
            monitor=session.run,
            pool=session.run.pool if session.run else None,
        )
        self._session = session
        if self.pool is not None:
            progress.nodes = self._node_statistics

    def _node_statistics(self) -> Sequence[NodeStatistics]:
        return self.dispatcher.current_statistics() if self.dispatcher is not None else ()

    def setup_server_client(self, head_server_config: BaseServerConfig | None = None) -> ServerClient:
        return self._session.client if head_server_config is None else super().setup_server_client(head_server_config)


async def run_driver(driver: Callable[[], Awaitable[Any]], name: str, target: str | Path, progress: Progress) -> None:
    """Run a rollout collection driver, and count the outcomes in the output files that it changed.

    Raises:
        DriverFailed: the driver raised an error or wrote nothing.
    """
    store = RolloutStore(target)
    initial_states = {path: _file_state(path) for path in (store.output, store.failures, store.materialized)}
    where = f"rollout_collection_driver {name}"
    try:
        await run_in_own_loop(driver)
    except GymError:
        raise
    except Exception as error:  # the driver is foreign code and may raise anything
        output.notify("".join(format_exception(error)).rstrip())
        raise DriverFailed(f"{type(error).__name__}: {error}", where=where) from error
    finally:
        changed_paths = [path for path, state in initial_states.items() if _file_state(path) not in (None, state)]
        if changed_paths:
            scored, failed, rows = (read_rows(path) if path in changed_paths else iter(()) for path in initial_states)
            progress.count_records(scored, failed, sum(1 for _ in rows))
    if not changed_paths:
        raise DriverFailed(
            "the driver returned without writing rollouts",
            where=f"{target} ({where})",
            fix="write each rollout as a line of config.output_jsonl_fpath, or use RolloutCollectionHelper",
        )


def _file_state(path: Path) -> tuple[int, int, int] | None:
    """Return the inode, size and modification time of a file; None if it is missing."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def find_head(run: str | None, config: DictConfig) -> BaseServerConfig:
    """Return the head server of the run that `run` names (--run), of the configuration, or of the only registered run.

    Raises:
        NoRunFound: no run is registered.
        RunNotChosen: `run` matches no run, or is missing and several runs are registered.
    """
    head = config["head_server"]
    if run is None and head["port"] != OFFLINE_PORT:  # the configuration names a port
        live_runs()  # called because it adopts the run tokens of the runs on this machine
        return BaseServerConfig(host=head["host"], port=head["port"])
    entry = choose_run(run)
    return BaseServerConfig(host=entry.host, port=entry.port)


def connect(head: BaseServerConfig) -> Session:
    """Connect to the servers of a running head server.

    Raises:
        HeadServerUnreachable: the head server does not answer.
    """
    client = setup_server_client(head)
    url = f"{base_url(head.host, head.port)}{WAITING_PATH}"

    async def query_head(rollouts: Sequence[RolloutId]) -> Mapping[RolloutId, str]:
        reply = await send("POST", url, policy=RetryPolicy(attempts=1), callee="head server", json=list(rollouts))
        if not is_ok(reply):  # a head server of another version
            return {}
        return {(call["task"], call["rollout"]): call["call"] for call in await get_response_json(reply)}

    return Session(client.global_config_dict, client, wait_query=query_head, head=head)


async def end_with_servers(session: Session, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`; cancel it if the servers of another command end.

    Raises:
        HeadServerUnreachable: neither the head server nor any other server accepts connections.
    """
    work_task, servers_end = asyncio.create_task(work), asyncio.create_task(_wait_for_end(session))
    try:
        await asyncio.wait({work_task, servers_end}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        work_task.cancel()  # no effect on a finished task
        servers_end.cancel()
        await asyncio.wait({work_task, servers_end})
    if not work_task.cancelled():
        return work_task.result()
    head = session.head
    raise HeadServerUnreachable(
        "the servers have ended", where=f"head server at {head.host}:{head.port}" if head else None,
        fix="start the servers again and continue with --resume",
    )  # fmt: skip


async def _wait_for_end(session: Session) -> None:
    """Return when all servers of another command have refused connections twice; if this one runs them, never."""
    if session.head is None:
        await asyncio.Event().wait()
        return
    head = (session.head.host, session.head.port)
    blocks = [instance.fields for instance in server_instances(session.config).values()]
    servers = [(block["host"], block["port"]) for block in blocks if block.get("host") and (block.get("port") or 0) > 0]
    failures = 0
    while failures < 2:
        await asyncio.sleep(PROBE_SECONDS)
        is_alive = await _accepts(head) or any(await asyncio.gather(*map(_accepts, servers)))
        failures = 0 if is_alive else failures + 1


async def _accepts(address: tuple[str, int]) -> bool:
    """Return True if a server accepts a connection."""
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            _, writer = await asyncio.open_connection(*address)
    except OSError:  # includes timeouts
        return False
    writer.close()
    return True
