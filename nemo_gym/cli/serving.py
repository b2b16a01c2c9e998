"""Starting the servers of a configuration from a command, and stopping them however it ends."""

import asyncio
import signal
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf

from nemo_gym import component_search_roots
from nemo_gym.cli import output
from nemo_gym.config.resolve import Request, resolve
from nemo_gym.errors import GymError
from nemo_gym.global_config import GlobalConfigDictParser, surroundings
from nemo_gym.launch.check import check_server_blocks
from nemo_gym.launch.endpoints import wait_for_endpoints
from nemo_gym.launch.ports import with_open_head_port
from nemo_gym.launch.registry import registered
from nemo_gym.launch.run import CELLS_KEY, Run

T = TypeVar("T")


def servers_config(overrides: Sequence[str]) -> DictConfig:
    """The checked configuration of a run; ports that nobody chose are still open."""
    resolved = resolve(Request(overrides=list(overrides), offline=True), surroundings())
    for warning in [*resolved.warnings, *check_server_blocks(resolved, component_search_roots())]:
        output.talk(f"Warning: {warning}")
    GlobalConfigDictParser().raise_on_no_server_instances(resolved.config)
    return with_open_head_port(resolved)


@asynccontextmanager
async def servers(config: DictConfig, stop: asyncio.Event, *, cells: int, echo: bool) -> AsyncIterator[Run]:
    """The servers of `config`, up for as long as the block runs. `echo` shows what they print.

    Raises:
        Interrupted: `stop` was set before they were up.
    """
    folder = config.get("nemo_gym_log_dir")
    run = Run(
        config,
        component_search_roots(),
        cells=int(config.get(CELLS_KEY) or cells),
        log_dir=Path(folder) if folder else None,
        watch=Echo(everything=echo),
    )
    await unless(stop, run.__aenter__())
    try:
        plain = OmegaConf.to_container(run.config, resolve=True)
        assert isinstance(plain, dict)
        await unless(stop, wait_for_endpoints({str(key): value for key, value in plain.items()}, output.talk))
        with registered(run.config):
            yield run
    finally:
        await run.stop()


class Interrupted(GymError):
    """Somebody asked us to stop before there was anything to keep."""

    exit_status = 130


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives, unless `stop` is set first: then it is cancelled, and has cleaned up when this raises."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not working.done():
        working.cancel()
        await asyncio.wait({working})
        raise Interrupted("interrupted before the servers were up")
    return working.result()


class Echo:
    """Shows what servers print: everything, or only what they warn of, and of that no more than can be read."""

    MOST_WARNINGS = 20

    def __init__(self, everything: bool) -> None:
        self._everything = everything
        self._shown = 0

    def __call__(self, name: str, line: str) -> None:
        if self._everything:
            output.talk(f"({name}) {line}")
        elif line.startswith(("WARNING", "ERROR", "CRITICAL")) and self._shown <= self.MOST_WARNINGS:
            self._shown += 1
            more = self._shown > self.MOST_WARNINGS
            output.talk("further warnings are not shown; --verbose shows all" if more else f"({name}) {line}")


@asynccontextmanager
async def interruptible() -> AsyncIterator[asyncio.Event]:
    """An event that Ctrl-C or SIGTERM sets; a second one ends the process at once."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def heard() -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        output.talk("finishing; interrupt again to stop at once")
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, heard)
    try:
        yield stop
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
