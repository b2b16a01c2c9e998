"""Convert requests and replies: Responses API ↔ Chat Completions.

A conversation that the other dialect can express is unchanged after conversion in both directions; any other
conversation raises `ConversionError` with the JSON path (tests/convert/test_responses_chat_laws.py).
"""

from typing import Any

from nemo_gym.convert.chat_conversation import (
    ChatMessages,
    add_item,
    assistant_items,
    items_from_messages,
    lead_with_instructions,
    only_choice,
)
from nemo_gym.convert.chat_options import LOGPROBS_INCLUDE, options_from_chat, options_to_chat
from nemo_gym.convert.json_access import (
    Json,
    NewId,
    dict_at,
    expect_count,
    expect_dict,
    iter_dicts,
    optional_list_at,
    optional_text_at,
    text_at,
)
from nemo_gym.convert.reasoning_tags import SplitThoughts, outside_think_tags, parse_think_tags
from nemo_gym.convert.usage import usage_from_chat
from nemo_gym.convert.wire_objects import response_skeleton

ECHOED = (
    "background",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "parallel_tool_calls",
    "previous_response_id",
    "prompt",
    "reasoning",
    "service_tier",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "truncation",
    "user",
)
"""Options of a request that are repeated in the response."""

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


def chat_request(params: Json, *, with_tokens: bool = False) -> Json:
    """Convert a Responses request to Chat."""
    params = expect_dict(params, "request")
    options = options_to_chat(params)
    messages = chat_messages(params.get("input"), with_tokens=with_tokens)
    instructions = optional_text_at(params, "instructions", "request")
    if instructions:
        messages = lead_with_instructions(messages, instructions)
    return {"messages": messages, **options}


def chat_messages(items: Any, *, with_tokens: bool = False) -> list[Json]:
    """Convert Responses input (items, or one string) to Chat messages."""
    if isinstance(items, str):
        return [{"role": "user", "content": [{"type": "text", "text": items}]}]
    chat = ChatMessages(return_token_id_information=with_tokens)
    for item, path in iter_dicts(items, "input"):
        add_item(chat, item, path)
    chat.flush_assistant()
    return chat.messages


def responses_request(
    chat: Json, *, new_id: NewId, split_thoughts: SplitThoughts = parse_think_tags, with_tokens: bool = False
) -> Json:
    """Convert a Chat request to Responses."""
    chat = expect_dict(chat, "request")
    messages = chat.get("messages")
    items = items_from_messages(messages, new_id=new_id, split_thoughts=split_thoughts, with_tokens=with_tokens)
    return {"input": items, **options_from_chat(chat)}


def response_from_completion(
    params: Json,
    completion: Json,
    *,
    new_id: NewId,
    split_thoughts: SplitThoughts = parse_think_tags,
    with_tokens: bool = False,
) -> Json:
    """Convert a completion to the response to the Responses request `params`, whose options it repeats."""
    params, completion = expect_dict(params, "request"), expect_dict(completion, "completion")
    choice = only_choice(completion)
    message = dict_at(choice, "message", "choices[0]")
    path = "choices[0].message"
    output = assistant_items(message, path, new_id=new_id, split_thoughts=split_thoughts, with_tokens=with_tokens)
    if LOGPROBS_INCLUDE in optional_list_at(params, "include", "request"):
        _add_logprobs(output, choice, message)
    finish = choice.get("finish_reason")
    reason = _INCOMPLETE.get(finish) if isinstance(finish, str) else None
    created_at = expect_count(completion.get("created"), "created")
    response = response_skeleton(new_id("resp"), created_at, params.get("model") or completion.get("model"))
    response |= reply_fields(output, reason, usage_from_chat(completion.get("usage")), params)
    if completion.get("service_tier") is not None:
        response["service_tier"] = completion["service_tier"]
    return response


def reply_fields(output: list[Json], reason: str | None, usage: Json | None, params: Json) -> Json:
    """Return the fields of a finished response: output, status, usage and the options of the request `params`."""
    fields: Json = {"output": output, "usage": usage, "status": "incomplete" if reason else "completed"}
    fields["incomplete_details"] = {"reason": reason} if reason else None
    return fields | {key: params[key] for key in ECHOED if params.get(key) is not None}


def _add_logprobs(output: list[Json], choice: Json, message: Json) -> None:
    """Add the log-probabilities of the choice to its text, without those of removed thoughts."""
    contents = [item["content"] for item in output if item["type"] == "message"]
    texts = [part for content in contents for part in content if part["type"] == "output_text"]
    if choice.get("logprobs") is None or not texts:
        return
    path = "choices[0].logprobs"
    content = optional_list_at(dict_at(choice, "logprobs", "choices[0]"), "content", path)
    entries = [_logprob(entry, location) for entry, location in iter_dicts(content, f"{path}.content")]
    original = message.get("content")
    if isinstance(original, str) and original != texts[0]["text"]:
        entries = [entries[index] for index in outside_think_tags(original, [entry["token"] for entry in entries])]
    texts[0]["logprobs"] = entries


def _logprob(entry: Json, path: str) -> Json:
    """Convert a token's log-probability to Responses, where all fields are required."""
    top = optional_list_at(entry, "top_logprobs", path)
    alternatives = [_token_logprob(other, location) for other, location in iter_dicts(top, f"{path}.top_logprobs")]
    return _token_logprob(entry, path) | {"top_logprobs": alternatives}


def _token_logprob(entry: Json, path: str) -> Json:
    token, logprob = text_at(entry, "token", path), entry.get("logprob")
    return {"token": token, "bytes": optional_list_at(entry, "bytes", path), "logprob": logprob}
