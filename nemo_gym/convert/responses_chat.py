"""Responses API ↔ Chat Completions, requests and results, as plain dicts.

Laws (tests/convert/test_responses_chat.py): what the other dialect can express comes back unchanged, and what it
cannot raises `ConversionError` naming the place. Ids are passed in; nothing here reads a clock.
"""

from typing import Any

from nemo_gym.convert.chat_items import assistant_items, items_from_messages, only_choice
from nemo_gym.convert.chat_options import (
    LOGPROBS_INCLUDE,
    options_from_chat,
    options_to_chat,
    unsaid_in_chat,
    unsaid_in_responses,
)
from nemo_gym.convert.chat_turns import ChatTurns, add_item, item_kind, lead_with_instructions
from nemo_gym.convert.shapes import (
    CHAT,
    Json,
    NewId,
    as_count,
    as_dict,
    as_list,
    dict_at,
    each_dict,
    optional_list_at,
    optional_text_at,
    text_at,
    unsayable,
)
from nemo_gym.convert.thinking import SplitThoughts, outside_think_tags, parse_think_tags
from nemo_gym.convert.usage import usage_from_chat, usage_to_chat

__all__ = [
    "chat_messages",
    "chat_request",
    "completion_from_response",
    "items_from_messages",
    "response_from_completion",
    "responses_request",
    "unsaid_in_chat",
    "unsaid_in_responses",
]

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
"""Request fields a response repeats."""

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
_FINISH = {reason: finish for finish, reason in _INCOMPLETE.items()}


def chat_request(params: Json, *, with_tokens: bool = False) -> Json:
    """The Chat request that asks what a Responses request asks."""
    params = as_dict(params, "request")
    options = options_to_chat(params)
    messages = chat_messages(params.get("input"), with_tokens=with_tokens)
    instructions = optional_text_at(params, "instructions", "request")
    if instructions:
        messages = lead_with_instructions(messages, instructions)
    return {"messages": messages, **options}


def chat_messages(items: Any, *, with_tokens: bool = False) -> list[Json]:
    """Responses input — items, or one string — as Chat messages."""
    if isinstance(items, str):
        return [{"role": "user", "content": [{"type": "text", "text": items}]}]
    turns = ChatTurns(return_token_id_information=with_tokens)
    for item, where in each_dict(items, "input"):
        add_item(turns, item, where)
    turns.flush_assistant()
    return turns.messages


