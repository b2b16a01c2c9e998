"""Convert finished replies to stream events and back, in all three dialects.

Token ids are not streamed, because many clients limit the length of a line.
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
from nemo_gym.convert.responses_chat import empty_response
from nemo_gym.errors import ConversionError
from nemo_gym.wire.base import GENERATION_FIELDS, TOKEN_FIELDS

_TEXT_FIELDS = ("content", "refusal", "reasoning_content", "reasoning")
_FIRST_FIELDS = ("role", "reasoning_content", "content", "tool_calls")
FINAL_EVENTS = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")


def chunks_from_completion(completion: Json, *, include_usage: bool = False) -> Iterator[Json]:
    """Yield a Chat completion as chunks: role, reasoning, content, tool calls, other fields and end; then usage."""
    completion = expect_dict(completion, "completion")
    head = {key: value for key, value in completion.items() if key not in ("choices", "usage", "object")}
    head["object"] = "chat.completion.chunk"
    if include_usage:
        head["usage"] = None
    for position, (choice, path) in enumerate(iter_dicts(completion.get("choices"), "choices")):
        index = choice.get("index", position)
        for delta in _chat_deltas(dict_at(choice, "message", path), f"{path}.message"):
            yield {**head, "choices": [{"index": index, "delta": delta, "finish_reason": None}]}
        last_part: Json = {"index": index, "delta": {}, "finish_reason": choice.get("finish_reason")}
        if choice.get("logprobs") is not None:
            last_part["logprobs"] = choice["logprobs"]
        yield {**head, "choices": [last_part]}
    if include_usage:
        yield {**head, "choices": [], "usage": completion.get("usage")}


def _chat_deltas(message: Json, path: str) -> Iterator[Json]:
    """Yield the parts of a message in the order in which models stream them."""
    yield {"role": message.get("role") or "assistant"}
    for key in ("reasoning_content", "content"):
        if message.get(key) is not None:
            yield {key: message[key]}
    calls = list(iter_dicts(optional_list_at(message, "tool_calls", path), f"{path}.tool_calls"))
    if calls:
        yield {"tool_calls": [{"index": index, **call} for index, (call, _) in enumerate(calls)]}
    skipped = (*_FIRST_FIELDS, *TOKEN_FIELDS, *GENERATION_FIELDS)
    other_fields = {key: value for key, value in message.items() if key not in skipped and value is not None}
    if other_fields:
        yield other_fields


def completion_from_chunks(chunks: Iterable[Any]) -> Json:
    """Build the Chat completion from a stream of chunks.

    Raises:
        ConversionError: a chunk reports an error, or the stream has no choice or an unfinished one.
    """
    completion: Json = {}
    choices: dict[int, Json] = {}
    for chunk, path in iter_dicts(iter(chunks), "chunks"):
        if chunk.get("error") is not None:
            raise _stream_error(chunk["error"], path)
        completion |= {key: value for key, value in chunk.items() if key != "choices" and value is not None}
        for part in optional_list_at(chunk, "choices", path):
            _add_to_choice(choices, expect_dict(part, path), path)
    if not choices:
        raise ConversionError("the stream contains no answer", where="stream")
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


def _add_to_choice(choices: dict[int, Json], part: Json, path: str) -> None:
    """Add the part of a choice in one chunk to the choice that is being built."""
    index = _index_of(part, 0, "a choice", path)
    empty = {"index": index, "message": {"role": "assistant", "content": None}, "finish_reason": None, "logprobs": None}
    choice = choices.setdefault(index, empty)
    if part.get("delta") is not None:
        _add_chat_delta(choice["message"], dict_at(part, "delta", path), path)
    if part.get("finish_reason") is not None:
        choice["finish_reason"] = part["finish_reason"]
    if part.get("logprobs") is not None:
        _add_logprobs(choice, dict_at(part, "logprobs", path), path)


def _add_chat_delta(message: Json, delta: Json, path: str) -> None:
    """Add a delta to a message: texts are appended, other fields replaced."""
    for key, value in delta.items():
        if key == "tool_calls":
            for call in optional_list_at(delta, key, path):
                _add_call(message.setdefault(key, {}), expect_dict(call, path), path)
        elif key in _TEXT_FIELDS and isinstance(value, str):
            message[key] = (message.get(key) or "") + value
        elif value is not None:
            message[key] = value


def _add_call(calls: dict[int, Json], piece: Json, path: str) -> None:
    """Add a piece of a tool call: pieces of the arguments are appended, other fields replaced."""
    call = calls.setdefault(_index_of(piece, len(calls), "a tool call", path), {})
    call |= {key: value for key, value in piece.items() if key not in ("index", "function") and value is not None}
    if piece.get("function") is None:
        return
    function = call.setdefault("function", {})
    for key, value in dict_at(piece, "function", path).items():
        if key == "arguments" and isinstance(value, str):
            function[key] = function.get(key, "") + value
        elif value is not None:
            function[key] = value


def _add_logprobs(choice: Json, logprobs: Json, path: str) -> None:
    """Append the log-probabilities of one chunk to those of the choice."""
    if choice["logprobs"] is None:
        choice["logprobs"] = {"content": None, "refusal": None}
    for key, value in logprobs.items():
        if isinstance(value, list):
            choice["logprobs"][key] = (choice["logprobs"].get(key) or []) + value
        elif value is not None:
            raise ConversionError(f"logprobs.{key} is not a list", where=path)


def events_from_message(message: Json) -> Iterator[Json]:
    """Yield an Anthropic message as `message_start`, the events of its blocks, `message_delta` and `message_stop`."""
    message = expect_dict(message, "message")
    usage = optional_dict_at(message, "usage", "message")
    stop_fields = {"stop_reason": message.get("stop_reason"), "stop_sequence": message.get("stop_sequence")}
    empty_message = {**message, **dict.fromkeys(stop_fields), "content": [], "usage": {**usage, "output_tokens": 0}}
    yield {"type": "message_start", "message": empty_message}
    for index, (block, path) in enumerate(iter_dicts(message.get("content"), "content")):
        empty_block, deltas = _block_events(block, path)
        yield {"type": "content_block_start", "index": index, "content_block": empty_block}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": stop_fields, "usage": {"output_tokens": usage.get("output_tokens", 0)}}
    yield {"type": "message_stop"}


def _block_events(block: Json, path: str) -> tuple[Json, list[Json]]:
    """Return the block without its content, as it starts, and the deltas that add the content."""
    kind = text_at(block, "type", path)
    if kind == "text":
        text = text_at(block, "text", path)
        return {**block, "text": ""}, [{"type": "text_delta", "text": text}] if text else []
    if kind == "tool_use":
        arguments = dump_json(dict_at(block, "input", path), f"{path}.input")
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": arguments}]
    if kind == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": text_at(block, "thinking", path)}]
        signature = optional_text_at(block, "signature", path)
        if signature:
            deltas.append({"type": "signature_delta", "signature": signature})
        return {**block, "thinking": "", "signature": ""}, deltas
    if kind == "redacted_thinking":
        return block, []
    raise inexpressible(kind, f"a stream of {MESSAGES}", path)


def message_from_events(events: Iterable[Any]) -> Json:
    """Build the Anthropic message from a stream of events.

    Raises:
        ConversionError: the stream reports an error or stops before the end.
    """
    message: Json | None = None
    blocks: dict[int, Json] = {}
    inputs: dict[int, str] = {}
    for event, path in iter_dicts(iter(events), "events"):
        kind = text_at(event, "type", path)
        if kind == "message_start":
            message = dict(dict_at(event, "message", path))
        elif kind == "content_block_start":
            blocks[_index_of(event, None, "a block", path)] = dict(dict_at(event, "content_block", path))
        elif kind == "content_block_delta":
            _add_block_delta(blocks, inputs, event, path)
        elif kind == "message_delta" and message is not None:
            message |= dict_at(event, "delta", path)
            message["usage"] = optional_dict_at(message, "usage", path) | optional_dict_at(event, "usage", path)
        elif kind == "message_stop" and message is not None:
            _parse_inputs(blocks, inputs)
            return message | {"content": [blocks[index] for index in sorted(blocks)]}
        elif kind == "error":
            raise _stream_error(event.get("error"), path)
    raise ConversionError("the stream stops before the message is finished", where="stream")


def _add_block_delta(blocks: dict[int, Json], inputs: dict[int, str], event: Json, path: str) -> None:
    """Append a delta to its block; the JSON text of a tool's input is collected in `inputs`."""
    index = _index_of(event, None, "a block", path)
    delta = dict_at(event, "delta", path)
    kind = text_at(delta, "type", path)
    if index not in blocks:
        raise ConversionError(f"block {index} has not started", where=path)
    block = blocks[index]
    if kind == "input_json_delta":
        inputs[index] = inputs.get(index, "") + text_at(delta, "partial_json", path)
    elif kind in ("text_delta", "thinking_delta", "signature_delta"):
        key = kind.removesuffix("_delta")
        block[key] = optional_text_at(block, key, path) + text_at(delta, key, path)
    elif kind == "citations_delta":
        block["citations"] = [*optional_list_at(block, "citations", path), delta.get("citation")]
    else:
        raise ConversionError(f"{kind!r} is not a known delta", where=path)


