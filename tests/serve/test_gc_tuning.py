"""Rounds of the garbage collector: rarer than usual, and rarer still while many calls wait."""

import asyncio
import gc
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from nemo_gym.serve import gc_tuning
from nemo_gym.transport.deadlines import Alarm


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """The collector belongs to the whole process."""
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)
    gc.unfreeze()


async def threshold_becomes(least: int, most: int) -> int:
    async with asyncio.timeout(10):
        while not least <= gc.get_threshold()[0] <= most:  # noqa: ASYNC110 - a timer of the loop changes it
            await asyncio.sleep(0.01)
    return gc.get_threshold()[0]


async def test_calls_that_wait_put_the_next_round_off_and_their_end_brings_it_back() -> None:
    """Collections during many open calls would stop the server again and again."""
    gc_tuning.freeze()
    assert gc.get_threshold()[0] == gc_tuning.NEW_OBJECTS
    rounds = gc_tuning.AdaptiveThreshold()
    rounds.start()
    with ExitStack() as waiting:
        for _ in range(1000):
            waiting.enter_context(Alarm(60))
        target = gc_tuning.NEW_OBJECTS + 1000 * gc_tuning.OBJECTS_PER_CALL
        assert await threshold_becomes(target, target)
    await threshold_becomes(0, 2 * gc_tuning.NEW_OBJECTS)
    rounds.close()
    assert gc.get_threshold()[0] == gc_tuning.NEW_OBJECTS


async def test_after_its_end_nothing_looks_any_more() -> None:
    """A timer that stays would keep a stopped server and its loop in memory."""
    rounds = gc_tuning.AdaptiveThreshold()
    rounds.start()
    rounds.close()
    assert rounds._timer is not None and rounds._timer.cancelled()


def test_what_is_loaded_is_left_out_of_the_rounds() -> None:
    """Scanning modules that never go away would lengthen every collection."""
    gc_tuning.freeze()
    assert gc.get_freeze_count() > 0
