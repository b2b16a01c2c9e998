"""Events of a Messages stream: a message as events, events as a message, and answer events as events of a message.

`MessageEncoder` translates the events of `response_events` for a client of the Messages API while they arrive.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from nemo_gym.convert.anthropic_blocks import UNPARSED_ARGUMENTS, tool_use_block
from nemo_gym.convert.chat_stream import index_of
from nemo_gym.convert.json_access import (
    MESSAGES,
    Json,
    dict_at,
    dump_json,
    expect_dict,
    inexpressible,
    iter_dicts,
    optional_dict_at,
    optional_list_at,
    optional_text_at,
    short_repr,
    text_at,
)
from nemo_gym.convert.usage import usage_to_message
from nemo_gym.errors import ConversionError

PING: Json = {"type": "ping"}


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
            blocks[index_of(event, None, "a block", path)] = dict(dict_at(event, "content_block", path))
        elif kind == "content_block_delta":
            _add_block_delta(blocks, inputs, event, path)
        elif kind == "message_delta" and message is not None:
            message |= dict_at(event, "delta", path)
            usage = optional_dict_at(event, "usage", path)  # null: as at the start of the message
            counts = {name: count for name, count in usage.items() if count is not None}
            message["usage"] = optional_dict_at(message, "usage", path) | counts
        elif kind == "message_stop" and message is not None:
            _parse_inputs(blocks, inputs)
            return message | {"content": [blocks[index] for index in sorted(blocks)]}
        elif kind == "error":
            raise ConversionError(f"the stream reports an error: {short_repr(event.get('error'))}", where=path)
    raise ConversionError("the stream stops before the message is finished", where="stream")


def _add_block_delta(blocks: dict[int, Json], inputs: dict[int, str], event: Json, path: str) -> None:
    """Append a delta to its block; the JSON text of a tool's input is collected in `inputs`."""
    index = index_of(event, None, "a block", path)
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
    """Set the input of each tool use block to its parsed JSON text from `inputs`.

    A text that is no JSON object is kept under a key: an answer that reaches its token limit may end inside a call.
    """
    for index, text in inputs.items():
        try:
            tool_input = json.loads(text) if text else {}
        except (ValueError, RecursionError):
            tool_input = None
        blocks[index]["input"] = tool_input if isinstance(tool_input, dict) else {UNPARSED_ARGUMENTS: text}


class MessageEncoder:
    """Translates answer events to the events of a message while they arrive. One block is open at a time.

    A tool's input is one delta at the end of the call: clients parse it, and a model may write invalid JSON.
    """

    _DELTAS = {
        "response.output_text.delta": ("text", "text_delta"),
        "response.refusal.delta": ("text", "text_delta"),
        "response.reasoning_summary_text.delta": ("thinking", "thinking_delta"),
        "response.reasoning_text.delta": ("thinking", "thinking_delta"),
    }

    def __init__(self, model: str) -> None:
        """Prepare an encoder; `model` is the name of the model in the request."""
        self.has_begun = False
        self._model = model
        self._index = -1
        self._open: str | None = None

    def feed(self, event: Json) -> Iterator[Json]:
        """Yield the events for one event of the answer."""
        kind = event["type"]
        if not self.has_begun:
            self.has_begun = True
            yield {"type": "message_start", "message": self._empty_message(event.get("response") or {})}
            yield PING
        if kind in self._DELTAS:
            block, name = self._DELTAS[kind]
            if self._open != block:
                yield from self._begin({"type": block, block: "", **({"signature": ""} if block == "thinking" else {})})
            yield self._delta({"type": name, block: event["delta"]})
        elif kind == "response.reasoning_summary_part.added" and event.get("summary_index") and self._open:
            yield self._delta({"type": "thinking_delta", "thinking": "\n"})
        elif kind == "response.content_part.done":
            yield from self._end()
        elif kind == "response.output_item.done":
            yield from self._finish_item(event["item"])

    def finish(self, message: Json) -> Iterator[Json]:
        """Yield the last events; `message` is the whole answer."""
        yield from self._end()
        stop = {"stop_reason": message["stop_reason"], "stop_sequence": message.get("stop_sequence")}
        yield {"type": "message_delta", "delta": stop, "usage": message["usage"]}
        yield {"type": "message_stop"}

    def _finish_item(self, item: Json) -> Iterator[Json]:
        kind = item.get("type")
        if kind == "reasoning" and item.get("encrypted_content"):
            if self._open != "thinking":
                yield from self._begin({"type": "thinking", "thinking": "", "signature": ""})
            yield self._delta({"type": "signature_delta", "signature": item["encrypted_content"]})
        yield from self._end()
        if kind == "function_call":
            block, deltas = _block_events(tool_use_block(item, "item"), "item")
            yield from self._begin(block)
            yield from map(self._delta, deltas)
            yield from self._end()

    def _begin(self, block: Json) -> Iterator[Json]:
        yield from self._end()
        self._index += 1
        self._open = block["type"]
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _end(self) -> Iterator[Json]:
        if self._open is not None:
            self._open = None
            yield {"type": "content_block_stop", "index": self._index}

    def _empty_message(self, response: Json) -> Json:
        head = {"id": str(response.get("id") or "msg"), "type": "message", "role": "assistant", "model": self._model}
        usage = usage_to_message(None)
        return {**head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
