"""What an answer means, and how that is stored."""

import math

import pytest

from nemo_gym.rollouts.outcome import (
    CancelledRollout,
    FailedRollout,
    Failure,
    Job,
    LimitedRollout,
    ScoredRollout,
    ScoringRule,
    classify_result,
    outcome_record,
)

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
    """The record must be matched to its row on resume."""
    outcome = classify_result(JOB, {"reward": 0.5, "response": SAID, "answer": "x"})

    assert isinstance(outcome, ScoredRollout)
    assert outcome_record(outcome) == {
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
    """Verifiers return integers and booleans too."""
    assert isinstance(classify_result(JOB, {"reward": reward, "response": SAID}), ScoredRollout)


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, None, "1.0", [1]])
def test_what_cannot_be_averaged_is_not_a_reward(reward):
    """One NaN in a mean makes the mean NaN; one infinity moves every weight."""
    outcome = classify_result(JOB, {"reward": reward, "response": SAID})

    assert isinstance(outcome, FailedRollout)
    assert outcome.failure.kind == "invalid_reward"
    assert "reward" not in outcome_record(outcome)


@pytest.mark.parametrize("reward", [-0.01, 1.5, 100])
def test_a_reward_outside_the_declared_range_is_not_one(reward):
    """A verifier that returns percent where a share is declared would move every mean by a hundred."""
    outcome = classify_result(JOB, {"reward": reward, "response": SAID}, rule=ScoringRule(reward_range=(0, 1)))

    assert isinstance(outcome, FailedRollout)
    assert outcome.failure.kind == "invalid_reward"
    assert "outside the declared range 0 to 1" in outcome.failure.message


@pytest.mark.parametrize("reward", [0, 0.5, 1, True])
def test_the_ends_of_the_declared_range_belong_to_it(reward):
    """Most rewards are exactly 0 or 1."""
    assert isinstance(
        classify_result(JOB, {"reward": reward, "response": SAID}, rule=ScoringRule(reward_range=(0, 1))), ScoredRollout
    )


@pytest.mark.parametrize("response", [None, {}, {"output": []}, {"output": [], "usage": {"total_tokens": 0}}])
def test_a_rollout_in_which_no_model_call_succeeded_is_never_scored(response):
    """An agent that swallows an outage and has nothing verified turns it into an honest-looking zero."""
    outcome = classify_result(JOB, {"reward": 0.0, "response": response})

    assert isinstance(outcome, FailedRollout)
    assert (outcome.failure.kind, outcome.failure.phase) == ("model_bad_reply", "model")
    assert "reward" not in outcome_record(outcome)
    assert isinstance(
        classify_result(JOB, {"reward": 0.0, "response": response}, rule=ScoringRule(needs_model=False)), ScoredRollout
    )


def test_more_tokens_than_a_rollout_may_use_is_a_limit():
    """It is not an error, and a retry would end the same way."""
    used = {"reward": 1.0, "response": {"usage": {"total_tokens": 101}}}

    outcome = classify_result(JOB, used, max_tokens=100)

    assert isinstance(outcome, LimitedRollout)
    assert outcome.limit_name == "tokens"
    assert "reward" not in outcome_record(outcome)
    assert isinstance(classify_result(JOB, used, max_tokens=101), ScoredRollout)


def test_a_timeout_says_which_deadline_and_how_long_it_took():
    """The user must know which limit to raise."""
    failure = Failure("timeout", "model", "late", "m", deadline_name="model_call")

    detail = outcome_record(FailedRollout(JOB, failure, seconds=1.23456))["_ng_failure"]

    assert (detail["which"], detail["seconds"]) == ("model_call", 1.235)


def test_a_judge_that_failed_is_a_failure_without_a_reward():
    """Judge outages entered training as zeros; the record must not even carry one."""
    outcome = classify_result(
        JOB,
        {"reward": 0.0, "_ng_failure_class": "judge_failed", "_ng_failure_judge_error": "502", "response": {"id": 1}},
    )
    record = outcome_record(outcome)

    assert isinstance(outcome, FailedRollout)
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
    """The agent knows that a retry is useless."""
    outcome = classify_result(JOB, {"_ng_failure_class": "task_broken", "_ng_failure_terminal": True})

    assert isinstance(outcome, FailedRollout)
    assert not outcome.failure.retryable
    assert outcome_record(outcome)["_ng_failure_terminal"] is True


def test_a_result_that_must_not_be_stored_is_cancelled():
    """It is run again on resume."""
    outcome = classify_result(JOB, {"_ng_no_persist": True, "_ng_failure_class": "killed", "reward": 1.0})

    assert isinstance(outcome, CancelledRollout)
    assert outcome_record(outcome)["_ng_no_persist"] is True
    assert "reward" not in outcome_record(outcome)


def test_a_prompt_that_did_not_fit_is_a_limit_even_if_the_agent_scored_it():
    """An agent that does not know the mark of the model server verifies an empty answer and gets a zero."""
    details = {"reason": "max_output_tokens", "which": "context_length"}
    outcome = classify_result(JOB, {"reward": 0.0, "response": {**SAID, "incomplete_details": details}})

    assert isinstance(outcome, LimitedRollout)
    assert outcome.limit_name == "context_length"
    assert "reward" not in outcome_record(outcome)


def test_a_limit_survives_being_written_and_read():
    """Resume compares it with the new limit."""
    stored = outcome_record(LimitedRollout(JOB, "tokens", {"response": 1}))

    assert stored["_ng_failure_terminal"] is True
    again = classify_result(JOB, stored)
    assert isinstance(again, LimitedRollout)
    assert again.limit_name == "tokens"


@pytest.mark.parametrize("answer", [None, [], "no", 3])
def test_an_answer_that_is_no_object_is_the_agents_failure(answer):
    """The collector must not crash on it."""
    outcome = classify_result(JOB, answer)

    assert isinstance(outcome, FailedRollout)
    assert (outcome.failure.kind, outcome.failure.server) == ("agent_error", "a")


def test_a_long_message_is_cut():
    """A traceback of megabytes would fill the failures file."""
    record = outcome_record(FailedRollout(JOB, Failure("internal", "agent", "x" * 10**6, "a")))

    assert len(record["_ng_failure"]["message"]) == 4000


def test_the_record_has_its_attempt():
    """Retried rollouts are counted separately in the scores."""
    again = JOB.with_attempt(2)

    assert str(again.key) == "4-1-a2"
    assert again.row["_ng_attempt_index"] == 2
    assert outcome_record(ScoredRollout(again, {"reward": 1}))["_ng_attempt_index"] == 2
    assert "_ng_attempt_index" not in JOB.with_attempt(0).row


@pytest.mark.parametrize(("role", "kind"), [(None, ScoredRollout), ("", ScoredRollout), ("user", FailedRollout)])
def test_a_message_without_a_role_is_model_output(role, kind):
    """Some engines write `role: null`; their scored rollouts failed as if no model call had succeeded."""
    response = {"output": [{"type": "message", "role": role, "content": []}]}

    assert isinstance(classify_result(JOB, {"reward": 0.5, "response": response}), kind)
