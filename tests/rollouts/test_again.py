"""Which failures are tried again at once."""

import pytest

from nemo_gym.rollouts.again import LONGEST_PAUSE, Retries
from nemo_gym.rollouts.job import Job
from nemo_gym.rollouts.outcome import Cancelled, Failed, Failure, FailureKind, Limit, Scored

JOB = Job.of({"_ng_task_index": 0, "_ng_rollout_index": 0, "agent_ref": {"name": "a"}})
RETRIES = Retries(max_attempts=3, pause_seconds=2.0, uniform=lambda low, high: high)


def failed(kind, *, attempt=0, retryable=True, which=None):
    return Failed(JOB.again(attempt), Failure(kind, "model", "", "m", retryable=retryable, which=which))


def test_what_may_pass_is_tried_once_more_after_a_pause():
    assert RETRIES.pause_after(failed("server_died"), tries=1) == 2.0
    assert RETRIES.pause_after(failed("server_died"), tries=2) is None


@pytest.mark.parametrize("kind", [FailureKind.INVALID_REWARD, FailureKind.INTERNAL, "an_agents_own_word"])
def test_what_would_end_the_same_way_is_not(kind):
    assert RETRIES.pause_after(failed(kind), tries=1) is None


def test_the_cap_counts_attempts_of_earlier_runs():
    """A rollout that failed twice yesterday has one attempt left today, not two."""
    assert RETRIES.pause_after(failed("server_died", attempt=2), tries=1) is None


def test_a_rollout_that_had_all_its_time_is_not_given_it_twice():
    assert RETRIES.pause_after(failed("timeout", which="rollout"), tries=1) is None
    assert RETRIES.pause_after(failed("timeout", which="model_call"), tries=1) is not None


def test_only_failures_that_may_pass_are_tried_again():
    assert RETRIES.pause_after(failed("server_died", retryable=False), tries=1) is None
    for outcome in (Scored(JOB, {}), Limit(JOB, "tokens"), Cancelled(JOB)):
        assert RETRIES.pause_after(outcome, tries=1) is None


def test_a_pause_is_jittered_and_has_an_end():
    between = []
    long = Retries(max_attempts=9, pause_seconds=1000, uniform=lambda low, high: between.append((low, high)) or low)

    long.pause_after(failed("server_died"), tries=1)

    assert between == [(LONGEST_PAUSE / 2, LONGEST_PAUSE)]
