"""Token fields: fast for what trainers send, exact for everything else."""

import math

import pytest
from pydantic import ValidationError

from nemo_gym.openai_utils import REQUIRED_TOKEN_METADATA_FIELDS, TOKEN_METADATA_FIELDS, TokenIDLogProbMixin


def tokens(**change):
    fields = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.5]}
    return TokenIDLogProbMixin(**{**fields, **change})


def test_the_field_names_are_the_contracts():
    """Trainers look for these names on every item."""
    assert {"prompt_token_ids", "generation_token_ids", "generation_log_probs"} == REQUIRED_TOKEN_METADATA_FIELDS
    assert REQUIRED_TOKEN_METADATA_FIELDS | {"routed_experts"} == TOKEN_METADATA_FIELDS
    assert set(TokenIDLogProbMixin.model_fields) == TOKEN_METADATA_FIELDS


@pytest.mark.parametrize("name", sorted(REQUIRED_TOKEN_METADATA_FIELDS))
@pytest.mark.parametrize(
    "wrong", [None, "12", 3, {"a": 1}, ["x"], [1, None], [[1]], [1, {}], [{}], [b"\xff"], [1, "x"], {1: 2}]
)
def test_what_is_not_a_list_of_numbers_is_refused(name, wrong):
    """The fast check must not let through what the slow one would refuse."""
    with pytest.raises(ValidationError, match=name):
        tokens(**{name: wrong})


@pytest.mark.parametrize("wrong", [[0.5], [1, 0.5], [math.nan], [math.inf]])
def test_a_token_id_is_whole(wrong):
    """Half a token means that ids and log-probabilities were swapped."""
    with pytest.raises(ValidationError):
        tokens(prompt_token_ids=wrong)


def test_numbers_in_another_form_are_converted_as_pydantic_does():
    """Only the usual case is short-cut; the unusual ones behave like any list of numbers."""
    made = tokens(prompt_token_ids=(1, 2), generation_token_ids=["3", 4.0], generation_log_probs=[0, -1])

    assert made.prompt_token_ids == [1, 2]
    assert made.generation_token_ids == [3, 4]
    assert [type(value) for value in made.generation_log_probs] == [float, float]


def test_no_tokens_is_a_list_too():
    """A generation that was cut at once has an empty list, not a missing one."""
    assert tokens(generation_token_ids=[], generation_log_probs=[]).generation_token_ids == []


def test_log_probabilities_without_end_survive_json():
    """A token that was masked has probability zero; `null` in its place could not be read back."""
    made = tokens(generation_log_probs=[-math.inf, -0.5])

    assert TokenIDLogProbMixin.model_validate_json(made.model_dump_json()) == made


@pytest.mark.parametrize("experts", [None, "base64", [[1, 2], [3, 4]]])
def test_routed_experts_are_a_text_or_nested_lists(experts):
    """Inference servers send either."""
    assert tokens(routed_experts=experts).routed_experts == experts
    with pytest.raises(ValidationError):
        tokens(routed_experts=3)


def test_long_lists_are_shared_by_parsing_and_dumping_and_still_written_as_json():
    """A verifier that echoes its request would otherwise copy half a million numbers three times."""
    ids = list(range(5))

    made = tokens(prompt_token_ids=ids)

    assert made.prompt_token_ids is ids
    assert made.model_dump()["prompt_token_ids"] is ids
    assert made.model_dump(mode="json")["prompt_token_ids"] == ids
    assert '"prompt_token_ids":[0,1,2,3,4]' in made.model_dump_json()
    assert TokenIDLogProbMixin.model_json_schema()["properties"]["prompt_token_ids"]["items"] == {"type": "integer"}
