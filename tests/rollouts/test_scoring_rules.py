"""Conditions that a result must meet to be scored."""

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.outcome import Job, ScoringRule, classify_result, shows_model_call
from nemo_gym.rollouts.scoring_rules import scoring_rules
from nemo_gym.wire.stored_rollout import StoredRollout


def config(agent=None, environment=None):
    reference = {"type": "resources_servers", "name": "r"}
    model = {"type": "responses_api_models", "name": "policy"}
    return {
        "policy": {"responses_api_models": {"m": {}}},
        "judge": {"responses_api_models": {"m": {}}},
        "a": {"responses_api_agents": {"x": {"resources_server": reference, "model_server": model, **(agent or {})}}},
        "r": {"resources_servers": {"y": environment or {}}},
        "verbose": True,
    }


def test_an_agent_is_held_to_the_range_its_environment_declares():
    """A reward outside it is a bug of the verifier."""
    assert scoring_rules(config(environment={"reward_range": [-1, 1]}))["a"].reward_range == (-1, 1)
    assert scoring_rules(config())["a"] == ScoringRule(verifier="r")


@pytest.mark.parametrize("nonsense", [[], [0], [1, 0], ["0", "1"], [0, 1, 2], [0, True], [None, 1]])
def test_an_invalid_range_is_refused_before_anything_runs(nonsense):
    """It would fail every rollout."""
    with pytest.raises(ConfigError, match="r: reward_range must be two numbers"):
        scoring_rules(config(environment={"reward_range": nonsense}))


def test_a_field_of_the_same_name_that_is_no_range_is_left_alone():
    """Server folders of other authors have other fields; the server itself checks those."""
    assert scoring_rules(config(environment={"reward_range": "narrow"}))["a"].reward_range is None


def test_an_agent_can_say_that_it_needs_no_model():
    """Scripted agents are tested without a model."""
    assert not scoring_rules(config(agent={"needs_model": False}))["a"].needs_model


def test_models_that_only_the_environment_names_are_its_judges():
    """If the judge is the policy itself, its calls cannot be distinguished from the agent's."""
    judge = {"judges": [{"type": "responses_api_models", "name": "judge"}]}
    same = {"judge": {"type": "responses_api_models", "name": "policy"}}

    assert scoring_rules(config(environment=judge))["a"].judges == {"judge"}
    assert scoring_rules(config(environment=same))["a"].judges == frozenset()


def test_the_message_names_the_reward_and_the_declared_range():
    """The reader sees at once which of the two is wrong."""
    job = Job.of({"_ng_task_index": 0, "_ng_rollout_index": 0, "agent_ref": {"name": "a"}})

    outcome = classify_result(job, {"reward": 2.0}, rule=ScoringRule(reward_range=(0, 1)))

    assert outcome.failure.message == "the reward is 2, outside the declared range 0 to 1"


MESSAGE = {"type": "message", "role": "assistant", "content": []}


@pytest.mark.parametrize(
    "record",
    [
        {"response": {"output": [MESSAGE]}},
        {"response": {"output": [{"role": "assistant", "content": "hi"}]}},
        {"response": {"output": [{"type": "function_call_output"}, {"type": "function_call"}]}},
        {"response": {"output": [{"type": "reasoning"}]}},
        {"response": {"output": [], "usage": {"input_tokens": 3, "output_tokens": 0}}},
        {"ng_model_call_capture": {"calls": [{"response": None}, {"response": {"id": 1}}]}},
    ],
    ids=repr,
)
def test_model_output_or_tokens_show_a_model_call(record):
    """Agents report in different ways."""
    assert shows_model_call(StoredRollout(record))


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"response": None},
        {"response": "text"},
        {"response": {"output": []}},
        {"response": {"output": [{"type": "function_call_output"}]}},
        {"response": {"output": [{"type": "message", "role": "user", "content": "hi"}]}},
        {"response": {"output": [None, 3]}},
        {"response": {"output": [], "usage": {"total_tokens": 0}}},
        {"response": {"output": [], "usage": {"total_tokens": True}}},
        {"ng_model_call_capture": {"calls": [{"response": None, "error": "502"}]}},
    ],
    ids=repr,
)
def test_without_model_output_there_was_no_model_call(record):
    """A reward of 0 for a dead model would enter the mean."""
    assert not shows_model_call(StoredRollout(record))
