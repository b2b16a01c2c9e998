"""Which class an item becomes, and what an item may not be."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from nemo_gym.openai_utils import (
    RESPONSES_TO_TRAIN,
    NeMoGymEasyInputMessage,
    NeMoGymEasyInputMessageForTraining,
    NeMoGymFunctionCallOutput,
    NeMoGymMcpCall,
    NeMoGymMessage,
    NeMoGymMessageForTraining,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseFunctionToolCallForTraining,
    NeMoGymResponseInputItem,
    NeMoGymResponseOutputItem,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseOutputMessageForTraining,
    NeMoGymResponseOutputText,
    NeMoGymResponseReasoningItem,
    NeMoGymResponseReasoningItemForTraining,
    training_variant_of,
)
from nemo_gym.wire.hosted_tool_calls import HOSTED_ITEMS, ProviderItem

INPUT: TypeAdapter[Any] = TypeAdapter(NeMoGymResponseInputItem)
OUTPUT: TypeAdapter[Any] = TypeAdapter(NeMoGymResponseOutputItem)
TOKENS = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}
SAID = [{"type": "output_text", "text": "four", "annotations": []}]
ASKED = [{"type": "input_text", "text": "2 + 2?"}]
CALL = {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"}
THOUGHT = {"type": "reasoning", "id": "r", "summary": []}


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"role": "user", "content": "2 + 2?"}, NeMoGymEasyInputMessage),
        ({"role": "user", "content": ASKED}, NeMoGymEasyInputMessage),
        ({"type": "message", "role": "system", "content": "be brief"}, NeMoGymEasyInputMessage),
        ({"role": "assistant", "content": "four"}, NeMoGymEasyInputMessage),
        ({"role": "assistant", "content": SAID}, NeMoGymEasyInputMessage),
        ({"role": "assistant", "content": ASKED, "id": "m"}, NeMoGymEasyInputMessage),
        ({"role": "user", "content": "2 + 2?", "status": "completed"}, NeMoGymEasyInputMessage),
        ({"role": "user", "content": ASKED, "status": "completed"}, NeMoGymMessage),
        ({"type": "message", "role": "assistant", "content": SAID, "id": "m"}, NeMoGymResponseOutputMessage),
        ({"role": "assistant", "content": [], "id": "m", "status": "completed"}, NeMoGymResponseOutputMessage),
        (CALL, NeMoGymResponseFunctionToolCall),
        ({"type": "function_call_output", "call_id": "c", "output": "4"}, NeMoGymFunctionCallOutput),
        (THOUGHT, NeMoGymResponseReasoningItem),
        ({"role": "assistant", "content": "four", **TOKENS}, NeMoGymEasyInputMessageForTraining),
        ({"role": "user", "content": ASKED, "status": "completed", **TOKENS}, NeMoGymMessageForTraining),
        ({"role": "assistant", "content": SAID, "id": "m", **TOKENS}, NeMoGymResponseOutputMessageForTraining),
        ({**CALL, **TOKENS}, NeMoGymResponseFunctionToolCallForTraining),
        ({**THOUGHT, **TOKENS}, NeMoGymResponseReasoningItemForTraining),
    ],
)
def test_an_item_becomes_the_class_its_form_asks_for(item, expected):
    """Servers tell items apart with isinstance; the dump must give back exactly what was sent."""
    validated = INPUT.validate_python(item)

    assert type(validated) is expected
    assert validated.model_dump(exclude_unset=True) == item


def test_every_hosted_item_is_reached_by_its_type():
    """A union member without a tag would reject what the contract accepts."""
    for item_class in HOSTED_ITEMS:
        with pytest.raises(ValidationError) as caught:
            INPUT.validate_python({"type": item_class.wire_tag})

        assert all(error["loc"][0] == item_class.wire_tag for error in caught.value.errors())


def test_an_mcp_call_needs_no_id():
    """Some servers leave the id out; the contract relaxes it."""
    item = {"type": "mcp_call", "name": "search", "arguments": "{}", "server_label": "s"}

    assert type(INPUT.validate_python(item)) is NeMoGymMcpCall


def test_an_unknown_type_is_an_error_that_names_it():
    """Dropping an item silently would change the conversation."""
    for union in (INPUT, OUTPUT):
        with pytest.raises(ValidationError, match="Unknown item type 'telepathy'"):
            union.validate_python({"type": "telepathy"})


def test_a_providers_newer_item_is_kept_whole():
    """A response must not be lost because of an item type we give no meaning to, nor a request that sends it back."""
    item = {"type": "compaction", "id": "c", "encrypted_content": "abc"}

    for union in (INPUT, OUTPUT):
        kept = union.validate_python(item)
        assert type(kept) is ProviderItem
        assert kept.model_dump(exclude_unset=True) == item
    assert type(INPUT.validate_python({"type": "item_reference", "id": "m"})) is ProviderItem
    assert INPUT.validate_python({"id": "m"}).type == "item_reference", "the type is optional in OpenAI's API"
    with pytest.raises(ValidationError, match="Unknown item type 'item_reference'"):
        OUTPUT.validate_python({"type": "item_reference", "id": "m"})


def test_reasoning_is_sent_back_without_an_id():
    """Clients that store nothing at the provider remove the ids; the endpoint must not get an invented one."""
    item = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}

    assert INPUT.validate_python(item).model_dump(exclude_unset=True) == item


def test_an_output_item_must_have_a_type_and_an_input_item_at_least_a_role():
    """The short form of a message is for people who write requests, not for what a model answers."""
    with pytest.raises(ValidationError, match="must have `type`"):
        OUTPUT.validate_python({"role": "assistant", "content": "four"})
    with pytest.raises(ValidationError, match="must have `type`, or `role` and `content`"):
        INPUT.validate_python({"content": "four"})


@pytest.mark.parametrize("field", [*TOKENS, "routed_experts"])
@pytest.mark.parametrize(
    "item", [{"role": "assistant", "content": "four"}, {"type": "function_call_output", "call_id": "c", "output": "4"}]
)
def test_half_a_set_of_token_fields_is_refused(item, field):
    """A trainer would read a partial set as none and learn from the wrong tokens."""
    value = TOKENS.get(field, "experts")

    with pytest.raises(ValidationError, match="Token fields belong together"):
        INPUT.validate_python({**item, field: value})


def test_token_fields_that_are_null_count_as_absent():
    """Servers that can report tokens write null when they were not asked to."""
    item = {"role": "assistant", "content": "four", "prompt_token_ids": None}

    assert type(INPUT.validate_python(item)) is NeMoGymEasyInputMessage


def test_objects_keep_their_class_and_identity():
    """An agent appends the items it got; validating them again must not rebuild or change them."""
    for item in (
        NeMoGymEasyInputMessage(role="user", content="hi"),
        NeMoGymResponseOutputMessageForTraining(id="m", content=[], **TOKENS),
    ):
        assert INPUT.validate_python(item) is item


def test_token_fields_on_an_object_without_them_find_the_training_class():
    """`extra` would otherwise hide them, and a dump would validate differently than the object."""
    plain = NeMoGymResponseFunctionToolCall(call_id="c", name="add", arguments="{}", **TOKENS)

    assert type(INPUT.validate_python(plain)) is NeMoGymResponseFunctionToolCallForTraining


def test_training_variants_cover_what_a_model_generates_and_nothing_else():
    """A wrong variant would attach tokens to something the model did not write."""
    for base, variant in RESPONSES_TO_TRAIN.items():
        assert training_variant_of(base) is variant
        assert issubclass(variant, base)
    with pytest.raises(NotImplementedError, match="NeMoGymFunctionCallOutput"):
        training_variant_of(NeMoGymFunctionCallOutput)


def test_an_object_built_by_keyword_can_be_read_back_from_its_given_fields():
    """Clients send only what was field; without its type an item would be refused on the other side."""
    built = [
        NeMoGymMessage(role="user", content=ASKED),
        NeMoGymResponseOutputMessage(id="m", content=[NeMoGymResponseOutputText(text="four")]),
        NeMoGymResponseFunctionToolCall(call_id="c", name="add", arguments="{}"),
        NeMoGymFunctionCallOutput(call_id="c", output="4"),
        NeMoGymResponseReasoningItem(id="r", summary=[]),
    ]

    for item in built:
        again = OUTPUT.validate_python(item.model_dump(exclude_unset=True))
        assert type(again) is type(item)
        assert again.model_dump() == item.model_dump()


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"call_id": "c", "output": "4"}, NeMoGymFunctionCallOutput),
        ({"call_id": "c", "name": "add", "arguments": "{}"}, NeMoGymResponseFunctionToolCall),
        ({"id": "r", "summary": []}, NeMoGymResponseReasoningItem),
        ({"id": "m", "content": [{"text": "four", "type": "output_text"}]}, NeMoGymResponseOutputMessage),
    ],
)
def test_an_input_item_without_type_is_what_its_fields_say(item, expected):
    """Rows written for the old union, which tried every class, carry such items."""
    validated = INPUT.validate_python(item)

    assert type(validated) is expected
    assert {**item, "type": validated.type}.items() <= validated.model_dump(exclude_unset=True).items()
