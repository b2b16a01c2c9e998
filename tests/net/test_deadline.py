"""Deadlines: inherited, only ever shortened, readable across a header."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.net import deadline

seconds = st.floats(min_value=0, max_value=1e6, allow_nan=False)


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_without_a_deadline_nothing_is_limited():
    """Code outside any request must not suddenly time out."""
    assert deadline.remaining() is None
    assert deadline.header_value() is None


def test_time_that_passes_is_subtracted_and_never_negative():
    """A caller asks how long it may still wait; a negative wait makes no sense to any API."""
    clock = FakeClock()

    with deadline.within(5, clock):
        clock.now += 3
        assert deadline.remaining(clock) == 2
        assert deadline.header_value(clock) == "1.900"
        clock.now += 9
        assert deadline.remaining(clock) == 0

    assert deadline.remaining(clock) is None


@given(outer=seconds, inner=seconds)
@settings(max_examples=60, deadline=None)
def test_an_inner_deadline_can_only_shorten(outer: float, inner: float):
    """A tool that allows itself an hour must not outlive the minute its rollout has left."""
    clock = FakeClock()

    with deadline.within(outer, clock), deadline.within(inner, clock):
        assert deadline.remaining(clock) == pytest.approx(min(outer, inner))


def test_the_outer_deadline_is_back_after_the_inner_one():
    clock = FakeClock()

    with deadline.within(10, clock):
        with deadline.within(1, clock):
            pass
        assert deadline.remaining(clock) == 10


@given(left=seconds)
@settings(max_examples=60, deadline=None)
def test_what_is_sent_in_the_header_is_what_is_read(left: float):
    """Two hops must agree on the time left, to the millisecond."""
    assert deadline.from_header(deadline.format_seconds(left)) == pytest.approx(left, abs=0.001)


@given(st.one_of(st.text(max_size=12), st.sampled_from(["nan", "inf", "-1", "", "1e999", "\x00"])))
@settings(max_examples=100, deadline=None)
def test_a_header_nobody_can_read_counts_as_absent_and_never_raises(value: str):
    """A strange client must not be able to fail a request with a header."""
    found = deadline.from_header(value)

    assert found is None or found >= 0


async def test_a_timer_ends_its_work_and_is_known_to_what_it_encloses():
    """What is called below needs no timer of its own for the same moment."""
    assert deadline.watched() is None

    with pytest.raises(TimeoutError), deadline.Timer(0.01) as timer:
        known = deadline.watched()
        left = deadline.remaining()
        await asyncio.Event().wait()

    assert known is timer
    assert 0 < left <= 0.01
    assert timer.has_rung
    assert deadline.watched() is None
    assert deadline.remaining() is None


async def test_a_timer_watches_only_its_own_task_and_no_earlier_deadline():
    """Cancelling the parent does not end a task it started, and a timer does not ring before its time."""

    async def elsewhere() -> object:
        return deadline.watched()

    with deadline.Timer(60):
        assert await asyncio.create_task(elsewhere()) is None
        with deadline.within(1):
            assert deadline.watched() is None
        with deadline.within(100):
            assert deadline.watched() is not None
    with deadline.within(1), deadline.Timer(60):
        assert deadline.watched() is None


def test_whoever_is_called_gets_a_little_less_time():
    """So the one that does not answer is given up first, by its own caller, who can name it."""
    assert [deadline.passed_on(left) for left in (100.0, 2.0, 0.0)] == ["99.500", "1.900", "0.000"]


async def test_a_timer_knows_whom_the_work_was_waiting_for():
    """ "Not done in time" is of little use; "the judge did not answer" is."""

    async def calling(whom: str, inner: str | None = None) -> None:
        try:
            await (calling(inner) if inner else asyncio.Event().wait())
        except asyncio.CancelledError:
            deadline.blame(whom)
            raise

    with pytest.raises(TimeoutError), deadline.Timer(0.01) as timer:
        await calling("agent", inner="judge")
    assert timer.blamed == "judge"

    with deadline.Timer(10) as calm:
        pass
    assert calm.blamed is None
