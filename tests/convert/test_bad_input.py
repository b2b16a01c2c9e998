"""Garbage in: every converter answers with a `ConversionError`, never with a traceback."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym import chat_streaming, responses_streaming
from nemo_gym.anthropic_converter import AnthropicConverter
from nemo_gym.convert import chat_stream, message_stream, response_events, responses_anthropic, responses_chat
from nemo_gym.convert.chat_conversation import assistant_items
from nemo_gym.convert.responses_anthropic import options_lost_from_messages, options_lost_in_messages
from nemo_gym.convert.responses_chat import options_lost_in_chat
from nemo_gym.errors import ConversionError
from nemo_gym.responses_converter import ResponsesConverter
from nemo_gym.responses_streaming import flatten_request

WORDS = [
    "type",
    "role",
    "content",
    "text",
    "message",
    "assistant",
    "user",
    "tool_calls",
    "function",
    "id",
    "name",
    "\ud800",
]
garbage = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=8,
)

CHAT_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOKENS = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-1.0]}
OUTPUT: list[dict[str, Any]] = [
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "t"}], "encrypted_content": "e"},
    {
        "type": "message",
        "role": "assistant",
        "content": [
            {
                "type": "output_text",
                "text": "x",
                "annotations": [{"type": "url_citation"}],
                "logprobs": [{"token": "x"}],
            },
            {"type": "refusal", "refusal": "no"},
        ],
    },
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", **TOKENS},
]
RESPONSES_REQUEST: dict[str, Any] = {
    "instructions": "i",
    "input": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,A"}]},
        *OUTPUT,
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "t"}]},
    ],
    "tools": [{"type": "function", "name": "f", "parameters": {}}],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    "text": {"format": {"type": "json_schema", "schema": {}}},
    "reasoning": {"effort": "low"},
    "include": ["message.output_text.logprobs"],
    "max_output_tokens": 3,
}
RESPONSE: dict[str, Any] = {
    "id": "r",
    "created_at": 1.0,
    "model": "m",
    "status": "incomplete",
    "incomplete_details": {"reason": "max_output_tokens"},
    "output": OUTPUT,
    "usage": {"input_tokens": 1, "output_tokens": 1, "input_tokens_details": {"cached_tokens": 1}},
}
CHAT_REQUEST: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}, {"type": "file", "file": {}}]},
        {"role": "assistant", "content": [{"type": "text", "text": "x"}], "tool_calls": [CHAT_CALL], **TOKENS},
        {"role": "tool", "tool_call_id": "c", "content": "x"},
    ],
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]},
    },
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}},
    "logprobs": True,
    "max_tokens": 3,
}
COMPLETION: dict[str, Any] = {
    "id": "c",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {
                "role": "assistant",
                "content": "<think>a</think>b",
                "annotations": [],
                "tool_calls": [CHAT_CALL],
            },
            "logprobs": {"content": [{"token": "b", "top_logprobs": [{"token": "c"}]}]},
        }
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 1}},
}
MESSAGES_REQUEST: dict[str, Any] = {
    "system": [{"type": "text", "text": "s"}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A"}},
                {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "t"}]},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": "s"},
                {"type": "text", "text": "x", "citations": None},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}},
            ],
        },
    ],
    "tools": [{"name": "f", "input_schema": {}}],
    "tool_choice": {"type": "tool", "name": "f"},
}
MESSAGE: dict[str, Any] = {
    "id": "m",
    "content": MESSAGES_REQUEST["messages"][1]["content"],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 1, "output_tokens": 1, "cache_read_input_tokens": 1},
}


CONVERTER = ResponsesConverter(return_token_id_information=True)


def new_id(prefix: str) -> str:
    return prefix


def _chat_request(value: Any) -> None:
    responses_chat.chat_request(value, with_tokens=True)
    options_lost_in_chat(value)


def _messages_request(value: Any) -> None:
    responses_anthropic.messages_request(value, model="m", max_tokens=1)
    options_lost_in_messages(value)


def _from_messages(value: Any) -> None:
    responses_anthropic.responses_request(value, new_id=new_id)
    options_lost_from_messages(value)


CONVERTERS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "responses request → chat": (RESPONSES_REQUEST, _chat_request),
    "responses request → messages": (
        {**RESPONSES_REQUEST, "tool_choice": {"type": "function", "name": "f"}},
        _messages_request,
    ),
    "chat request → responses": (
        CHAT_REQUEST,
        lambda value: responses_chat.responses_request(value, new_id=new_id, with_tokens=True),
    ),
    "messages request → responses": (MESSAGES_REQUEST, _from_messages),
    "chat message → items": (
        CHAT_REQUEST["messages"][1],
        lambda value: assistant_items(value, "message", new_id=new_id, with_tokens=True),
    ),
    "completion → response": (
        COMPLETION,
        lambda value: responses_chat.response_from_completion(
            {"include": ["message.output_text.logprobs"]}, value, new_id=new_id, with_tokens=True
        ),
    ),
    "response to request → response": (
        RESPONSES_REQUEST,
        lambda value: responses_chat.response_from_completion(value, COMPLETION, new_id=new_id),
    ),
    "response → message": (
        RESPONSE,
        lambda value: responses_anthropic.message_from_response(value, model="m", new_id=new_id),
    ),
    "message → response": (
        MESSAGE,
        lambda value: responses_anthropic.response_from_message({}, value, model="m", now=1, new_id=new_id),
    ),
    "response → events": (RESPONSE, lambda value: list(response_events.events_from_response(value))),
    "completion → chunks": (COMPLETION, lambda value: list(chat_stream.chunks_from_completion(value))),
    "message → events": (MESSAGE, lambda value: list(message_stream.events_from_message(value))),
    "events → response": (
        [
            event
            for event in response_events.events_from_response(RESPONSE)
            if event["type"] in ("response.created", "response.output_item.done", "response.completed")
        ],
        lambda value: response_events.response_from_events(value if isinstance(value, list) else [value]),
    ),
    "chunks → completion": (
        list(chat_stream.chunks_from_completion(COMPLETION)),
        lambda value: chat_stream.completion_from_chunks(value if isinstance(value, list) else [value]),
    ),
    "events → message": (
        list(message_stream.events_from_message(MESSAGE)),
        lambda value: message_stream.message_from_events(value if isinstance(value, list) else [value]),
    ),
    "the class: responses request → chat": (
        {**RESPONSES_REQUEST, "background": False},
        lambda value: CONVERTER.responses_to_chat_completion_create_params(value),
    ),
    "the class: chat request → responses": (
        CHAT_REQUEST,
        lambda value: CONVERTER.chat_completion_to_responses_create_params(value),
    ),
    "the class: completion → response": (
        COMPLETION,
        lambda value: CONVERTER.chat_completion_to_response({"model": "m"}, value),
    ),
    "the class: messages → items": (
        CHAT_REQUEST["messages"],
        lambda value: CONVERTER.chat_completions_messages_to_responses_items(value),
    ),
    "the class: message → items": (
        CHAT_REQUEST["messages"][1],
        lambda value: CONVERTER.postprocess_assistant_message_dict(value),
    ),
    "the class: message → response": (
        MESSAGE,
        lambda value: AnthropicConverter().anthropic_to_responses(value, {"input": ""}, "m"),
    ),
    "a streaming responses request": ({**RESPONSES_REQUEST, "stream": True}, responses_streaming.sanitise_request),
    "a streaming chat request": ({**CHAT_REQUEST, "stream": True}, chat_streaming.sanitise_request),
    "streamed request": ({**RESPONSES_REQUEST, "stream": True}, flatten_request),
}


TOKEN_KEYS = set(TOKENS)
UNREAD: dict[str, set[str]] = {
    "responses request → chat": {"annotations", "logprobs", "parameters", "schema"},
    "responses request → messages": {"annotations", "logprobs", "reasoning", "include"} | TOKEN_KEYS,
    "chat request → responses": {"schema"},
    "response to request → response": {"input", "tools", "tool_choice", "text", "reasoning"},
    "response → message": {"annotations", "logprobs"} | TOKEN_KEYS,
    "response → events": {"incomplete_details", "output", "usage"},
    "completion → chunks": {"annotations", "function", "logprobs", "usage"},
    "events → response": {"response", "summary", "content"} | TOKEN_KEYS,
    "chunks → completion": {"annotations", "content"},
    "events → message": {"content", "input"},
    "the class: responses request → chat": {"annotations", "logprobs", "parameters", "schema"},
    "the class: completion → response": {"logprobs"},
    "a streaming responses request": {"input", "tool_choice", "text", "reasoning", "include", "tools"},
    "a streaming chat request": {"messages", "tools", "tool_choice", "response_format"},
    "streamed request": {"input", "tool_choice", "text", "reasoning", "include", "tools"},
}
"""Keys whose value a converter passes on or drops without reading it. Any other object or list must have its shape."""


def paths(value: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value inside `value`, and of `value` itself."""
    result = [prefix]
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, child in children:
        result += paths(child, (*prefix, step))
    return result


