"""What a result must be to count as scored."""

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.rules import Rule, range_problem, rules_of, shows_a_model


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
    assert rules_of(config(environment={"reward_range": [-1, 1]}))["a"].reward_range == (-1, 1)
    assert rules_of(config())["a"] == Rule()


@pytest.mark.parametrize("nonsense", [[], [0], [1, 0], ["0", "1"], [0, 1, 2], [0, True], [None, 1]])
def test_a_range_that_makes_no_sense_is_said_before_anything_runs(nonsense):
    with pytest.raises(ConfigError, match="r: reward_range must be two numbers"):
        rules_of(config(environment={"reward_range": nonsense}))


def test_a_field_of_the_same_name_that_is_no_range_is_left_alone():
    """Server folders from elsewhere have fields of their own; the server itself checks those."""
    assert rules_of(config(environment={"reward_range": "narrow"}))["a"].reward_range is None


def test_an_agent_can_say_that_it_needs_no_model():
    assert not rules_of(config(agent={"needs_model": False}))["a"].needs_model


def test_models_that_only_the_environment_names_are_its_judges():
    """If the judge is the policy itself, nobody can tell whose call it was."""
    judge = {"judges": [{"type": "responses_api_models", "name": "judge"}]}
    same = {"judge": {"type": "responses_api_models", "name": "policy"}}

    assert rules_of(config(environment=judge))["a"].judges == {"judge"}
    assert rules_of(config(environment=same))["a"].judges == frozenset()


def test_the_range_is_told_with_the_reward():
    assert range_problem(2.0, Rule(reward_range=(0, 1))) == "the reward is 2, outside the declared range 0 to 1"
    assert range_problem(2.0, Rule()) is None


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
def test_what_a_model_made_or_used_shows_that_it_answered(record):
    assert shows_a_model(record)


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
def test_without_a_sign_of_a_model_there_is_none(record):
    assert not shows_a_model(record)
