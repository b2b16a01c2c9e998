"""A finished Anthropic message as stream events, and such events as the finished message."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from nemo_gym.convert.shapes import (
    MESSAGES,
    Json,
    as_dict,
    dict_at,
    dump_json,
    each_dict,
    optional_dict_at,
    optional_list_at,
    optional_text_at,
    shown,
    text_at,
    unsayable,
)
from nemo_gym.errors import ConversionError


def events_from_message(message: Json) -> Iterator[Json]:
    """`message_start`, per block its start, deltas and stop, `message_delta`, `message_stop`."""
    message = as_dict(message, "message")
    usage = optional_dict_at(message, "usage", "message")
    begun = {
        **message,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**usage, "output_tokens": 0},
    }
    yield {"type": "message_start", "message": begun}
    for index, (block, where) in enumerate(each_dict(message.get("content"), "content")):
        start, deltas = _block_events(block, where)
        yield {"type": "content_block_start", "index": index, "content_block": start}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ended = {"stop_reason": message.get("stop_reason"), "stop_sequence": message.get("stop_sequence")}
    yield {"type": "message_delta", "delta": ended, "usage": {"output_tokens": usage.get("output_tokens", 0)}}
    yield {"type": "message_stop"}


def message_from_events(events: Iterable[Any]) -> Json:
    """The message a stream of events adds up to.

    Raises:
        ConversionError: the stream reports an error or stops before the end.
    """
    message: Json | None = None
    blocks: dict[int, Json] = {}
    inputs: dict[int, str] = {}
    for event, where in each_dict(iter(events), "events"):
        kind = text_at(event, "type", where)
        if kind == "message_start":
            message = dict(dict_at(event, "message", where))
        elif kind == "content_block_start":
            blocks[_index(event, where)] = dict(dict_at(event, "content_block", where))
        elif kind == "content_block_delta":
            _add_delta(blocks, inputs, event, where)
        elif kind == "message_delta" and message is not None:
            message |= dict_at(event, "delta", where)
            counted = optional_dict_at(message, "usage", where)
            message["usage"] = counted | optional_dict_at(event, "usage", where)
        elif kind == "message_stop" and message is not None:
            return _finished(message, blocks, inputs)
        elif kind == "error":
            raise ConversionError(f"the stream reports an error: {shown(event.get('error'))}", where=where)
    raise ConversionError("the stream stops before the message is finished", where="stream")


def _block_events(block: Json, where: str) -> tuple[Json, list[Json]]:
    """A block as it starts, empty, and the deltas that fill it."""
    kind = text_at(block, "type", where)
    if kind == "text":
        text = text_at(block, "text", where)
        return {**block, "text": ""}, [{"type": "text_delta", "text": text}] if text else []
    if kind == "tool_use":
        said = dump_json(dict_at(block, "input", where), f"{where}.input")
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": said}]
    if kind == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": text_at(block, "thinking", where)}]
        signature = optional_text_at(block, "signature", where)
        if signature:
            deltas.append({"type": "signature_delta", "signature": signature})
        return {**block, "thinking": "", "signature": ""}, deltas
    if kind == "redacted_thinking":
        return block, []
    raise unsayable(kind, f"a stream of {MESSAGES}", where)


def _add_delta(blocks: dict[int, Json], inputs: dict[int, str], event: Json, where: str) -> None:
    index = _index(event, where)
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
        raise ConversionError(f"{kind!r} is not a delta we know", where=where)


def _finished(message: Json, blocks: dict[int, Json], inputs: dict[int, str]) -> Json:
    for index, text in inputs.items():
        try:
            blocks[index]["input"] = json.loads(text) if text else {}
        except (ValueError, RecursionError) as error:
            raise ConversionError("a tool's input is not JSON", where=f"content[{index}]") from error
    return message | {"content": [blocks[index] for index in sorted(blocks)]}


def _index(event: Json, where: str) -> int:
    index = event.get("index")
    if not isinstance(index, int):
        raise ConversionError("a block's index is not a number", where=where)
    return index
