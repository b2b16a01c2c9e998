"""The numbers behind the live view."""

import asyncio
from contextlib import ExitStack
from typing import Any

import pytest

from nemo_gym.cli.progress import Durations, Progress, Rate, TimedFlights
from nemo_gym.rollouts.collect import Terms, collect
from nemo_gym.rollouts.job import Job, Row
from nemo_gym.rollouts.key import RolloutKey
from nemo_gym.rollouts.outcome import Failed, Failure, Scored
from nemo_gym.rollouts.planned import Planned


class Clock:
    """Time that moves when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def job(task: int) -> Job:
    row: Row = {"_ng_task_index": task, "_ng_rollout_index": 0, "agent_ref": {"name": "agent"}}
    return Job(RolloutKey(task, 0), row)


def scored(task: int, reward: float, tokens: int = 0) -> Scored:
    return Scored(job(task), {"reward": reward, "response": {"usage": {"total_tokens": tokens}}})


@pytest.fixture
def clock() -> Clock:
    return Clock()


def fly(progress: Progress, clock: Clock, task: int, seconds: float) -> None:
    """One rollout that takes off, takes its time and is scored."""
    with progress.flights.under_way(job(task)):
        clock.now += seconds
    progress(scored(task, 1.0))


def test_outcomes_add_up(clock: Clock) -> None:
    """Counts, tokens and the mean are what people watch."""
    progress = Progress(clock=clock)
    for task, reward in enumerate([0.0, 1.0, 1.0]):
        progress(scored(task, reward, tokens=7))
    progress(Failed(job(3), Failure("timeout", "model", "too slow", "policy_model")))

    mean = progress.mean()

    assert (progress.tally.scored, progress.tally.failed, progress.tokens) == (3, {"timeout": 1}, 21)
    assert mean is not None
    assert (mean.value, mean.count, mean.tasks) == (pytest.approx(2 / 3), 3, 3)


def test_the_first_failure_of_each_kind_is_told_at_once() -> None:
    """Nobody should wait an hour to learn that the key is wrong."""
    told: list[str] = []
    progress = Progress(on_first_failure=lambda outcome: told.append(outcome.failure.message))

    for kind, message in (("timeout", "a"), ("timeout", "b"), ("tool_error", "c")):
        progress(Failed(job(0), Failure(kind, "model", message, "whom")))

    assert told == ["a", "c"]


def test_the_rate_is_that_of_the_last_while() -> None:
    """A model that became slow must show, however fast it was an hour ago."""
    rate = Rate(span=10)
    for second in range(100):
        rate.note(second, second * 50)
    for second in range(100, 120):
        rate.note(second, 100 * 50 + second - 100)

    assert rate.per_second() == pytest.approx(1.0)


def test_the_rest_is_estimated_from_the_recent_rate_and_the_slow_tail(clock: Clock) -> None:
    """A run ends with its slowest rollout, not with its average one."""
    progress = Progress(clock=clock)
    progress.on_plan(Planned(total=130, to_run=130))
    for task in range(99):
        fly(progress, clock, task, 1.0)
    fly(progress, clock, 99, 31.0)
    progress.look()

    with progress.flights.under_way(job(100)), progress.flights.under_way(job(101)):
        left = progress.seconds_left()

    # 28 are queued; the slowest of two in flight is somewhere in the upper third of what is known.
    assert progress.per_second == pytest.approx(100 / 130, rel=0.01)
    assert left is not None
    assert left >= 28 / progress.per_second


def test_when_all_are_sent_only_the_slowest_counts(clock: Clock) -> None:
    """At the end of a run the rate says nothing any more."""
    progress = Progress(clock=clock)
    progress.on_plan(Planned(total=12, to_run=12))
    for task in range(10):
        fly(progress, clock, task, 10.0)
    with progress.flights.under_way(job(10)), progress.flights.under_way(job(11)):
        progress.look()
        assert progress.seconds_left() == pytest.approx(10.0)
        clock.now += 4
        assert progress.seconds_left() == pytest.approx(6.0)
        clock.now += 96
        progress.look()
        assert progress.seconds_left() == pytest.approx(50.0)  # older than any: half as long again


def test_rollouts_that_queue_in_a_server_are_counted_by_its_pace(clock: Clock) -> None:
    """A small model takes a hundred at once and answers one after the other."""
    progress = Progress(clock=clock)
    progress.on_plan(Planned(total=40, to_run=40))
    with ExitStack() as flying:
        for task in range(30):
            flying.enter_context(progress.flights.under_way(job(task)))
        progress.look()
        for task in range(30, 40):
            with progress.flights.under_way(job(task)):
                pass
            clock.now += 2
            progress(scored(task, 1.0))
            progress.look()

        assert progress.seconds_left() == pytest.approx(60.0)


def test_nothing_is_promised_before_anything_is_known(clock: Clock) -> None:
    """An invented number is worse than none."""
    progress = Progress(clock=clock)
    assert progress.seconds_left() is None

    progress.on_plan(Planned(total=5, to_run=5))
    assert progress.seconds_left() is None
    progress.on_plan(Planned(total=5, finished=5, to_run=0))
    assert progress.seconds_left() == 0.0
    assert progress.done == 5


def test_durations_forget_what_is_long_ago() -> None:
    """Memory stays the same however long the run is."""
    durations = Durations(kept=3)
    for seconds in (100.0, 1.0, 2.0, 3.0):
        durations.add(seconds)

    assert durations.quantile(1.0) == 3.0
    assert durations.quantile(0.0) == 1.0
    assert durations.quantile(0.5, longer_than=2.5) == 3.0
    assert durations.quantile(0.5, longer_than=50) is None


def test_the_mean_is_not_computed_at_every_look(clock: Clock) -> None:
    """With a million tasks it takes a third of a second; the screen is drawn four times in one."""
    progress = Progress(clock=clock)
    progress(scored(0, 1.0))
    computed = 0

    class Slow:
        def mean(self) -> None:
            nonlocal computed
            computed += 1
            clock.now += 0.3

    progress.rewards = Slow()  # type: ignore[assignment]
    for _ in range(40):
        progress.mean()
        clock.now += 0.25

    assert computed == 1


async def test_landing_finishes_what_flies_and_sends_nothing_more() -> None:
    """Ctrl-C must not cost what is nearly done, nor start anything new."""
    flights = TimedFlights()
    progress = Progress(flights)
    sent: list[int] = []
    two_fly, go_on = asyncio.Event(), asyncio.Event()

    async def send(sending: Job) -> Any:
        sent.append(sending.key.task)
        if len(sent) == 2:
            two_fly.set()
        await go_on.wait()
        return {"reward": 1.0, "response": {"usage": {"total_tokens": 1}}}

    collecting = asyncio.create_task(
        collect(map(job, range(10)), send, [progress], at_once=2, terms=Terms(flights=flights))
    )
    await two_fly.wait()
    flights.land()
    go_on.set()
    await asyncio.wait_for(collecting, 10)

    assert sent == [0, 1]
    assert (progress.tally.scored, progress.tally.cancelled) == (2, 0)


def test_what_somebody_else_collected_is_counted_from_its_records() -> None:
    """A rollout that failed first and was scored later counts once, as scored."""
    progress = Progress()
    records = [{"_ng_task_index": task, "_ng_rollout_index": 0, "reward": 1.0} for task in (0, 1)]
    failures = [{"_ng_task_index": task, "_ng_rollout_index": 0, "_ng_failure_class": "timeout"} for task in (1, 2, 2)]

    progress.read_back(records, failures, 5)

    assert (progress.tally.scored, progress.tally.failed) == (2, {"timeout": 1})
    assert (progress.total, progress.queued) == (5, 2)


def test_records_that_do_not_say_which_rollout_they_are_count_each() -> None:
    """A driver of somebody else's writes what it likes; a reward that is none is a failure also there."""
    progress = Progress()
    records = [{"reward": 1}, {"reward": 0}, {"reward": None}, {"_ng_failure_class": "odd", "reward": 1}]

    progress.read_back(records, [{"_ng_failure_class": "timeout"}], 0)

    assert (progress.tally.scored, progress.tally.failed) == (2, {"invalid_reward": 1, "odd": 1, "timeout": 1})
    assert progress.total == 5


def test_where_the_time_went_is_a_mean_over_those_who_tell() -> None:
    """Agents that say nothing about phases still say how long they took."""
    progress = Progress()
    assert progress.spent.means() == {}

    progress(Scored(job(0), {"reward": 1.0, "_ng_seconds": 4.0, "_ng_phases": {"model": 3.0, "agent": 1.0}}))
    progress(Scored(job(1), {"reward": 1.0, "_ng_seconds": 2.0}))
    progress(Scored(job(2), {"reward": 1.0}))

    assert progress.spent.means() == {"whole": 3.0, "model": 3.0, "agent": 1.0}