def _parse_inputs(blocks: dict[int, Json], inputs: dict[int, str]) -> None:
    """Set the input of each tool use block to its parsed JSON text from `inputs`."""
    for index, text in inputs.items():
        try:
            blocks[index]["input"] = json.loads(text) if text else {}
        except (ValueError, RecursionError) as error:
            raise ConversionError("a tool's input is not JSON", where=f"content[{index}]") from error


def events_from_response(response: Json) -> Iterator[Json]:
    """Yield a response as `created`, one `output_item.done` per item, `completed`.

    The last event of an incomplete response is `completed`, too; its status is inside. Clients would mistake
    `incomplete` for a failed connection and send the request again.
    """
    response = expect_dict(response, "response")
    output = expect_list(response.get("output"), "output")
    start = {**response, "status": "in_progress", "output": [], "incomplete_details": None, "usage": None}
    yield {"type": "response.created", "sequence_number": 0, "response": start}
    for index, item in enumerate(output):
        number = index + 1
        yield {"type": "response.output_item.done", "sequence_number": number, "output_index": index, "item": item}
    yield {"type": "response.completed", "sequence_number": len(output) + 1, "response": response}


def events_of_failure(message: str, *, model: str, response_id: str, created_at: int) -> Iterator[Json]:
    """Yield `created`, then `failed`: the failure of a stream that has begun with status 200."""
    response = empty_response(response_id, created_at, model) | {"status": "in_progress"}
    yield {"type": "response.created", "sequence_number": 0, "response": response}
    failed = {**response, "status": "failed", "error": {"code": "server_error", "message": message}}
    yield {"type": "response.failed", "sequence_number": 1, "response": failed}


