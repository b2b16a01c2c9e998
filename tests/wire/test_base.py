"""The two rules all wire types share: other packages' objects are opened, free-form values can be written again."""

from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseUsage,
)
from nemo_gym.wire.base import MAX_DEPTH, Json, OpenDict, WireModel


class ForeignText(BaseModel):
    """Stands for another package's class: same names, own defaults, an alias."""

    model_config = ConfigDict(extra="allow")

    text: str
    type: Literal["output_text"]
    annotations: list[Any] = []
    logprobs: list[Any] | None = None


class ForeignMessage(BaseModel):
    model_config = ConfigDict(extra="allow", populate_by_name=True)

    id: str
    content: list[ForeignText]
    role: str
    type: Literal["message"]
    status: str | None = None
    async_: bool | None = Field(default=None, alias="async")


class ForeignUsage(BaseModel):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    cost: float = 0.0


MESSAGE = ForeignMessage(
    id="m", role="assistant", type="message", content=[ForeignText(text="4", type="output_text")], async_=True
)
PLAIN = {
    "id": "m",
    "role": "assistant",
    "type": "message",
    "content": [{"text": "4", "type": "output_text"}],
    "async": True,
}


class Envelope(WireModel):
    inner: WireModel | None = None


def test_a_foreign_object_is_taken_for_the_fields_it_was_given():
    """Its unset defaults are that package's opinion; sending them on would change the request."""
    request = NeMoGymResponseCreateParamsNonStreaming(input=[MESSAGE])

    assert request.model_dump(exclude_unset=True) == {"input": [PLAIN]}


def test_foreign_objects_are_opened_inside_dictionaries_and_extras_too():
    """Code mixes what it got from a client with what it wrote itself."""
    usage = ForeignUsage(input_tokens=1, output_tokens=2, total_tokens=3)
    response = NeMoGymResponse(
        id="r",
        created_at=1,
        model="m",
        object="response",
        output=[{**PLAIN, "content": [MESSAGE.content[0]]}],
        parallel_tool_calls=True,
        tool_choice="auto",
        tools=[],
        usage=usage,
        audit=MESSAGE,
    )

    assert response.output_text == "4"
    assert response.usage == NeMoGymResponseUsage(input_tokens=1, output_tokens=2, total_tokens=3)
    assert response.model_dump(exclude_unset=True)["audit"] == PLAIN


def test_an_object_of_ours_stays_the_same_object():
    """Opening our own would lose the class and cost time on every hop."""
    inner = WireModel(x=1)

    assert Envelope(inner=inner).inner is inner


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        1.5,
        "text",
        {"a": [1, {"b": None}]},
        [[[[]]]],
        {"clé": "日本", "emoji": "😀"},
    ],
)
def test_free_form_values_pass_as_they_are(value):
    """They belong to the sender."""
    assert WireModel(x=value).model_dump() == {"x": value}


def test_a_shared_part_is_not_a_cycle():
    """The same schema used twice in a document is common; a document inside itself cannot be written."""
    shared = {"type": "string"}
    knot: list[Any] = []
    knot.append(knot)

    WireModel(x=[shared] * 1000)
    with pytest.raises(ValidationError, match=f"more than {MAX_DEPTH} levels"):
        WireModel(x=knot)


def too_deep() -> Any:
    value: Any = 1
    for _ in range(MAX_DEPTH + 1):
        value = [value]
    return value


def test_an_open_dictionary_checks_its_unknown_keys_like_a_model():
    """Otherwise a value too deep to be written would pass in a content part and fail in an item."""

    class Part(OpenDict):
        text: str

    parts = TypeAdapter(list[Part])

    assert parts.validate_python([{"text": "a", "x": 1}]) == [{"text": "a", "x": 1}]
    with pytest.raises(ValidationError, match="levels deep"):
        parts.validate_python([{"text": "a", "x": too_deep()}])
    with pytest.raises(ValidationError, match="text"):
        parts.validate_python([{"x": 1}])


def test_json_values_are_checked_wherever_the_alias_stands():
    """The alias is what the modules use; it must carry the rule with it."""
    with pytest.raises(ValidationError, match="levels deep"):
        TypeAdapter(Json).validate_python(too_deep())


def test_a_schema_can_be_generated_for_the_api_docs():
    """Every server's `/openapi.json` includes these types."""
    for model in (NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming):
        assert model.model_json_schema()["type"] == "object"


class TaggedModel(WireModel):
    type: Literal["tagged"] = "tagged"
    x: int = 0


def test_parsing_does_not_run_the_constructor_and_building_by_keyword_does():
    """`__pydantic_base_init__` is private to pydantic: without it, parsed objects would gain fields."""
    assert TaggedModel.model_validate({"x": 1}).model_fields_set == {"x"}
    assert TaggedModel(x=1).model_fields_set == {"x", "type"}


INVALID_ITEMS = [7] * 1000
ANSWERS_WITH_MANY_PROBLEMS = [
    (NeMoGymResponse, {"output": INVALID_ITEMS}),
    (NeMoGymResponse, {"output": [{"type": "message", "content": INVALID_ITEMS}]}),
    (NeMoGymResponse, {"tools": INVALID_ITEMS}),
    (NeMoGymChatCompletion, {"choices": INVALID_ITEMS}),
    (NeMoGymChatCompletion, {"choices": [{"message": {"role": "assistant", "tool_calls": INVALID_ITEMS}}]}),
    (NeMoGymResponseCreateParamsNonStreaming, {"input": INVALID_ITEMS}),
    (NeMoGymResponseCreateParamsNonStreaming, {"input": [{"role": "user", "content": INVALID_ITEMS}]}),
]


@pytest.mark.parametrize(("model", "value"), ANSWERS_WITH_MANY_PROBLEMS, ids=range(7))
def test_a_list_reports_its_first_invalid_item_only(model, value):
    """A million invalid items in an answer of two megabytes took a cell five seconds and two gigabytes to explain."""
    with pytest.raises(ValidationError) as caught:
        model.model_validate(value)

    assert caught.value.error_count() < 60
