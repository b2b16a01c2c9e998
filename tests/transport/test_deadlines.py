"""Deadlines, alarms and allowances: inherited, only ever shortened, readable across a header."""

import asyncio
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.errors import DeadlineExceeded
from nemo_gym.transport import deadlines
from nemo_gym.transport.deadlines import (
    MIN_SCAN_INTERVAL,
    Alarm,
    Allowance,
    ModelCallTimeout,
    ToolCallTimeout,
    VerifyTimeout,
    note_awaited_server,
)


async def test_work_that_ends_in_time_is_left_alone():
    """A late alarm would cancel whatever the task does next."""
    with Alarm(0.02) as alarm:
        pass
    await asyncio.sleep(0.05)  # the loop wakes up and finds no alarm

    assert not alarm.has_fired
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
        with pytest.raises(TimeoutError), Alarm(0.01 + number * MIN_SCAN_INTERVAL / 10):
            await asyncio.Event().wait()
        rung += 1

    await asyncio.gather(*(work(number) for number in range(200)))

    assert rung == 200


async def test_a_cancellation_from_elsewhere_stays_one():
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
    """The user must learn which limit was reached, to raise the right setting."""
    with Alarm(60) as outer:
        with pytest.raises(TimeoutError), Alarm(0.01) as inner:
            await asyncio.Event().wait()
        await asyncio.sleep(0)

    assert inner.has_fired
    assert not outer.has_fired

    with pytest.raises(TimeoutError), Alarm(0.01) as outer, Alarm(60) as inner:
        await asyncio.Event().wait()
    assert outer.has_fired
    assert not inner.has_fired


async def test_what_the_work_raises_itself_is_passed_on():
    """Also when it raises after the alarm rang: that is the better news."""
    with pytest.raises(KeyError), Alarm(60):
        raise KeyError
    with pytest.raises(ZeroDivisionError), Alarm(0.01) as alarm:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ZeroDivisionError from None
    assert alarm.has_fired
    assert asyncio.current_task().cancelling() == 0


async def test_the_awaited_server_is_kept_for_the_alarm_that_rang():
    """A timeout report without the slow server does not say what to fix."""
    with pytest.raises(TimeoutError), Alarm(0.01) as alarm:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            note_awaited_server("judge")
            raise

    assert alarm.awaited_server == "judge"


def test_an_alarm_needs_a_task():
    """Without a task there is nothing to cancel; a silent alarm would mean no limit at all."""

    async def outside() -> None:
        with Alarm(1):
            pass

    with pytest.raises(RuntimeError, match="no running event loop"):
        outside().send(None)


def test_every_loop_has_its_own_alarms():
    """A thread with another loop, or the next `asyncio.run`, must not ring in a loop that is gone."""

    async def late() -> bool:
        with pytest.raises(TimeoutError), Alarm(0.01):
            await asyncio.Event().wait()
        return True

    assert asyncio.run(late())
    assert asyncio.run(late())


seconds = st.floats(min_value=0, max_value=1e6, allow_nan=False)


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_without_a_deadline_nothing_is_limited():
    """Code outside any request must not suddenly time out."""
    assert deadlines.seconds_left() is None


def test_time_that_passes_is_subtracted_and_never_negative():
    """A caller asks how long it may still wait; a negative wait makes no sense to any API."""
    clock = FakeClock()

    with deadlines.time_limit(5, clock):
        clock.now += 3
        assert deadlines.seconds_left(clock) == 2
        clock.now += 9
        assert deadlines.seconds_left(clock) == 0

    assert deadlines.seconds_left(clock) is None


@given(outer=seconds, inner=seconds)
@settings(max_examples=60, deadline=None)
def test_an_inner_deadline_can_only_shorten(outer: float, inner: float):
    """A tool that allows itself an hour must not outlive the minute its rollout has left."""
    clock = FakeClock()

    with deadlines.time_limit(outer, clock), deadlines.time_limit(inner, clock):
        assert deadlines.seconds_left(clock) == pytest.approx(min(outer, inner))


def test_the_outer_deadline_is_back_after_the_inner_one():
    """A short limit of one tool call must not shorten the rest of the rollout."""
    clock = FakeClock()

    with deadlines.time_limit(10, clock):
        with deadlines.time_limit(1, clock):
            pass
        assert deadlines.seconds_left(clock) == 10


@given(left=seconds)
@settings(max_examples=60, deadline=None)
def test_what_is_sent_in_the_header_is_what_is_read(left: float):
    """Two hops must agree on the time left, to the millisecond."""
    assert deadlines.parse_seconds(deadlines.format_seconds(left)) == pytest.approx(left, abs=0.001)


@given(st.one_of(st.text(max_size=12), st.sampled_from(["nan", "inf", "-1", "", "1e999", "\x00"])))
@settings(max_examples=100, deadline=None)
def test_an_unreadable_header_counts_as_absent_and_never_raises(value: str):
    """A strange client must not be able to fail a request with a header."""
    seconds_read = deadlines.parse_seconds(value)

    assert seconds_read is None or seconds_read >= 0


async def test_a_timer_ends_its_work_and_is_known_to_what_it_encloses():
    """Nested calls need no second alarm for the same moment."""
    assert deadlines.covering_alarm() is None

    with pytest.raises(TimeoutError), deadlines.DeadlineAlarm(0.01) as timer:
        alarm = deadlines.covering_alarm()
        left = deadlines.seconds_left()
        await asyncio.Event().wait()

    assert alarm is timer
    assert 0 < left <= 0.01
    assert timer.has_fired
    assert deadlines.covering_alarm() is None
    assert deadlines.seconds_left() is None