def response_from_events(events: Iterable[Any]) -> Json:
    """Return the response in the last event of a stream; a failed response has an `error`.

    Some servers leave its `output` empty; then the items of the `output_item.done` events are used.

    Raises:
        ConversionError: the stream reports an error or stops before the end.
    """
    items: dict[int, Any] = {}
    for event, path in iter_dicts(iter(events), "events"):
        kind = text_at(event, "type", path)
        if kind == "response.output_item.done":
            index = event.get("output_index")
            items[index if isinstance(index, int) else len(items)] = dict_at(event, "item", path)
        elif kind == "error":
            raise _stream_error(event.get("message"), path)
        elif kind in FINAL_EVENTS:
            response = dict_at(event, "response", path)
            if items and not response.get("output"):
                response = {**response, "output": [items[index] for index in sorted(items)]}
            return response
    raise ConversionError("the stream stops before the response is finished", where="stream")


def _index_of(part: Json, default: int | None, subject: str, path: str) -> int:
    """Return the `index` of a part; if it has none, `default`, or an error if that is None."""
    index = part.get("index", default)
    if not isinstance(index, int):
        raise ConversionError(f"{subject}'s index is not a number", where=path)
    return index


def _stream_error(error: Any, path: str) -> ConversionError:
    return ConversionError(f"the stream reports an error: {short_repr(error)}", where=path)
