"""Pydantic objects as plain dictionaries."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from nemo_gym.convert.json_access import to_dict
from nemo_gym.wire.base import (
    REQUIRED_TOKEN_FIELDS,
    REQUIRED_TOKEN_METADATA_FIELDS,
    TOKEN_FIELDS,
    TOKEN_METADATA_FIELDS,
)
from nemo_gym.wire.responses import NeMoGymResponseFunctionToolCall, NeMoGymResponseOutputMessageForTraining


class Form(BaseModel):
    model_config = ConfigDict(extra="allow", populate_by_name=True)

    body: dict[str, Any] = Field(default={}, alias="schema")
    left_out: int = 3


def test_only_set_fields_are_kept_under_their_wire_name() -> None:
    """Defaults that the user never set would override those of the provider."""
    assert to_dict(Form(schema={"a": [Form()]}, extra=1)) == {
        "schema": {"a": [{}]},
        "extra": 1,
    }


def test_an_items_type_is_kept_even_when_left_to_its_default() -> None:
    """Items are built by keyword without it; a dict without it could be anything."""
    call = NeMoGymResponseFunctionToolCall(arguments="{}", call_id="c", name="f")

    assert to_dict(call) == {"arguments": "{}", "call_id": "c", "name": "f", "type": "function_call"}


def test_token_arrays_are_shared_not_copied() -> None:
    """They are the bulk of a rollout; copying them once per turn is most of the time spent here."""
    item = NeMoGymResponseOutputMessageForTraining(
        id="m", content=[], prompt_token_ids=[1], generation_token_ids=[2], generation_log_probs=[-1.0]
    )

    assert to_dict([item])[0]["prompt_token_ids"] is item.prompt_token_ids


def test_the_token_fields_are_those_of_the_wire_types() -> None:
    """Two lists that differ would lose a field on its way to the trainer."""
    assert set(TOKEN_FIELDS) == TOKEN_METADATA_FIELDS
    assert set(REQUIRED_TOKEN_FIELDS) == REQUIRED_TOKEN_METADATA_FIELDS