def value_at(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


def with_change(value: Any, path: tuple[Any, ...], new: Any, *, remove: bool = False) -> Any:
    """Return a copy of `value` with `new` at `path`, or without the value at `path`."""
    if not path:
        return new
    result = copy.deepcopy(value)
    holder = value_at(result, path[:-1])
    if remove:
        del holder[path[-1]]
    else:
        holder[path[-1]] = new
    return result


@pytest.mark.parametrize("name", CONVERTERS)
def test_the_untouched_example_is_accepted(name: str) -> None:
    """Otherwise the tests below would fail early and prove nothing."""
    valid, convert = CONVERTERS[name]

    convert(copy.deepcopy(valid))


@pytest.mark.parametrize("name", CONVERTERS)
def test_a_number_in_place_of_an_object_or_a_list_is_refused(name: str) -> None:
    """A converter that accepts it drops part of the conversation, and the rollout is scored on the rest."""
    valid, convert = CONVERTERS[name]
    containers = [path for path in paths(valid) if isinstance(value_at(valid, path), dict | list)]
    checked = [path for path in containers if UNREAD.get(name, set()).isdisjoint(path)]

    for path in checked:
        with pytest.raises(ConversionError) as caught:
            convert(with_change(valid, path, -1))
        assert caught.value.where, path
    assert checked


def convert_or_refuse(convert: Callable[[Any], Any], value: Any) -> None:
    """Convert a broken value. It may be at a place that is not read; an error must be a `ConversionError`."""
    try:
        convert(value)
    except ConversionError as error:
        assert error.where


@pytest.mark.parametrize("name", CONVERTERS)
def test_one_wrong_value_anywhere_never_ends_in_a_traceback(name: str) -> None:
    """Agents and providers send broken JSON every day; a rollout then fails with a reason, not with a bug report."""
    valid, convert = CONVERTERS[name]

    for path in paths(valid):
        for wrong in (None, True, -1, float("nan"), "", "odd", [], [None], ["odd"], [[]], {}, {"odd": 1}, [{}]):
            convert_or_refuse(convert, with_change(valid, path, wrong))
        convert_or_refuse(convert, with_change(valid, path, None, remove=True))


@pytest.mark.parametrize("name", CONVERTERS)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_garbage_anywhere_never_ends_in_a_traceback(name: str, data: st.DataObject) -> None:
    """Values can be wrong in ways that no list contains."""
    valid, convert = CONVERTERS[name]
    path = data.draw(st.sampled_from(paths(valid)))

    convert_or_refuse(convert, with_change(valid, path, data.draw(garbage)))
