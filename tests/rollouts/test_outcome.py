"""What an answer means, and how that is stored."""

import math

import pytest

from nemo_gym.rollouts.job import Job
from nemo_gym.rollouts.outcome import (
    Cancelled,
    Failed,
    Failure,
    Limit,
    Scored,
    outcome_of,
    record_of,
)
from nemo_gym.rollouts.rules import Rule

ROW = {
    "_ng_task_index": 4,
    "_ng_rollout_index": 1,
    "agent_ref": {"type": "responses_api_agents", "name": "a"},
    "skills_ref": {"hash": "h"},
    "question": "?",
}
JOB = Job.of(ROW)
SAID = {"output": [{"type": "message", "role": "assistant", "content": []}]}


def test_a_finite_reward_is_a_score_and_its_record_says_whose():
    outcome = outcome_of(JOB, {"reward": 0.5, "response": SAID, "answer": "x"})

    assert isinstance(outcome, Scored)
    assert record_of(outcome) == {
        "reward": 0.5,
        "response": SAID,
        "answer": "x",
        "_ng_task_index": 4,
        "_ng_rollout_index": 1,
        "agent_ref": ROW["agent_ref"],
        "skills_ref": {"hash": "h"},
    }


@pytest.mark.parametrize("reward", [0, 1, -3.5, True])
def test_numbers_of_any_kind_are_rewards(reward):
    assert isinstance(outcome_of(JOB, {"reward": reward, "response": SAID}), Scored)


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, None, "1.0", [1]])
def test_what_cannot_be_averaged_is_not_a_reward(reward):
    """One NaN in a mean makes the mean NaN; one infinity moves every weight."""
    outcome = outcome_of(JOB, {"reward": reward, "response": SAID})

    assert isinstance(outcome, Failed)
    assert outcome.failure.kind == "invalid_reward"
    assert "reward" not in record_of(outcome)


@pytest.mark.parametrize("reward", [-0.01, 1.5, 100])
def test_a_reward_outside_the_declared_range_is_not_one(reward):
    """A verifier that returns percent where a share is declared would move every mean by a hundred."""
    outcome = outcome_of(JOB, {"reward": reward, "response": SAID}, rule=Rule(reward_range=(0, 1)))

    assert isinstance(outcome, Failed)
    assert outcome.failure.kind == "invalid_reward"
    assert "outside the declared range 0 to 1" in outcome.failure.message


@pytest.mark.parametrize("reward", [0, 0.5, 1, True])
def test_the_ends_of_the_declared_range_belong_to_it(reward):
    assert isinstance(outcome_of(JOB, {"reward": reward, "response": SAID}, rule=Rule(reward_range=(0, 1))), Scored)


@pytest.mark.parametrize("response", [None, {}, {"output": []}, {"output": [], "usage": {"total_tokens": 0}}])
def test_a_rollout_in_which_no_model_call_succeeded_is_never_scored(response):
    """An agent that swallows an outage and has nothing verified turns it into an honest-looking zero."""
    outcome = outcome_of(JOB, {"reward": 0.0, "response": response})

    assert isinstance(outcome, Failed)
    assert (outcome.failure.kind, outcome.failure.phase) == ("model_bad_reply", "model")
    assert "reward" not in record_of(outcome)
    assert isinstance(outcome_of(JOB, {"reward": 0.0, "response": response}, rule=Rule(needs_model=False)), Scored)


def test_more_tokens_than_a_rollout_may_use_is_a_limit():
    used = {"reward": 1.0, "response": {"usage": {"total_tokens": 101}}}

    outcome = outcome_of(JOB, used, max_tokens=100)

    assert isinstance(outcome, Limit)
    assert outcome.which == "tokens"
    assert "reward" not in record_of(outcome)
    assert isinstance(outcome_of(JOB, used, max_tokens=101), Scored)


def test_a_timeout_says_which_deadline_and_how_long_it_took():
    failure = Failure("timeout", "model", "late", "m", which="model_call")

    detail = record_of(Failed(JOB, failure, seconds=1.23456))["_ng_failure"]

    assert (detail["which"], detail["seconds"]) == ("model_call", 1.235)


def test_a_judge_that_failed_is_a_failure_without_a_reward():
    """Judge outages entered training as zeros; the record must not even carry one."""
    outcome = outcome_of(
        JOB,
        {"reward": 0.0, "_ng_failure_class": "judge_failed", "_ng_failure_judge_error": "502", "response": {"id": 1}},
    )
    record = record_of(outcome)

    assert isinstance(outcome, Failed)
    assert "reward" not in record
    assert record["_ng_failure_class"] == "judge_failed"
    assert record["response"] == {"id": 1}, "reverification needs the response"
    assert record["_ng_failure"] == {
        "kind": "judge_failed",
        "phase": "verify",
        "retryable": True,
        "message": "502",
        "whom": "a",
    }
    assert "_ng_failure_terminal" not in record


def test_a_failure_the_agent_calls_terminal_is_not_retried():
    outcome = outcome_of(JOB, {"_ng_failure_class": "task_broken", "_ng_failure_terminal": True})

    assert isinstance(outcome, Failed)
    assert not outcome.failure.retryable
    assert record_of(outcome)["_ng_failure_terminal"] is True


def test_what_shall_not_be_kept_is_as_if_it_never_ran():
    outcome = outcome_of(JOB, {"_ng_no_persist": True, "_ng_failure_class": "killed", "reward": 1.0})

    assert isinstance(outcome, Cancelled)
    assert record_of(outcome)["_ng_no_persist"] is True
    assert "reward" not in record_of(outcome)


def test_a_limit_survives_being_written_and_read():
    stored = record_of(Limit(JOB, "tokens", {"response": 1}))

    assert stored["_ng_failure_terminal"] is True
    again = outcome_of(JOB, stored)
    assert isinstance(again, Limit)
    assert again.which == "tokens"


@pytest.mark.parametrize("answer", [None, [], "no", 3])
def test_an_answer_that_is_no_object_is_the_agents_failure(answer):
    outcome = outcome_of(JOB, answer)

    assert isinstance(outcome, Failed)
    assert (outcome.failure.kind, outcome.failure.whom) == ("agent_error", "a")


def test_a_message_without_end_is_cut():
    record = record_of(Failed(JOB, Failure("internal", "agent", "x" * 10**6, "a")))

    assert len(record["_ng_failure"]["message"]) == 4000


def test_a_later_attempt_says_so():
    again = JOB.again(2)

    assert str(again.key) == "4-1-a2"
    assert again.row["_ng_attempt_index"] == 2
    assert record_of(Scored(again, {"reward": 1}))["_ng_attempt_index"] == 2
    assert "_ng_attempt_index" not in JOB.again(0).row
