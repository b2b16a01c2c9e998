"""The law of the wire types: what came in goes out, as objects and as JSON."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)

Values = st.SearchStrategy[Any]
text = st.text(st.characters(codec="utf-8"), max_size=8)
number = st.floats(allow_nan=False, allow_infinity=False)
count = st.integers(0, 10**12)
leaf = st.none() | st.booleans() | count | number | text
free = st.recursive(leaf, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(text, inner, max_size=2))
unknown = st.dictionaries(st.sampled_from(["x_new", "phase", "agent", "_meta"]), free, max_size=2)
status = st.sampled_from(["in_progress", "completed", "incomplete"])


def given_as(value: Any) -> Values:
    return value if isinstance(value, st.SearchStrategy) else st.just(value)


def obj(required: dict[str, Any], optional: dict[str, Any] | None = None, extra: Any = unknown) -> Values:
    """Objects with all required and some optional fields, and some undeclared ones."""
    fields = {name: given_as(value) for name, value in required.items()}
    declared = st.fixed_dictionaries(fields, optional=optional or {})
    return st.builds(lambda declared_fields, more: {**more, **declared_fields}, declared, extra)


tokens = st.just({}) | st.fixed_dictionaries(
    {
        "prompt_token_ids": st.lists(count, max_size=3),
        "generation_token_ids": st.lists(count, max_size=3),
        "generation_log_probs": st.lists(number, max_size=3),
    },
    optional={"routed_experts": text | st.lists(st.lists(count, max_size=2), max_size=2)},
)


def with_tokens(strategy: Values) -> Values:
    return st.builds(lambda item, extra: {**item, **extra}, strategy, tokens)


annotation = obj({"type": "url_citation"}, {"url": text, "start_index": count})
output_text = obj({"type": "output_text", "text": text, "annotations": st.lists(annotation, max_size=1)})
refusal = obj({"type": "refusal", "refusal": text})
input_part = st.one_of(
    obj({"type": "input_text", "text": text}),
    obj({"type": "input_image"}, {"image_url": text, "detail": st.sampled_from(["low", "auto"])}),
    obj({"type": "input_file"}, {"file_id": text, "filename": text | st.none()}),
    obj({"type": "input_video", "video_url": st.just("https://x/v.mp4")}),
)
parts = st.lists(input_part, max_size=2)
role = st.sampled_from(["user", "system", "developer"])
short_message = obj({"role": role | st.just("assistant"), "content": text | parts}, {"type": st.just("message")})
stored_message = obj({"role": role, "content": parts, "status": status, "type": "message"})
output_message = with_tokens(
    obj(
        {"id": text, "type": "message", "role": "assistant", "content": st.lists(output_text | refusal, max_size=2)},
        {"status": status},
    )
)
other_item = st.one_of(
    with_tokens(
        obj(
            {"type": "function_call", "call_id": text, "name": text, "arguments": text},
            {"id": text | st.none(), "status": status},
        )
    ),
    obj({"type": "function_call_output", "call_id": text, "output": text | parts}, {"id": text, "status": status}),
    with_tokens(
        obj(
            {
                "type": "reasoning",
                "id": text,
                "summary": st.lists(obj({"type": "summary_text", "text": text}), max_size=2),
            },
            {"encrypted_content": text | st.none()},
            extra=st.just({}),
        )
    ),
    obj({"type": "mcp_call", "name": text, "arguments": text, "server_label": text}, {"id": text, "error": free}),
    obj({"type": "web_search_call", "id": text, "status": "completed", "action": obj({"type": "search"})}),
    obj({"type": "custom_tool_call", "call_id": text, "name": text, "input": text}),
)
function_tool = obj(
    {"type": "function", "name": text},
    {"parameters": st.dictionaries(text, free, max_size=2) | st.none(), "strict": st.booleans()},
    extra=st.just({}),
)
usage = obj(
    {"input_tokens": count, "output_tokens": count, "total_tokens": count},
    {"input_tokens_details": obj({}, {"cached_tokens": count}) | st.none()},
)
response = obj(
    {
        "id": text,
        "created_at": number,
        "model": text,
        "object": "response",
        "output": st.lists(output_message | other_item, max_size=3),
        "parallel_tool_calls": st.booleans(),
        "tool_choice": st.sampled_from(["auto", "none"]) | obj({"type": "function", "name": text}),
        "tools": st.lists(function_tool, max_size=1),
    },
    {
        "usage": usage | st.none(),
        "status": st.just("completed"),
        "metadata": st.dictionaries(text, text, max_size=2),
        "instructions": text | st.lists(short_message, max_size=1) | st.none(),
        "reasoning": obj({}, {"effort": text}),
        "text": obj({"format": obj({"type": "text"})}),
        "incomplete_details": obj({"reason": text}) | st.none(),
    },
)
request = obj(
    {"input": text | st.lists(short_message | stored_message | output_message | other_item, max_size=3)},
    {
        "instructions": text | st.none(),
        "tools": st.lists(function_tool, max_size=2),
        "tool_choice": st.sampled_from(["auto", "required"]) | obj({"type": "function", "name": text}, {}, st.just({})),
        "temperature": number | st.none(),
        "metadata": st.dictionaries(text, text, max_size=2) | st.none(),
        "stream": st.none() | st.just(False),
        "reasoning": obj({}, {"effort": st.sampled_from(["low", "high"])}, st.just({})),
    },
    extra=st.just({}),
)
chat_call = obj({"id": text, "type": "function", "function": obj({"name": text, "arguments": text})})
chat_part = obj({"type": "text", "text": text}) | obj({"type": "image_url", "image_url": obj({"url": text})})
chat_message = st.one_of(
    obj({"role": role, "content": text | st.lists(chat_part, max_size=2)}),
    obj({"role": "tool", "tool_call_id": text, "content": text}),
    with_tokens(
        obj({"role": "assistant"}, {"content": text | st.none(), "tool_calls": st.lists(chat_call, max_size=2)})
    ),
)
chat_request = obj(
    {"messages": st.lists(chat_message, max_size=3)},
    {"model": text, "stop": text | st.lists(text, max_size=2), "seed": count},
    extra=st.just({}),
)
answer = with_tokens(
    obj({"role": "assistant"}, {"content": text | st.none(), "tool_calls": st.lists(chat_call, max_size=2) | st.none()})
)
completion = obj(
    {
        "id": text,
        "created": count,
        "model": text,
        "object": "chat.completion",
        "choices": st.lists(obj({"index": count, "finish_reason": "stop", "message": answer}), max_size=2),
    }
)


def check_law(model: Any, payload: Any) -> None:
    parsed = model.model_validate(payload)

    assert parsed.model_dump(exclude_unset=True) == payload
    written = parsed.model_dump_json(exclude_unset=True)
    assert json.loads(written) == payload
    assert model.model_validate_json(written).model_dump(exclude_unset=True) == payload
    full = model.model_validate(parsed.model_dump())
    assert full.model_dump() == parsed.model_dump()


@settings(max_examples=40, deadline=None)
@given(response)
def test_a_response_goes_out_as_it_came_in(payload):
    """Every hop between servers parses and writes it; a change per hop would add up."""
    check_law(NeMoGymResponse, payload)


@settings(max_examples=60, deadline=None)
@given(request)
def test_a_request_goes_out_as_it_came_in(payload):
    """What the dataset says is what the model gets."""
    check_law(NeMoGymResponseCreateParamsNonStreaming, payload)


@settings(max_examples=50, deadline=None)
@given(chat_request)
def test_a_chat_request_goes_out_as_it_came_in(payload):
    """The same for the other dialect."""
    check_law(NeMoGymChatCompletionCreateParamsNonStreaming, payload)


@settings(max_examples=50, deadline=None)
@given(completion)
def test_a_chat_completion_goes_out_as_it_came_in(payload):
    """The same for the other dialect."""
    check_law(NeMoGymChatCompletion, payload)
