"""Answers of models for property tests, and what each dialect says about an answer.

`responses` and `completions` generate whole answers; `chunk_streams` also cuts a completion into the chunks of an
endpoint. `meaning_of_response`, `meaning_of_completion` and `meaning_of_message` reduce an answer of each dialect to a
`Meaning`, so that answers can be compared across dialects and streaming modes.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

Json = dict[str, Any]

texts = st.text(alphabet='ab {}[]"\\:,\n<>/é漢😀', max_size=12)
some_texts = texts.filter(str.strip)
names = st.text(alphabet="fgh_", min_size=1, max_size=5)
ids = st.text(alphabet="abc0123", min_size=1, max_size=6)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=2),
    max_leaves=4,
)
argument_objects = st.dictionaries(names, json_values, max_size=3)
counts = st.integers(0, 10**6)


@dataclass(frozen=True)
class Meaning:
    """What an answer says, whichever dialect it is written in."""

    reasoning: str
    text: str
    calls: tuple[tuple[str, str, str], ...]
    """Id, name and canonical arguments of each tool call."""
    stop: str
    """`stop`, `tool_calls`, `length` or `content_filter`."""
    usage: tuple[int, int, int]
    """Tokens of the prompt (cached ones included), cached tokens, and tokens of the answer."""


@st.composite
def usages(draw: st.DrawFn) -> Json:
    """Token counts of a response; the cached tokens are part of the input."""
    read, written = draw(counts), draw(counts)
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": draw(st.integers(0, read))},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": draw(st.integers(0, written))},
        "total_tokens": read + written,
    }


@st.composite
def responses(draw: st.DrawFn) -> Json:
    """A finished response: perhaps reasoning, perhaps a message, then calls with different ids."""
    output: list[Json] = []
    thoughts = draw(st.lists(some_texts, max_size=2))
    if thoughts:
        summary = [{"type": "summary_text", "text": thought} for thought in thoughts]
        output.append({"type": "reasoning", "id": f"rs_{draw(ids)}", "summary": summary})
    call_ids = draw(st.lists(ids, max_size=3, unique=True))
    if draw(st.booleans()) or not (thoughts or call_ids):
        parts = [{"type": "output_text", "text": draw(some_texts), "annotations": []}]
        message = {"type": "message", "id": f"msg_{draw(ids)}", "role": "assistant", "status": "completed"}
        output.append({**message, "content": parts})
    for call_id in call_ids:
        arguments = json.dumps(draw(argument_objects), ensure_ascii=False)
        call = {"type": "function_call", "id": f"fc_{call_id}", "call_id": f"call_{call_id}", "status": "completed"}
        output.append({**call, "name": draw(names), "arguments": arguments})
    reason = draw(st.sampled_from([None, None, "max_output_tokens", "content_filter"]))
    return {
        "id": f"resp_{draw(ids)}",
        "object": "response",
        "created_at": draw(st.integers(0, 2**31)),
        "model": draw(names),
        "output": output,
        "error": None,
        "incomplete_details": {"reason": reason} if reason else None,
        "status": "incomplete" if reason else "completed",
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": draw(usages()),
    }


@st.composite
def completions(draw: st.DrawFn) -> Json:
    """A finished chat completion of an endpoint that separates reasoning from the text."""
    message: Json = {"role": "assistant", "content": draw(st.none() | some_texts)}
    if draw(st.booleans()):
        message["reasoning_content"] = draw(some_texts)
    call_ids = draw(st.lists(ids, max_size=3, unique=True))
    if call_ids:
        message["tool_calls"] = [
            {
                "id": f"call_{call_id}",
                "type": "function",
                "function": {"name": draw(names), "arguments": json.dumps(draw(argument_objects), ensure_ascii=False)},
            }
            for call_id in call_ids
        ]
    elif message["content"] is None:
        message["content"] = draw(some_texts)
    ends = "tool_calls" if call_ids else "stop"
    read, written = draw(counts), draw(counts)
    usage: Json = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    if draw(st.booleans()):
        usage["prompt_tokens_details"] = {"cached_tokens": draw(st.integers(0, read))}
        usage["completion_tokens_details"] = None
    return {
        "id": f"chatcmpl-{draw(ids)}",
        "object": "chat.completion",
        "created": draw(st.integers(0, 2**31)),
        "model": draw(names),
        "choices": [
            {"index": 0, "message": message, "finish_reason": draw(st.sampled_from([ends, ends, "length"]))},
        ],
        "usage": usage,
    }


def _pieces(draw: st.DrawFn, text: str) -> list[str]:
    """Cut a text into pieces, as an endpoint that streams does."""
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@st.composite
def chunk_streams(draw: st.DrawFn) -> tuple[Json, list[Json]]:
    """A completion and the chunks with which an endpoint streams it: reasoning, text, calls, end, usage."""
    completion = draw(completions())
    names_of_reasoning = [["reasoning_content"], ["reasoning"], ["reasoning", "reasoning_content"]]
    return completion, chunks_of(
        completion,
        cut=lambda text: _pieces(draw, text),
        reasoning_names=lambda: draw(st.sampled_from(names_of_reasoning)),
    )


def chunks_of(
    completion: Json,
    *,
    cut: Callable[[str], list[str]] = list,
    reasoning_names: Callable[[], list[str]] = lambda: ["reasoning_content"],
) -> list[Json]:
    """Return the chunks of a completion: texts in the pieces of `cut`, by default characters."""
    choice = completion["choices"][0]
    message = choice["message"]
    head = {key: completion[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    deltas: list[Json] = [{"role": "assistant", "content": ""}]
    thoughts = cut(message.get("reasoning_content") or "")
    deltas += [dict.fromkeys(reasoning_names(), piece) for piece in thoughts]
    deltas += [{"content": piece} for piece in cut(message["content"] or "")]
    for index, call in enumerate(message.get("tool_calls") or []):
        start = {**call, "function": {"name": call["function"]["name"], "arguments": ""}}
        deltas.append({"tool_calls": [{"index": index, **start}]})
        for piece in cut(call["function"]["arguments"]):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    chunks = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]})
    chunks.append({**head, "choices": [], "usage": completion["usage"]})
    return chunks


def _call_of_chat(call_id: str, name: str, arguments: Json) -> Json:
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": call_id, "type": "function", "function": function}


FULL_COMPLETION: Json = {
    "id": "chatcmpl-full",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": "Both at once.",
                "reasoning_content": "I compare.",
                "tool_calls": [_call_of_chat("call_a", "f", {"x": [1, None, "é"]}), _call_of_chat("call_b", "g", {})],
            },
        }
    ],
    "usage": {
        "prompt_tokens": 40,
        "completion_tokens": 12,
        "total_tokens": 52,
        "prompt_tokens_details": {"cached_tokens": 30},
    },
}
"""A completion with everything that an answer can say."""
FULL_RESPONSE: Json = {
    "id": "resp_full",
    "object": "response",
    "created_at": 1,
    "model": "m",
    "status": "completed",
    "error": None,
    "incomplete_details": None,
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "output": [
        {
            "type": "reasoning",
            "id": "rs_full",
            "summary": [{"type": "summary_text", "text": "I compare."}, {"type": "summary_text", "text": "I decide."}],
        },
        {
            "type": "message",
            "id": "msg_full",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Both at once.", "annotations": []}],
        },
        *(
            {
                "type": "function_call",
                "id": f"fc_{name}",
                "call_id": f"call_{name}",
                "name": name,
                "arguments": '{"x": [1, null, "é"]}',
                "status": "completed",
            }
            for name in "fg"
        ),
    ],
    "usage": {
        "input_tokens": 40,
        "input_tokens_details": {"cached_tokens": 30},
        "output_tokens": 12,
        "output_tokens_details": {"reasoning_tokens": 5},
        "total_tokens": 52,
    },
}
"""A response with everything that an answer can say: two thoughts, a text and two calls."""


def _canonical(arguments: str) -> str:
    return json.dumps(json.loads(arguments), sort_keys=True)


def meaning_of_response(response: Json) -> Meaning:
    """Return what a Responses answer says."""
    items = response["output"]
    calls = [item for item in items if item["type"] == "function_call"]
    messages = [item for item in items if item["type"] == "message"]
    summaries = [item["summary"] or item.get("content") or [] for item in items if item["type"] == "reasoning"]
    reason = (response.get("incomplete_details") or {}).get("reason")
    usage = response["usage"]
    return Meaning(
        "\n".join(part["text"] for summary in summaries for part in summary),
        "".join(part.get("text", "") for message in messages for part in message["content"]),
        tuple((call["call_id"], call["name"], _canonical(call["arguments"])) for call in calls),
        {"max_output_tokens": "length", None: "tool_calls" if calls else "stop"}.get(reason, "content_filter"),
        (usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], usage["output_tokens"]),
    )


def meaning_of_completion(completion: Json) -> Meaning:
    """Return what a Chat completion says."""
    choice = completion["choices"][0]
    message, usage = choice["message"], completion["usage"]
    calls = message.get("tool_calls") or []
    return Meaning(
        message.get("reasoning_content") or message.get("reasoning") or "",
        message.get("content") or "",
        tuple((call["id"], call["function"]["name"], _canonical(call["function"]["arguments"])) for call in calls),
        choice["finish_reason"],
        (
            usage["prompt_tokens"],
            (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
            usage["completion_tokens"],
        ),
    )


def meaning_of_message(message: Json) -> Meaning:
    """Return what a Messages answer says."""
    blocks, usage = message["content"], message["usage"]
    ends = {"end_turn": "stop", "tool_use": "tool_calls", "max_tokens": "length", "refusal": "content_filter"}
    cached = usage.get("cache_read_input_tokens") or 0
    return Meaning(
        "\n".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
        "".join(block["text"] for block in blocks if block["type"] == "text"),
        tuple(
            (block["id"], block["name"], json.dumps(block["input"], sort_keys=True))
            for block in blocks
            if block["type"] == "tool_use"
        ),
        ends[message["stop_reason"]],
        (usage["input_tokens"] + cached, cached, usage["output_tokens"]),
    )
