"""The numbers behind the live view."""

import asyncio
from contextlib import ExitStack
from typing import Any

import pytest

from nemo_gym.cli.terminal.progress import Progress, Rate, TimedInFlight
from nemo_gym.rollouts.collect import AttemptRules, collect
from nemo_gym.rollouts.outcome import FailedRollout, Failure, Job, ScoredRollout
from nemo_gym.rollouts.plan import PlanSummary
from nemo_gym.wire.stored_rollout import RolloutKey, Row


class Clock:
    """Time that moves when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def job(task: int) -> Job:
    row: Row = {"_ng_task_index": task, "_ng_rollout_index": 0, "agent_ref": {"name": "agent"}}
    return Job(RolloutKey(task, 0), row)


def scored_outcome(task: int, reward: float, tokens: int = 0) -> ScoredRollout:
    return ScoredRollout(job(task), {"reward": reward, "response": {"usage": {"total_tokens": tokens}}})


@pytest.fixture
def clock() -> Clock:
    return Clock()


def run_rollout(progress: Progress, clock: Clock, task: int, seconds: float) -> None:
    """Send a rollout that takes `seconds` and is scored."""
    with progress.in_flight.sending(job(task)):
        clock.now += seconds
    progress(scored_outcome(task, 1.0))


def test_outcomes_add_up(clock: Clock) -> None:
    """Counts, tokens and the mean are what people watch."""
    progress = Progress(clock=clock)
    for task, reward in enumerate([0.0, 1.0, 1.0]):
        progress(scored_outcome(task, reward, tokens=7))
    progress(FailedRollout(job(3), Failure("timeout", "model", "too slow", "policy_model")))

    mean = progress.mean()

    assert (progress.tally.scored, progress.tally.failed, progress.tokens) == (3, {"timeout": 1}, 21)
    assert mean is not None
    assert (mean.value, mean.count, mean.tasks) == (pytest.approx(2 / 3), 3, 3)


def test_the_first_failure_of_each_kind_is_reported_at_once() -> None:
    """A wrong API key must be visible at once, not after an hour."""
    messages: list[str] = []
    progress = Progress(on_first_failure=lambda outcome: messages.append(outcome.failure.message))

    for kind, message in (("timeout", "a"), ("timeout", "b"), ("tool_error", "c")):
        progress(FailedRollout(job(0), Failure(kind, "model", message, "whom")))

    assert messages == ["a", "c"]


def test_the_rate_is_that_of_the_last_seconds() -> None:
    """A model that became slow must show, however fast it was an hour ago."""
    rate = Rate(span=10)
    for second in range(100):
        rate.add_sample(second, second * 50)
    for second in range(100, 120):
        rate.add_sample(second, 100 * 50 + second - 100)

    assert rate.per_second() == pytest.approx(1.0)


def test_the_rest_is_estimated_from_the_recent_rate_and_the_slow_tail(clock: Clock) -> None:
    """A run ends with its slowest rollout, not with its average one."""
    progress = Progress(clock=clock)
    progress.on_plan(PlanSummary(total=130, to_run=130))
    for task in range(99):
        run_rollout(progress, clock, task, 1.0)
    run_rollout(progress, clock, 99, 31.0)
    progress.take_sample()

    with progress.in_flight.sending(job(100)), progress.in_flight.sending(job(101)):
        left = progress.seconds_left()

    # 28 are queued; the slowest of two in flight is somewhere in the upper third of what is known.
    assert progress.rate.per_second() == pytest.approx(100 / 130, rel=0.01)
    assert left is not None
    assert left >= 28 / progress.rate.per_second()


def test_when_all_are_sent_only_the_slowest_counts(clock: Clock) -> None:
    """At the end of a run the rate says nothing any more."""
    progress = Progress(clock=clock)
    progress.on_plan(PlanSummary(total=12, to_run=12))
    for task in range(10):
        run_rollout(progress, clock, task, 10.0)
    with progress.in_flight.sending(job(10)), progress.in_flight.sending(job(11)):
        progress.take_sample()
        assert progress.seconds_left() == pytest.approx(10.0)
        clock.now += 4
        assert progress.seconds_left() == pytest.approx(6.0)
        clock.now += 96
        progress.take_sample()
        assert progress.seconds_left() == pytest.approx(50.0)  # older than any: half as long again


def test_the_pace_of_a_server_estimates_the_rollouts_queued_in_it(clock: Clock) -> None:
    """A small model takes a hundred at once and answers one after the other."""
    progress = Progress(clock=clock)
    progress.on_plan(PlanSummary(total=40, to_run=40))
    with ExitStack() as flying:
        for task in range(30):
            flying.enter_context(progress.in_flight.sending(job(task)))
        progress.take_sample()
        for task in range(30, 40):
            with progress.in_flight.sending(job(task)):
                pass
            clock.now += 2
            progress(scored_outcome(task, 1.0))
            progress.take_sample()

        assert progress.seconds_left() == pytest.approx(60.0)


def test_there_is_no_estimate_without_data(clock: Clock) -> None:
    """An invented number is worse than none."""
    progress = Progress(clock=clock)
    assert progress.seconds_left() is None

    progress.on_plan(PlanSummary(total=5, to_run=5))
    assert progress.seconds_left() is None
    progress.on_plan(PlanSummary(total=5, finished=5, to_run=0))
    assert progress.seconds_left() == 0.0
    assert progress.ended_count == 5


def test_quantiles_of_durations_ignore_shorter_ones() -> None:
    """A rollout that has taken a minute does not end within the seconds of the others."""
    in_flight = TimedInFlight()
    in_flight.durations.extend([3.0, 1.0, 2.0])

    assert in_flight.duration_quantile(1.0) == 3.0
    assert in_flight.duration_quantile(0.0) == 1.0
    assert in_flight.duration_quantile(0.5, minimum=2.5) == 3.0
    assert in_flight.duration_quantile(0.5, minimum=50) is None


def test_the_mean_is_not_computed_for_every_redraw(clock: Clock) -> None:
    """With a million tasks it takes a third of a second; the screen is drawn four times in one."""
    progress = Progress(clock=clock)
    progress(scored_outcome(0, 1.0))
    computed = 0

    def compute_slowly() -> None:
        nonlocal computed
        computed += 1
        clock.now += 0.3

    progress.compute_mean = compute_slowly  # type: ignore[method-assign]
    for _ in range(40):
        progress.mean()
        clock.now += 0.25

    assert computed == 1


async def test_an_interrupt_finishes_rollouts_in_flight_and_sends_no_more() -> None:
    """Ctrl-C must neither waste rollouts that are nearly done nor start new ones."""
    in_flight = TimedInFlight()
    progress = Progress(in_flight)
    sent: list[int] = []
    two_sent, go_on = asyncio.Event(), asyncio.Event()

    async def send(sending: Job) -> Any:
        sent.append(sending.key.task)
        if len(sent) == 2:
            two_sent.set()
        await go_on.wait()
        return {"reward": 1.0, "response": {"usage": {"total_tokens": 1}}}

    collecting = asyncio.create_task(
        collect(map(job, range(10)), send, [progress], concurrency=2, rules=AttemptRules(in_flight=in_flight))
    )
    await two_sent.wait()
    in_flight.stop_admitting()
    go_on.set()
    await asyncio.wait_for(collecting, 10)

    assert sent == [0, 1]
    assert (progress.tally.scored, progress.tally.cancelled) == (2, 0)


def test_rollouts_of_a_driver_are_counted_from_its_records() -> None:
    """A rollout that failed first and was scored later counts once, as scored."""
    progress = Progress()
    records = [{"_ng_task_index": task, "_ng_rollout_index": 0, "reward": 1.0} for task in (0, 1)]
    failures = [{"_ng_task_index": task, "_ng_rollout_index": 0, "_ng_failure_class": "timeout"} for task in (1, 2, 2)]

    progress.count_records(records, failures, 5)

    assert (progress.tally.scored, progress.tally.failed) == (2, {"timeout": 1})
    assert (progress.total, progress.queue_length) == (5, 2)


def test_each_record_without_a_rollout_key_counts() -> None:
    """Drivers may omit our keys; a missing reward is a failure there too."""
    progress = Progress()
    records = [{"reward": 1}, {"reward": 0}, {"reward": None}, {"_ng_failure_class": "odd", "reward": 1}]

    progress.count_records(records, [{"_ng_failure_class": "timeout"}], 0)

    assert (progress.tally.scored, progress.tally.failed) == (2, {"invalid_reward": 1, "odd": 1, "timeout": 1})
    assert progress.total == 5


def test_phase_times_are_means_over_the_rollouts_with_phases() -> None:
    """Agents without phases still record their duration."""
    progress = Progress()
    assert progress.phase_times.means() == {}

    progress(ScoredRollout(job(0), {"reward": 1.0, "_ng_seconds": 4.0, "_ng_phases": {"model": 3.0, "agent": 1.0}}))
    progress(ScoredRollout(job(1), {"reward": 1.0, "_ng_seconds": 2.0}))
    progress(ScoredRollout(job(2), {"reward": 1.0}))

    assert progress.phase_times.means() == {"whole": 3.0, "model": 3.0, "agent": 1.0}
