"""When a collection ends before its rows do."""

from nemo_gym.rollouts.job import Job
from nemo_gym.rollouts.outcome import Failed, Failure, Limit, Scored
from nemo_gym.rollouts.stop import Stopping

JOB = Job.of({"_ng_task_index": 0, "_ng_rollout_index": 0, "agent_ref": {"name": "a"}})
FAILED = Failed(JOB, Failure("timeout", "model", "", "m"), {"response": {"usage": {"total_tokens": 40}}})
SCORED = Scored(JOB, {"response": {"usage": {"total_tokens": 60}}})


def test_so_many_failures_end_the_run_at_once():
    stopping = Stopping(max_failures=2)

    for outcome in (FAILED, SCORED, Limit(JOB, "tokens")):
        stopping.ended(outcome)
    assert stopping.reason is None, "limits are no failures"
    stopping.ended(FAILED)

    assert stopping.at_once
    assert stopping.reason == "2 rollouts failed (max_failures 2)"


def test_spent_tokens_let_those_in_flight_finish():
    """What is paid for is kept; tokens of failed attempts are spent too."""
    stopping = Stopping(max_tokens=100)

    stopping.tried(FAILED)
    assert stopping.reason is None
    stopping.tried(SCORED)

    assert stopping.reason == "100 tokens are spent (max_total_tokens 100)"
    assert not stopping.at_once


def test_a_resumed_run_goes_on_counting():
    assert Stopping(max_tokens=100, tokens=100).reason is not None
    assert Stopping(max_tokens=101, tokens=100).reason is None


def test_without_limits_nothing_stops():
    stopping = Stopping()
    for _ in range(1000):
        stopping.tried(SCORED)
        stopping.ended(FAILED)

    assert stopping.reason is None
