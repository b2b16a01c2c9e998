"""Whatever arrives is accepted and can be written out again, or is one ValidationError. Nothing else ever happens."""

import copy
import math
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from nemo_gym.anthropic_utils import NeMoGymAnthropicMessage, NeMoGymAnthropicMessageCreateParamsNonStreaming
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.rollout_observability import AgentObservationBundle
from nemo_gym.wire.base import MAX_DEPTH
from nemo_gym.wire.call_reply import encode_model

TOKENS = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.5], "routed_experts": [[1]]}
ITEMS = [
    {"role": "user", "content": [{"type": "input_text", "text": "hi"}, {"type": "input_video", "video": "v"}]},
    {
        "type": "message",
        "id": "m",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "4", "annotations": [{"type": "a"}], "logprobs": None}],
        **TOKENS,
    },
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "id": "i", "status": "completed"},
    {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "4"}]},
    {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "t"}], "x": {"y": [1]}},
    {"type": "mcp_list_tools", "server_label": "s", "tools": [{"name": "n", "input_schema": {"type": "object"}}]},
]
TOOL = {"type": "function", "name": "f", "parameters": {"properties": {"a": {"type": "string"}}}, "strict": True}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
PAYLOADS: list[tuple[type[BaseModel], dict[str, Any]]] = [
    (
        NeMoGymResponse,
        {
            "id": "r",
            "created_at": 1.0,
            "model": "m",
            "object": "response",
            "output": [{"type": "message", **ITEMS[0]}, *ITEMS[1:]],
            "parallel_tool_calls": True,
            "tool_choice": {"type": "function", "name": "f"},
            "tools": [TOOL],
            "metadata": {"a": "b"},
            "usage": {
                "input_tokens": 1,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": 1,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": 2,
            },
            "prompt": {"id": "p", "variables": {"a": "b"}},
            "text": {"format": {"type": "text"}},
        },
    ),
    (
        NeMoGymResponseCreateParamsNonStreaming,
        {
            "input": ITEMS,
            "tools": [TOOL, {"type": "mcp", "server_label": "s", "headers": {"a": "b"}}],
            "tool_choice": {"type": "function", "name": "f"},
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
            "reasoning": {"effort": "low"},
            "prompt": {"id": "p", "variables": {"a": "b"}},
            "metadata": {"a": "b"},
            "temperature": 0.5,
            "include": ["x"],
            "max_output_tokens": 3,
        },
    ),
    (
        NeMoGymChatCompletionCreateParamsNonStreaming,
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]},
                {"role": "assistant", "content": None, "tool_calls": [CALL], **TOKENS},
                {"role": "tool", "tool_call_id": "c", "content": "4"},
            ],
            "model": "m",
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
            "response_format": {"type": "text"},
            "logit_bias": {"1": 2},
            "stop": ["a"],
        },
    ),
    (
        NeMoGymChatCompletion,
        {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "logprobs": {"content": [{"token": "a", "logprob": -1.0}]},
                    "message": {"role": "assistant", "content": "4", "tool_calls": [CALL], **TOKENS},
                }
            ],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        },
    ),
    (
        NeMoGymAnthropicMessageCreateParamsNonStreaming,
        {
            "model": "m",
            "max_tokens": 1,
            "messages": [{"role": "user", "content": [{"type": "tool_use", "id": "t", "name": "n", "input": {}}]}],
            "system": [{"type": "text", "text": "s"}],
            "tools": [{"name": "n", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "auto"},
        },
    ),
    (
        NeMoGymAnthropicMessage,
        {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [{"type": "text", "text": "4"}, {"type": "tool_use", "id": "t", "name": "n", "input": {"a": 1}}],
            "usage": {"input_tokens": 1, "output_tokens": 1},
        },
    ),
    (
        AgentObservationBundle,
        {
            "source": "s",
            "records": [
                {"kind": "agent_invocation", "invocation_id": "i", "model_calls": [{"model_call_id": "c"}]},
                {"kind": "tool_call", "invocation_id": "i", "tool_call_id": "t"},
            ],
            "gaps": [{"code": "g"}],
        },
    ),
]


def nested_value(depth: int, kind: str = "list") -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind == "list" else {"a": value}
    return value


def cyclic() -> Any:
    knot: list[Any] = []
    knot.extend([knot, knot, {"again": knot}])
    return knot


