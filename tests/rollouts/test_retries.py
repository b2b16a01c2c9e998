"""Which failures are tried again at once."""

import pytest

from nemo_gym.rollouts.collect import LONGEST_PAUSE, RolloutRetryPolicy
from nemo_gym.rollouts.outcome import (
    FailedRollout,
    Failure,
    FailureKind,
    Job,
)

JOB = Job.of({"_ng_task_index": 0, "_ng_rollout_index": 0, "agent_ref": {"name": "a"}})
RETRIES = RolloutRetryPolicy(max_attempts=3, pause_seconds=2.0, uniform=lambda low, high: high)


def failed_rollout(kind, *, attempt=0, retryable=True, which=None):
    return FailedRollout(
        JOB.with_attempt(attempt), Failure(kind, "model", "", "m", retryable=retryable, deadline_name=which)
    )


def test_a_transient_failure_is_retried_once_after_a_pause():
    """A restarting server needs a moment."""
    assert RETRIES.pause_after(failed_rollout("server_died"), attempts=1) == 2.0
    assert RETRIES.pause_after(failed_rollout("server_died"), attempts=2) is None


@pytest.mark.parametrize("kind", [FailureKind.INVALID_REWARD, FailureKind.INTERNAL, "an_agents_own_word"])
def test_a_permanent_failure_is_not_retried(kind):
    """A retry would cost tokens for the same result."""
    assert RETRIES.pause_after(failed_rollout(kind), attempts=1) is None


def test_the_cap_counts_attempts_of_earlier_runs():
    """A rollout that failed twice yesterday has one attempt left today, not two."""
    assert RETRIES.pause_after(failed_rollout("server_died", attempt=2), attempts=1) is None


def test_a_rollout_past_its_deadline_is_not_retried():
    """It would double the time of the slowest rollouts."""
    assert RETRIES.pause_after(failed_rollout("timeout", which="rollout"), attempts=1) is None
    assert RETRIES.pause_after(failed_rollout("timeout", which="model_call"), attempts=1) is not None


def test_only_retryable_failures_are_retried():
    """The failure says whether a retry can help."""
    assert RETRIES.pause_after(failed_rollout("server_died", retryable=False), attempts=1) is None


def test_a_pause_is_jittered_and_bounded():
    """A thousand retries must not arrive at the same moment."""
    between = []
    long = RolloutRetryPolicy(
        max_attempts=9, pause_seconds=1000, uniform=lambda low, high: between.append((low, high)) or low
    )

    long.pause_after(failed_rollout("server_died"), attempts=1)

    assert between == [(LONGEST_PAUSE / 2, LONGEST_PAUSE)]