async def test_a_timer_watches_only_its_own_task_and_no_earlier_deadline():
    """Cancelling the parent does not end a task it started, and a timer does not ring before its time."""

    async def other_task_alarm() -> object:
        return deadlines.covering_alarm()

    with deadlines.DeadlineAlarm(60):
        assert await asyncio.create_task(other_task_alarm()) is None
        with deadlines.time_limit(1):
            assert deadlines.covering_alarm() is None
        with deadlines.time_limit(100):
            assert deadlines.covering_alarm() is not None
    with deadlines.time_limit(1), deadlines.DeadlineAlarm(60):
        assert deadlines.covering_alarm() is None


def test_a_callee_gets_slightly_less_time():
    """So the one that does not answer is given up first, by its own caller, who can name it."""
    assert [deadlines.seconds_for_callee(left) for left in (100.0, 2.0, 0.0)] == [99.5, 1.9, 0.0]


async def test_an_alarm_knows_the_server_the_work_was_waiting_for():
    """ "Not done in time" is of little use; "the judge did not answer" is."""

    async def calling(server: str, inner: str | None = None) -> None:
        try:
            await (calling(inner) if inner else asyncio.Event().wait())
        except asyncio.CancelledError:
            deadlines.note_awaited_server(server)
            raise

    with pytest.raises(TimeoutError), deadlines.DeadlineAlarm(0.01) as timer:
        await calling("agent", inner="judge")
    assert timer.awaited_server == "judge"

    with deadlines.DeadlineAlarm(10) as calm:
        pass
    assert calm.awaited_server is None


SECONDS = st.none() | st.floats(min_value=0.001, max_value=1e6)
COUNT = st.none() | st.integers(1, 10**12)


@given(st.builds(Allowance, SECONDS, SECONDS, SECONDS, COUNT, COUNT))
@settings(max_examples=60, deadline=None)
def test_what_is_sent_is_what_is_read(allowed):
    """A limit that changes on its way to another server is not the one the user set."""
    read = deadlines.parse_allowance(allowed.header_value().encode())

    assert (read or Allowance()) == allowed


@given(st.text(max_size=40) | st.binary(max_size=40))
@settings(max_examples=60, deadline=None)
def test_an_unreadable_header_ends_no_request(text):
    """Proxies and other clients send anything; a rollout must not fail because of a header."""
    read = deadlines.parse_allowance(text)

    assert read is None or isinstance(read, Allowance)


@pytest.mark.parametrize(
    "text", ["steps=-1", "steps=0", "steps=0.5", "steps=inf", "tokens=nan", "steps=x", "mode=fast"]
)
def test_nonsense_is_no_limit(text):
    """A limit of zero steps, also of half a step rounded down, or NaN steps would end every episode at once."""
    assert deadlines.parse_allowance(text) == Allowance()


ALLOWED = Allowance(model_call_seconds=0.01, tool_call_seconds=0.02, verify_seconds=0.03)


@pytest.mark.parametrize(
    ("server_type", "path", "kind", "seconds"),
    [
        ("responses_api_models", "/v1/responses", ModelCallTimeout, 0.01),
        ("resources_servers", "/get_weather", ToolCallTimeout, 0.02),
        ("resources_servers", "/seed_session", ToolCallTimeout, 0.02),
        ("resources_servers", "/verify", VerifyTimeout, 0.03),
    ],
)
def test_each_kind_of_call_has_its_time_and_its_name(server_type, path, kind, seconds):
    """The error names the setting to raise; a wrong one sends the user to the wrong setting."""
    limit = ALLOWED.call_limit(server_type, path)

    error = deadlines.as_call_timeout(
        DeadlineExceeded("late", where="m", fix="wait"), time.monotonic() - seconds, limit
    )

    assert limit == (seconds, kind)
    assert type(error) is kind
    assert (error.problem, error.where) == ("late", "m")
    assert error.fix == f"raise {kind.setting}, or find out why it is slow"


def test_calls_to_agents_are_not_bounded_here():
    """A call limit on a whole episode would cut off long ones."""
    assert ALLOWED.call_limit("responses_api_agents", "/run")[0] is None
    assert Allowance().call_limit("responses_api_models", "/v1/responses")[0] is None


def test_a_rollout_that_ends_sooner_keeps_its_own_name():
    """'The model call timed out' would be wrong when it was the rollout's time that was over."""
    limit = Allowance(model_call_seconds=100).call_limit("responses_api_models", "/v1/responses")

    assert deadlines.as_call_timeout(DeadlineExceeded("late"), time.monotonic(), limit) is None


class Usage:
    def __init__(self, total_tokens):
        self.total_tokens = total_tokens


def test_an_agent_learns_which_limit_it_has_reached():
    """The rollout record says why the episode ended, so that metrics can separate the causes."""
    assert deadlines.reached_limit(steps=10**9, usages=[]) is None
    with deadlines.using_allowance(Allowance(steps=3, tokens=100)):
        assert deadlines.reached_limit(steps=2, usages=[Usage(99), None]) is None
        assert deadlines.reached_limit(steps=3, usages=[]) == "steps"
        assert deadlines.reached_limit(steps=1, usages=[Usage(50), Usage(50)]) == "tokens"
