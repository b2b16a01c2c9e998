"""Finished replies as stream events, and stream events as finished replies, in three dialects.

Token ids are not streamed: many clients read a line of a stream into a small buffer.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from nemo_gym.convert.json_access import (
    MESSAGES,
    Json,
    dict_at,
    dump_json,
    expect_dict,
    expect_list,
    inexpressible,
    iter_dicts,
    optional_dict_at,
    optional_list_at,
    optional_text_at,
    short_repr,
    text_at,
)
from nemo_gym.convert.wire_objects import response_skeleton
from nemo_gym.errors import ConversionError
from nemo_gym.wire.tokens import TOKEN_FIELDS

_GROWING_FIELDS = ("content", "refusal", "reasoning_content", "reasoning")
_ORDERED_FIELDS = ("role", "reasoning_content", "content", "tool_calls")
_FINAL_EVENTS = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")


def chunks_from_completion(completion: Json, *, include_usage: bool = False) -> Iterator[Json]:
    """Yield a Chat completion as chunks: role, reasoning, content, tool calls, other fields and end; then usage."""
    completion = expect_dict(completion, "completion")
    head = {key: value for key, value in completion.items() if key not in ("choices", "usage", "object")}
    head["object"] = "chat.completion.chunk"
    if include_usage:
        head["usage"] = None
    for position, (choice, where) in enumerate(iter_dicts(completion.get("choices"), "choices")):
        index = choice.get("index", position)
        for delta in _chat_deltas(dict_at(choice, "message", where), f"{where}.message"):
            yield {**head, "choices": [{"index": index, "delta": delta, "finish_reason": None}]}
        last: Json = {"index": index, "delta": {}, "finish_reason": choice.get("finish_reason")}
        if choice.get("logprobs") is not None:
            last["logprobs"] = choice["logprobs"]
        yield {**head, "choices": [last]}
    if include_usage:
        yield {**head, "choices": [], "usage": completion.get("usage")}


def _chat_deltas(message: Json, where: str) -> Iterator[Json]:
    yield {"role": message.get("role") or "assistant"}
    for key in ("reasoning_content", "content"):
        if message.get(key) is not None:
            yield {key: message[key]}
    calls = list(iter_dicts(optional_list_at(message, "tool_calls", where), f"{where}.tool_calls"))
    if calls:
        yield {"tool_calls": [{"index": index, **call} for index, (call, _) in enumerate(calls)]}
    skipped = (*_ORDERED_FIELDS, *TOKEN_FIELDS)
    rest = {key: value for key, value in message.items() if key not in skipped and value is not None}
    if rest:
        yield rest


def completion_from_chunks(chunks: Iterable[Any]) -> Json:
    """Return the Chat completion that a stream of chunks adds up to.

    Raises:
        ConversionError: a chunk reports an error, or a choice never ends.
    """
    completion: Json = {}
    choices: dict[int, Json] = {}
    for chunk, where in iter_dicts(iter(chunks), "chunks"):
        if chunk.get("error") is not None:
            raise _stream_error(chunk["error"], where)
        completion |= {key: value for key, value in chunk.items() if key != "choices" and value is not None}
        for part in optional_list_at(chunk, "choices", where):
            _add_to_choice(choices, expect_dict(part, where), where)
    if not choices:
        raise ConversionError("the stream holds no answer", where="stream")
    for index, choice in choices.items():
        if choice["finish_reason"] is None:
            raise ConversionError("the stream stops before the answer is finished", where=f"choices[{index}]")
        calls = choice["message"].pop("tool_calls", None)
        if calls:
            choice["message"]["tool_calls"] = [calls[key] for key in sorted(calls)]
    completion["object"] = "chat.completion"
    completion["choices"] = [choices[index] for index in sorted(choices)]
    completion.setdefault("usage", None)
    return completion


def _add_to_choice(choices: dict[int, Json], part: Json, where: str) -> None:
    index = _index_of(part, 0, "a choice", where)
    empty = {"index": index, "message": {"role": "assistant", "content": None}, "finish_reason": None, "logprobs": None}
    choice = choices.setdefault(index, empty)
    if part.get("delta") is not None:
        _add_chat_delta(choice["message"], dict_at(part, "delta", where), where)
    if part.get("finish_reason") is not None:
        choice["finish_reason"] = part["finish_reason"]
    if part.get("logprobs") is not None:
        _add_logprobs(choice, dict_at(part, "logprobs", where), where)


def _add_chat_delta(message: Json, delta: Json, where: str) -> None:
    for key, value in delta.items():
        if key == "tool_calls":
            for call in optional_list_at(delta, key, where):
                _add_call(message.setdefault(key, {}), expect_dict(call, where), where)
        elif key in _GROWING_FIELDS and isinstance(value, str):
            message[key] = (message.get(key) or "") + value
        elif value is not None:
            message[key] = value


def _add_call(calls: dict[int, Json], piece: Json, where: str) -> None:
    """Add a piece of a tool call: name and id come once, arguments in pieces."""
    call = calls.setdefault(_index_of(piece, len(calls), "a tool call", where), {})
    call |= {key: value for key, value in piece.items() if key not in ("index", "function") and value is not None}
    if piece.get("function") is None:
        return
    function = call.setdefault("function", {})
    for key, value in dict_at(piece, "function", where).items():
        if key == "arguments" and isinstance(value, str):
            function[key] = function.get(key, "") + value
        elif value is not None:
            function[key] = value


def _add_logprobs(choice: Json, logprobs: Json, where: str) -> None:
    if choice["logprobs"] is None:
        choice["logprobs"] = {"content": None, "refusal": None}
    for key, value in logprobs.items():
        if isinstance(value, list):
            choice["logprobs"][key] = (choice["logprobs"].get(key) or []) + value
        elif value is not None:
            raise ConversionError(f"logprobs.{key} is not a list", where=where)


def events_from_message(message: Json) -> Iterator[Json]:
    """Yield an Anthropic message as `message_start`, the events of its blocks, `message_delta` and `message_stop`."""
    message = expect_dict(message, "message")
    usage = optional_dict_at(message, "usage", "message")
    end = {"stop_reason": message.get("stop_reason"), "stop_sequence": message.get("stop_sequence")}
    start = {**message, **dict.fromkeys(end), "content": [], "usage": {**usage, "output_tokens": 0}}
    yield {"type": "message_start", "message": start}
    for index, (block, where) in enumerate(iter_dicts(message.get("content"), "content")):
        empty_block, deltas = _block_events(block, where)
        yield {"type": "content_block_start", "index": index, "content_block": empty_block}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": end, "usage": {"output_tokens": usage.get("output_tokens", 0)}}
    yield {"type": "message_stop"}


def _block_events(block: Json, where: str) -> tuple[Json, list[Json]]:
    """Return the empty block and the deltas that fill it."""
    kind = text_at(block, "type", where)
    if kind == "text":
        text = text_at(block, "text", where)
        return {**block, "text": ""}, [{"type": "text_delta", "text": text}] if text else []
    if kind == "tool_use":
        arguments = dump_json(dict_at(block, "input", where), f"{where}.input")
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": arguments}]
    if kind == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": text_at(block, "thinking", where)}]
        signature = optional_text_at(block, "signature", where)
        if signature:
            deltas.append({"type": "signature_delta", "signature": signature})
        return {**block, "thinking": "", "signature": ""}, deltas
    if kind == "redacted_thinking":
        return block, []
    raise inexpressible(kind, f"a stream of {MESSAGES}", where)


def message_from_events(events: Iterable[Any]) -> Json:
    """Return the Anthropic message that a stream of events adds up to.

    Raises:
        ConversionError: the stream reports an error or stops before the end.
    """
    message: Json | None = None
    blocks: dict[int, Json] = {}
    inputs: dict[int, str] = {}
    for event, where in iter_dicts(iter(events), "events"):
        kind = text_at(event, "type", where)
        if kind == "message_start":
            message = dict(dict_at(event, "message", where))
        elif kind == "content_block_start":
            blocks[_index_of(event, None, "a block", where)] = dict(dict_at(event, "content_block", where))
        elif kind == "content_block_delta":
            _add_block_delta(blocks, inputs, event, where)
        elif kind == "message_delta" and message is not None:
            message |= dict_at(event, "delta", where)
            message["usage"] = optional_dict_at(message, "usage", where) | optional_dict_at(event, "usage", where)
        elif kind == "message_stop" and message is not None:
            _parse_inputs(blocks, inputs)
            return message | {"content": [blocks[index] for index in sorted(blocks)]}
        elif kind == "error":
            raise _stream_error(event.get("error"), where)
    raise ConversionError("the stream stops before the message is finished", where="stream")


def _add_block_delta(blocks: dict[int, Json], inputs: dict[int, str], event: Json, where: str) -> None:
    index = _index_of(event, None, "a block", where)
    delta = dict_at(event, "delta", where)
    kind = text_at(delta, "type", where)
    if index not in blocks:
        raise ConversionError(f"block {index} has not started", where=where)
    block = blocks[index]
    if kind == "input_json_delta":
        inputs[index] = inputs.get(index, "") + text_at(delta, "partial_json", where)
    elif kind in ("text_delta", "thinking_delta", "signature_delta"):
        key = kind.removesuffix("_delta")
        block[key] = optional_text_at(block, key, where) + text_at(delta, key, where)
    elif kind == "citations_delta":
        block["citations"] = [*optional_list_at(block, "citations", where), delta.get("citation")]
    else:
        raise ConversionError(f"{kind!r} is not a known delta", where=where)


def _parse_inputs(blocks: dict[int, Json], inputs: dict[int, str]) -> None:
    for index, text in inputs.items():
        try:
            blocks[index]["input"] = json.loads(text) if text else {}
        except (ValueError, RecursionError) as error:
            raise ConversionError("a tool's input is not JSON", where=f"content[{index}]") from error


def events_from_response(response: Json) -> Iterator[Json]:
    """Yield a response as `created`, one `output_item.done` per item, `completed`.

    An incomplete response also ends with `completed`, its status inside: clients take `incomplete` for a failure of the
    connection and ask again.
    """
    response = expect_dict(response, "response")
    output = expect_list(response.get("output"), "output")
    start = {**response, "status": "in_progress", "output": [], "incomplete_details": None, "usage": None}
    yield {"type": "response.created", "sequence_number": 0, "response": start}
    for index, item in enumerate(output):
        number = index + 1
        yield {"type": "response.output_item.done", "sequence_number": number, "output_index": index, "item": item}
    yield {"type": "response.completed", "sequence_number": len(output) + 1, "response": response}


def events_of_failure(message: str, *, model: str, response_id: str, created_at: int, code: str) -> Iterator[Json]:
    """Yield `created`, then `failed`: the failure of a stream that has begun with status 200."""
    response = response_skeleton(response_id, created_at, model) | {"status": "in_progress"}
    yield {"type": "response.created", "sequence_number": 0, "response": response}
    failed = {**response, "status": "failed", "error": {"code": code, "message": message}}
    yield {"type": "response.failed", "sequence_number": 1, "response": failed}


def response_from_events(events: Iterable[Any]) -> Json:
    """Return the response that a stream ends with; a failed one has an `error`.

    Some servers leave `output` of the last event empty: then it consists of the items of `output_item.done`.

    Raises:
        ConversionError: the stream reports an error or stops before the end.
    """
    items: dict[int, Any] = {}
    for event, where in iter_dicts(iter(events), "events"):
        kind = text_at(event, "type", where)
        if kind == "response.output_item.done":
            index = event.get("output_index")
            items[index if isinstance(index, int) else len(items)] = dict_at(event, "item", where)
        elif kind == "error":
            raise _stream_error(event.get("message"), where)
        elif kind in _FINAL_EVENTS:
            response = dict_at(event, "response", where)
            if items and not response.get("output"):
                response = {**response, "output": [items[index] for index in sorted(items)]}
            return response
    raise ConversionError("the stream stops before the response is finished", where="stream")


def _index_of(part: Json, default: int | None, subject: str, where: str) -> int:
    index = part.get("index", default)
    if not isinstance(index, int):
        raise ConversionError(f"{subject}'s index is not a number", where=where)
    return index


def _stream_error(error: Any, where: str) -> ConversionError:
    return ConversionError(f"the stream reports an error: {short_repr(error)}", where=where)
