"""Collecting until the end, or until somebody asks to stop."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from nemo_gym.cli.eval_session import Collector, DriverFailed, Session, Written, driven, until_stopped
from nemo_gym.cli.progress import Progress
from nemo_gym.cli.serving import Interrupted


async def test_work_that_ends_is_not_interrupted() -> None:
    """The usual case."""

    async def work() -> int:
        return 7

    assert await until_stopped(work(), asyncio.Event(), lambda: 1.0) == (False, 7)


async def test_an_interrupt_lets_the_work_land() -> None:
    """What is in flight finishes, and its result counts."""
    stop, landing = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        stop.set()
        await landing.wait()
        return "landed"

    def land() -> float:
        landing.set()
        return 60.0

    assert await until_stopped(work(), stop, land) == (True, "landed")


async def test_the_grace_period_has_an_end() -> None:
    """A rollout that never ends must not keep the command from ending."""
    stop, cleaned = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        stop.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    assert await until_stopped(work(), stop, lambda: 0.01) == (True, None)
    assert cleaned.is_set()


async def test_what_the_work_raises_is_raised() -> None:
    """A full disk is not an interrupt."""

    async def work() -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        await until_stopped(work(), asyncio.Event(), lambda: 1.0)


async def test_being_cancelled_cancels_the_work() -> None:
    """A second Ctrl-C ends everything at once, and nothing is left running."""
    begun, cleaned = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    waiting = asyncio.create_task(until_stopped(work(), asyncio.Event(), lambda: 60.0))
    await begun.wait()
    waiting.cancel()
    await asyncio.wait({waiting})

    assert waiting.cancelled()
    assert cleaned.is_set()


async def test_a_driver_that_writes_nothing_has_not_collected(tmp_path: Path) -> None:
    """Results of an earlier run must not be reported as its own."""
    (tmp_path / "x.jsonl").write_text('{"reward": 1}\n')
    written = Written(tmp_path / "x.jsonl")

    async def idle() -> None:
        return None

    with pytest.raises(DriverFailed, match="wrote nothing") as raised:
        await driven(idle, "mine:idle", written)

    assert "mine:idle" in str(raised.value)
    assert not written


async def test_what_a_driver_wrote_is_what_changed(tmp_path: Path) -> None:
    """Failures beside an output that was there before."""
    (tmp_path / "x.jsonl").write_text('{"reward": 1}\n')
    written = Written(tmp_path / "x.jsonl")

    async def fails() -> None:
        (tmp_path / "x_failures.jsonl").write_text('{"_ng_failure_class": "timeout"}\n')

    await driven(fails, "mine:fails", written)

    assert [path.name for path, is_new in written.files() if is_new] == ["x_failures.jsonl"]


def test_an_interrupt_ends_the_reading_of_rows() -> None:
    """A million rows are not read to the end for somebody who has changed his mind."""
    progress = Progress()
    nobody: Any = None
    collector = Collector(Session(OmegaConf.create({}), nobody), progress)
    assert collector.on_reading is not None

    collector.on_reading(2048, 0.1)
    progress.flights.land()

    with pytest.raises(Interrupted, match="nothing was changed"):
        collector.on_reading(4096, 0.2)
    assert progress.reading == (4096, 0.2)
