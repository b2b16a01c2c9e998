"""What bounds a collection, as it is written in a configuration."""

import pytest
from pydantic import ValidationError

from nemo_gym.rollout_collection import RolloutCollectionConfig
from nemo_gym.rollouts.limit_options import FailureOptions, LimitOptions
from nemo_gym.transport.deadlines import Allowance, CallTimeout, parse_allowance


def test_limits_are_on_without_being_asked_for():
    """A run without configured limits must still end."""
    options = LimitOptions().model_dump()

    # By default, `request_timeout_seconds` limits only calls without a deadline; a cost needs prices.
    assert [name for name, value in options.items() if value is None] == ["request_timeout_seconds", "max_total_cost"]


def test_a_rollout_is_sent_with_its_limits():
    """Servers enforce the limits they receive."""
    options = LimitOptions(
        model_call_timeout_seconds=1,
        tool_call_timeout_seconds=2,
        verify_timeout_seconds=3,
        max_steps_per_rollout=4,
        max_tokens_per_rollout=5,
    )

    assert options.allowance == Allowance(1, 2, 3, 4, 5)


def test_the_request_timeout_shortens_the_timeout_of_every_call_of_a_rollout():
    """A user who sets it expects that no call takes longer; the rollout itself has its own limit."""
    allowance = LimitOptions(
        request_timeout_seconds=8, tool_call_timeout_seconds=5, verify_timeout_seconds=None
    ).allowance

    calls = [
        ("responses_api_models", "/v1/responses"),
        ("resources_servers", "/verify"),
        ("resources_servers", "/tool"),
    ]
    assert [allowance.call_limit(*call)[0] for call in calls] == [8, 8, 5]
    assert allowance.call_limit("responses_api_agents", "/run") == (8, CallTimeout)
    assert parse_allowance(allowance.header_value()) == allowance


@pytest.mark.parametrize("name", LimitOptions.model_fields)
def test_null_switches_a_limit_off_and_nothing_is_no_limit(name):
    """Users must be able to run without a limit."""
    assert getattr(LimitOptions(**{name: None}), name) is None
    for nonsense in (0, -1, "soon"):
        with pytest.raises(ValidationError):
            LimitOptions(**{name: nonsense})


@pytest.mark.parametrize("nonsense", [{"max_failures": 0}, {"max_rollout_attempts": 0}, {"retry_pause_seconds": -1}])
def test_impossible_counts_are_refused(nonsense):
    """Zero attempts would run nothing and look like success."""
    with pytest.raises(ValidationError):
        FailureOptions(**nonsense)


@pytest.mark.parametrize("kind", [LimitOptions, FailureOptions])
def test_every_option_says_what_it_is(kind):
    """The descriptions are the help of `+help=true`."""
    assert not [name for name, field in kind.model_fields.items() if not field.description]


@pytest.mark.parametrize("repeats", ["abc", 0, {"math": 0}, {"math": "many"}, [2]])
def test_wrong_repeats_are_one_problem_without_the_words_of_pydantic(repeats):
    """A union reports each of its halves, with names such as `constrained-int` that no user knows."""
    with pytest.raises(ValidationError) as caught:
        RolloutCollectionConfig(input_jsonl_fpath="i", output_jsonl_fpath="o", num_repeats=repeats)

    (problem,) = caught.value.errors()
    assert problem["loc"] == ("num_repeats",)
    assert f"{repeats!r} is neither a number from 1 nor" in problem["msg"]


@pytest.mark.parametrize(("repeats", "used"), [(None, 1), ("4", 4), ({"math": "8"}, {"math": 8})])
def test_repeats_may_be_text_or_null(repeats, used):
    """Overrides and environment variables are text, and null is the default."""
    config = RolloutCollectionConfig(input_jsonl_fpath="i", output_jsonl_fpath="o", num_repeats=repeats)

    assert config.num_repeats == used
