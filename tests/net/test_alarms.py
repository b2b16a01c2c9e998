"""One timer for all alarms of a loop: each rings once, in its time, and only for its own work."""

import asyncio
import time

import pytest

from nemo_gym.net.alarms import SHORTEST_REST, Alarm, blame


async def test_work_that_ends_in_time_is_left_alone():
    with Alarm(0.02) as alarm:
        pass
    await asyncio.sleep(0.05)  # the loop wakes for it, and finds nobody

    assert not alarm.has_rung
    assert asyncio.current_task().cancelling() == 0


async def test_each_alarm_ends_its_own_work_in_its_own_time():
    """Thousands are set at once; a short one must not wait for a long one that was set before."""
    ended: list[float] = []

    async def work(seconds: float) -> None:
        with pytest.raises(TimeoutError), Alarm(seconds):
            await asyncio.Event().wait()
        ended.append(seconds)

    began = time.monotonic()
    await asyncio.gather(*(work(seconds) for seconds in (0.3, 0.05, 0.15, 0.0)))

    assert ended == [0.0, 0.05, 0.15, 0.3]
    assert time.monotonic() - began >= 0.3


async def test_alarms_due_one_right_after_the_other_all_ring():
    """They are looked through together, and none is forgotten."""
    rung = 0

    async def work(number: int) -> None:
        nonlocal rung
        with pytest.raises(TimeoutError), Alarm(0.01 + number * SHORTEST_REST / 10):
            await asyncio.Event().wait()
        rung += 1

    await asyncio.gather(*(work(number) for number in range(200)))

    assert rung == 200


async def test_a_cancellation_by_somebody_else_stays_one():
    """Ctrl-C must not look like a slow server."""
    begun = asyncio.Event()

    async def work() -> None:
        with Alarm(60):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await begun.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_of_nested_alarms_the_one_that_was_due_is_told():
    with Alarm(60) as outer:
        with pytest.raises(TimeoutError), Alarm(0.01) as inner:
            await asyncio.Event().wait()
        await asyncio.sleep(0)

    assert inner.has_rung
    assert not outer.has_rung

    with pytest.raises(TimeoutError), Alarm(0.01) as outer, Alarm(60) as inner:
        await asyncio.Event().wait()
    assert outer.has_rung
    assert not inner.has_rung


async def test_what_the_work_raises_itself_is_passed_on():
    """Also when it raises after the alarm rang: that is the better news."""
    with pytest.raises(KeyError), Alarm(60):
        raise KeyError
    with pytest.raises(ZeroDivisionError), Alarm(0.01) as alarm:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ZeroDivisionError from None
    assert alarm.has_rung
    assert asyncio.current_task().cancelling() == 0


async def test_whom_the_work_waited_for_is_kept_for_the_alarm_that_rang():
    with pytest.raises(TimeoutError), Alarm(0.01) as alarm:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            blame("judge")
            raise

    assert alarm.blamed == "judge"


def test_an_alarm_needs_a_task():
    async def outside() -> None:
        with Alarm(1):
            pass

    with pytest.raises(RuntimeError, match="no running event loop"):
        outside().send(None)


def test_every_loop_has_its_own_alarms():
    """A thread with a loop of its own, or the next `asyncio.run`, must not ring in a loop that is gone."""

    async def late() -> bool:
        with pytest.raises(TimeoutError), Alarm(0.01):
            await asyncio.Event().wait()
        return True

    assert asyncio.run(late())
    assert asyncio.run(late())