HOSTILE: list[Any] = [
    math.nan,
    math.inf,
    10**400,
    -(10**400),
    10**5000,
    "\ud800",
    ["\ud800"],
    {"\ud800": 1},
    "\x00",
    b"\xff",
    nested_value(50_000),
    nested_value(50_000, "dict"),
    nested_value(MAX_DEPTH),
    nested_value(MAX_DEPTH + 1),
    cyclic(),
    {},
    [],
    {"type": []},
    {"type": {"type": "type"}},
    {1: 2},
    {"role": []},
    {"content": "x"},
    {"model_fields": 1, "__class__": 2, "wire_tag": 3, "model_dump": 4},
    object(),
]
hostile = st.sampled_from(range(len(HOSTILE)))
surprising = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["type", "role", "content", "id", "a"]) | st.text(max_size=2), inner, max_size=3
        )
    ),
    max_leaves=5,
)


def payload_paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a payload where something else could stand."""
    paths = [path]
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        paths.extend(payload_paths(child, (*path, key)))
    return paths


def with_value(payload: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    changed = copy.deepcopy(payload)
    target = changed
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return changed


def accept_or_explain(model: type[BaseModel], body: Any) -> None:
    try:
        parsed = model.model_validate(body)
    except ValidationError as error:
        assert all(problem["msg"] for problem in error.errors(include_input=False))
    else:
        model.model_validate(parsed.model_dump())
        encode_model(parsed)


def test_the_payloads_that_get_broken_are_whole():
    """Breaking what is already broken would test nothing."""
    for model, payload in PAYLOADS:
        model.model_validate(payload)


JSON_WRITABLE = [value for value in HOSTILE if type(value) not in (bytes, object) and value != 10**5000]


@pytest.mark.parametrize(("model", "payload"), PAYLOADS, ids=lambda part: getattr(part, "__name__", ""))
def test_every_field_withstands_every_hostile_value(model, payload):
    """One request must never take a server down, nor be accepted and then fail when it is passed on."""
    for path in payload_paths(payload):
        for value in JSON_WRITABLE:
            accept_or_explain(model, with_value(payload, path, value))


@pytest.mark.parametrize(("model", "payload"), PAYLOADS, ids=lambda part: getattr(part, "__name__", ""))
def test_objects_that_no_json_can_hold_are_at_most_a_validation_error(model, payload):
    """They come from code, not from the wire; keeping them is allowed, crashing is not."""
    for path in payload_paths(payload):
        for value in (b"\xff", object(), 10**5000, {1, 2}, iter(()), type, lambda: None):
            try:
                model.model_validate(with_value(payload, path, value))
            except ValidationError as error:
                assert error.error_count() > 0


@settings(max_examples=100, deadline=None)
@given(which=st.sampled_from(range(len(PAYLOADS))), place=st.integers(0, 10**6), value=surprising)
@example(which=0, place=0, value=None)
def test_a_surprise_anywhere_is_accepted_or_explained(which, place, value):
    """Values can be wrong in ways that no list contains."""
    model, payload = PAYLOADS[which]
    paths = payload_paths(payload)

    accept_or_explain(model, with_value(payload, paths[place % len(paths)], value))


@pytest.mark.parametrize(("model", "payload"), PAYLOADS, ids=lambda part: getattr(part, "__name__", ""))
def test_deep_json_text_is_explained_too(model, payload):
    """Bodies may also be parsed by pydantic itself."""
    for text in ("[" * 100_000, '{"input":' * 100_000, '{"output":[{"type":"message","content":' + "[" * 5000):
        with pytest.raises(ValidationError):
            model.model_validate_json(text)


def test_a_lone_surrogate_is_kept_until_bytes_are_written():
    """Server folders clean such texts themselves, so an item with one must exist; UTF-8 cannot contain it."""
    for change in ({"input": "\ud800"}, {"metadata": {"a": "\ud800"}}, {"tools": [{**TOOL, "name": "\ud800"}]}):
        params = NeMoGymResponseCreateParamsNonStreaming(**{"input": "hi", **change})

        assert "\ud800" in str(params.model_dump()) or "\\ud800" in repr(params.model_dump())
        assert "\ufffd" in encode_model(params).decode()


def test_depth_is_limited_only_where_anything_goes():
    """A JSON schema of ordinary depth passes; one that no writer could write does not."""

    def tool(depth: int) -> dict[str, Any]:
        return {"type": "function", "name": "f", "parameters": nested_value(depth, "dict")}

    NeMoGymResponseCreateParamsNonStreaming(input="hi", tools=[tool(MAX_DEPTH)]).model_dump_json()
    with pytest.raises(ValidationError, match="levels deep"):
        NeMoGymResponseCreateParamsNonStreaming(input="hi", tools=[tool(MAX_DEPTH + 1)])