def responses_request(
    chat: Json, *, new_id: NewId, split_thoughts: SplitThoughts = parse_think_tags, with_tokens: bool = False
) -> Json:
    """The Responses request that asks what a Chat request asks."""
    chat = as_dict(chat, "request")
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
    """A completion as the response to the Responses request `params`, whose options it repeats."""
    params, completion = as_dict(params, "request"), as_dict(completion, "completion")
    choice = only_choice(completion)
    message = dict_at(choice, "message", "choices[0]")
    where = "choices[0].message"
    output = assistant_items(message, where, new_id=new_id, split_thoughts=split_thoughts, with_tokens=with_tokens)
    if LOGPROBS_INCLUDE in optional_list_at(params, "include", "request"):
        _give_logprobs(output, choice, message)
    finish = choice.get("finish_reason")
    reason = _INCOMPLETE.get(finish) if isinstance(finish, str) else None
    response = {
        "id": new_id("resp"),
        "object": "response",
        "created_at": as_count(completion.get("created"), "created"),
        "model": params.get("model") or completion.get("model"),
        "output": output,
        "status": "incomplete" if reason else "completed",
        "incomplete_details": {"reason": reason} if reason else None,
        "error": None,
        "usage": usage_from_chat(completion.get("usage")),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    response |= {key: params[key] for key in ECHOED if params.get(key) is not None}
    if completion.get("service_tier") is not None:
        response["service_tier"] = completion["service_tier"]
    return response


def completion_from_response(response: Json, *, new_id: NewId, with_tokens: bool = False) -> Json:
    """A finished response as a Chat completion with one choice."""
    response = as_dict(response, "response")
    output = as_list(response.get("output"), "output")
    turns = ChatTurns(return_token_id_information=with_tokens)
    for item, where in each_dict(output, "output"):
        add_item(turns, item, where)
        if turns.messages:
            raise unsayable(item_kind(item, where), f"{CHAT} as a model's answer", where)
    turns.spoke = True  # a completion has a message even when the model said nothing
    turns.flush_assistant()
    message = turns.messages[0]
    _give_annotations(message, output)
    finish = _finish_reason(response, message)
    choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": _logprobs_of(output)}
    completion: Json = {
        "id": new_id("chatcmpl"),
        "object": "chat.completion",
        "created": as_count(response.get("created_at"), "created_at"),
        "model": response.get("model"),
        "choices": [choice],
        "usage": usage_to_chat(response.get("usage")),
    }
    if response.get("service_tier") is not None:
        completion["service_tier"] = response["service_tier"]
    return completion


def _finish_reason(response: Json, message: Json) -> str:
    status = response.get("status")
    if status == "incomplete":
        reason = dict_at(response, "incomplete_details", "response").get("reason")
        if isinstance(reason, str) and reason in _FINISH:
            return _FINISH[reason]
        raise unsayable(reason, f"{CHAT} as a finish_reason", "incomplete_details.reason")
    if status not in (None, "completed"):
        raise unsayable(status, f"{CHAT} as the end of an answer", "status")
    return "tool_calls" if message.get("tool_calls") else "stop"


def _give_logprobs(output: list[Json], choice: Json, message: Json) -> None:
    """Put the choice's log-probabilities on its text, without those of the thoughts cut out of it."""
    texts = _output_texts(output)
    if choice.get("logprobs") is None or not texts:
        return
    where = "choices[0].logprobs"
    content = optional_list_at(dict_at(choice, "logprobs", "choices[0]"), "content", where)
    entries = [_logprob(entry, place) for entry, place in each_dict(content, f"{where}.content")]
    said = message.get("content")
    if isinstance(said, str) and said != texts[0]["text"]:
        entries = [entries[index] for index in outside_think_tags(said, [entry["token"] for entry in entries])]
    texts[0]["logprobs"] = entries


def _logprob(entry: Json, where: str) -> Json:
    """A token's log-probability in Responses form, where nothing is optional."""
    top = optional_list_at(entry, "top_logprobs", where)
    alternatives = [_token_logprob(other, place) for other, place in each_dict(top, f"{where}.top_logprobs")]
    return _token_logprob(entry, where) | {"top_logprobs": alternatives}


def _token_logprob(entry: Json, where: str) -> Json:
    token, logprob = text_at(entry, "token", where), entry.get("logprob")
    return {"token": token, "bytes": optional_list_at(entry, "bytes", where), "logprob": logprob}


def _output_texts(output: list[Any]) -> list[Json]:
    """The output_text parts of the assistant's messages; `add_item` has checked their shape."""
    return [
        part
        for item in output
        if item_kind(item, "output") == "message" and isinstance(item.get("content"), list)
        for part in item["content"]
        if part["type"] == "output_text"
    ]


def _give_annotations(message: Json, output: list[Any]) -> None:
    annotations = []
    for part in _output_texts(output):
        cited = optional_list_at(part, "annotations", "output_text")
        for annotation, where in each_dict(cited, "output_text.annotations"):
            if annotation.get("type") != "url_citation":
                raise unsayable(annotation.get("type"), f"{CHAT} as an annotation", where)
            rest = {key: value for key, value in annotation.items() if key != "type"}
            annotations.append({"type": "url_citation", "url_citation": rest})
    if annotations:
        message["annotations"] = annotations


def _logprobs_of(output: list[Any]) -> Json | None:
    entries = [entry for part in _output_texts(output) for entry in optional_list_at(part, "logprobs", "output_text")]
    return {"content": entries, "refusal": None} if entries else None
