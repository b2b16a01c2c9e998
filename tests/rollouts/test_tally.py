"""The line a run ends with."""

from nemo_gym.rollouts.job import Job
from nemo_gym.rollouts.outcome import Cancelled, Failed, Failure, Limit, Scored
from nemo_gym.rollouts.tally import Tally

JOB = Job.of({"_ng_task_index": 0, "_ng_rollout_index": 0, "agent_ref": {"name": "a"}})


def test_every_outcome_is_counted_and_failures_say_their_kind():
    """A summary that hides failures is how outages become scores."""
    tally = Tally()
    timeout = Failed(JOB, Failure("timeout", "model", "", "m"))
    refused = Failed(JOB, Failure("model_refused", "model", "", "m"))

    for outcome in (Scored(JOB, {}), Scored(JOB, {}), timeout, timeout, refused, Limit(JOB, "tokens"), Cancelled(JOB)):
        tally(outcome)

    assert str(tally) == "2 scored · 3 failed (timeout 2, model_refused 1) · 1 limit (tokens 1) · 1 cancelled"
    assert tally.total == 7


def test_what_did_not_happen_is_not_mentioned():
    assert str(Tally()) == "0 scored"


def test_second_attempts_and_what_was_left_are_told():
    """Retries roll the dice again: how many scores come from one is part of the result."""
    tally = Tally()
    tally(Scored(JOB.again(1), {}))
    tally.not_run = 5

    assert str(tally) == "1 scored (1 retried) · 5 not run"
