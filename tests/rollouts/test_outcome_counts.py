"""The line a run ends with."""

from nemo_gym.rollouts.outcome import (
    CancelledRollout,
    FailedRollout,
    Failure,
    Job,
    LimitedRollout,
    OutcomeCounts,
    ScoredRollout,
)

JOB = Job.of({"_ng_task_index": 0, "_ng_rollout_index": 0, "agent_ref": {"name": "a"}})


def test_every_outcome_is_counted_and_failures_say_their_kind():
    """A summary that hides failures is how outages become scores."""
    tally = OutcomeCounts()
    timeout = FailedRollout(JOB, Failure("timeout", "model", "", "m"))
    refused = FailedRollout(JOB, Failure("model_refused", "model", "", "m"))

    for outcome in (
        ScoredRollout(JOB, {}),
        ScoredRollout(JOB, {}),
        timeout,
        timeout,
        refused,
        LimitedRollout(JOB, "tokens"),
        CancelledRollout(JOB),
    ):
        tally(outcome)

    assert str(tally) == "2 scored · 3 failed (timeout 2, model_refused 1) · 1 limit (tokens 1) · 1 cancelled"
    assert tally.total == 7


def test_zero_counts_are_not_printed():
    """The line must fit on a terminal."""
    assert str(OutcomeCounts()) == "0 scored"


def test_second_attempts_and_what_was_left_are_told():
    """Retries roll the dice again: how many scores come from one is part of the result."""
    tally = OutcomeCounts()
    tally(ScoredRollout(JOB.with_attempt(1), {}))
    tally.not_run = 5

    assert str(tally) == "1 scored (1 retried) · 5 not run"
