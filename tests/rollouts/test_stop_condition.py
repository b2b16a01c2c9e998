"""When a collection ends before its rows do."""

import pytest

from nemo_gym.rollouts.collect import StopCondition
from nemo_gym.rollouts.outcome import FailedRollout, Failure, Job, LimitedRollout, OutcomeCounts, ScoredRollout
from nemo_gym.rollouts.plan import PlanSummary
from nemo_gym.rollouts.stop_condition import IncompleteRun, check_complete

JOB = Job.of({"_ng_task_index": 0, "_ng_rollout_index": 0, "agent_ref": {"name": "a"}})
FAILED = FailedRollout(JOB, Failure("timeout", "model", "", "m"), {"response": {"usage": {"total_tokens": 40}}})
SCORED = ScoredRollout(JOB, {"response": {"usage": {"total_tokens": 60}}})


def test_too_many_failures_end_the_run_immediately():
    """A broken setup must not use up a night's tokens."""
    stopping = StopCondition(max_failures=2)

    for outcome in (FAILED, SCORED, LimitedRollout(JOB, "tokens")):
        stopping.add_outcome(outcome)
    assert stopping.reason is None, "limits are no failures"
    stopping.add_outcome(FAILED)

    assert stopping.is_immediate
    assert stopping.reason == "2 rollouts failed (max_failures 2)"


def test_spent_tokens_let_those_in_flight_finish():
    """What is paid for is kept; tokens of failed attempts are spent too."""
    stopping = StopCondition(max_tokens=100)

    stopping.add_attempt(FAILED)
    assert stopping.reason is None
    stopping.add_attempt(SCORED)

    assert stopping.reason == "100 tokens are spent (max_total_tokens 100)"
    assert not stopping.is_immediate


def test_a_resumed_run_that_has_given_up_a_rollout_is_not_complete():
    """`require_complete` would otherwise pass at the second try: rollouts that are given up are not run again."""
    with pytest.raises(IncompleteRun, match="1/2 rollouts"):
        check_complete(OutcomeCounts(), PlanSummary(2, finished=1, given_up=1, to_run=0, resumed=True))


def test_a_resumed_run_goes_on_counting():
    """The token budget is that of the whole run."""
    assert StopCondition(max_tokens=100, tokens=100).reason is not None
    assert StopCondition(max_tokens=101, tokens=100).reason is None


def test_without_limits_nothing_stops():
    """The limits are optional."""
    stopping = StopCondition()
    for _ in range(1000):
        stopping.add_attempt(SCORED)
        stopping.add_outcome(FAILED)

    assert stopping.reason is None
