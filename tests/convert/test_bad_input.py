"""Garbage in: every converter answers with a `ConversionError`, never with a traceback."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym import chat_streaming, responses_streaming
from nemo_gym.anthropic_converter import AnthropicConverter
from nemo_gym.convert import chat_chunks, message_events, responses_chat, responses_events, responses_messages
from nemo_gym.convert.chat_items import assistant_items
from nemo_gym.convert.chat_options import unsaid_in_chat
from nemo_gym.convert.message_options import unsaid_in_messages, unsaid_of_messages
from nemo_gym.convert.streamed_request import flattened_request
from nemo_gym.errors import ConversionError
from nemo_gym.responses_converter import ResponsesConverter

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
    unsaid_in_chat(value)


def _messages_request(value: Any) -> None:
    responses_messages.messages_request(value, model="m", max_tokens=1)
    unsaid_in_messages(value)


def _from_messages(value: Any) -> None:
    responses_messages.responses_request(value, new_id=new_id)
    unsaid_of_messages(value)


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
    "response → completion": (
        RESPONSE,
        lambda value: responses_chat.completion_from_response(value, new_id=new_id, with_tokens=True),
    ),
    "response → message": (
        RESPONSE,
        lambda value: responses_messages.message_from_response(value, model="m", new_id=new_id),
    ),
    "message → response": (
        MESSAGE,
        lambda value: responses_messages.response_from_message({}, value, model="m", now=1, new_id=new_id),
    ),
    "response → events": (RESPONSE, lambda value: list(responses_events.events_from_response(value))),
    "completion → chunks": (COMPLETION, lambda value: list(chat_chunks.chunks_from_completion(value))),
    "message → events": (MESSAGE, lambda value: list(message_events.events_from_message(value))),
    "events → response": (
        list(responses_events.events_from_response(RESPONSE)),
        lambda value: responses_events.response_from_events(value if isinstance(value, list) else [value]),
    ),
    "chunks → completion": (
        list(chat_chunks.chunks_from_completion(COMPLETION)),
        lambda value: chat_chunks.completion_from_chunks(value if isinstance(value, list) else [value]),
    ),
    "events → message": (
        list(message_events.events_from_message(MESSAGE)),
        lambda value: message_events.message_from_events(value if isinstance(value, list) else [value]),
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
    "streamed request": ({**RESPONSES_REQUEST, "stream": True}, flattened_request),
}


def paths(value: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place inside `value`, the whole of it included."""
    found = [prefix]
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, child in children:
        found += paths(child, (*prefix, step))
    return found


def changed(value: Any, path: tuple[Any, ...], new: Any, remove: bool) -> Any:
    """A copy of `value` with something else at `path`, or nothing."""
    if not path:
        return new
    result = copy.deepcopy(value)
    holder = result
    for step in path[:-1]:
        holder = holder[step]
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


def refuses_cleanly(convert: Callable[[Any], Any], broken: Any) -> None:
    try:
        convert(broken)
    except ConversionError as error:
        assert error.where


@pytest.mark.parametrize("name", CONVERTERS)
def test_one_wrong_value_anywhere_is_one_clear_error(name: str) -> None:
    """Agents and providers send broken JSON every day; a rollout then fails with a reason, not with a bug report."""
    valid, convert = CONVERTERS[name]

    for path in paths(valid):
        for wrong in (None, True, -1, float("nan"), "", "odd", [], [None], ["odd"], [[]], {}, {"odd": 1}, [{}]):
            refuses_cleanly(convert, changed(valid, path, wrong, remove=False))
        refuses_cleanly(convert, changed(valid, path, None, remove=True))


@pytest.mark.parametrize("name", CONVERTERS)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_garbage_anywhere_is_one_clear_error(name: str, data: st.DataObject) -> None:
    """Wrong in ways nobody listed."""
    valid, convert = CONVERTERS[name]
    path = data.draw(st.sampled_from(paths(valid)))

    refuses_cleanly(convert, changed(valid, path, data.draw(garbage), remove=False))
