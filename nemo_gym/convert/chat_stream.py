"""Chunks of a Chat Completions stream: a completion as chunks, chunks as a completion, and chunks as answer events.

`ChunkDecoder` translates the chunks of an endpoint to the events of `response_events` while they arrive.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from nemo_gym.convert.answer_repair import NO_ARGUMENTS, is_blank, with_arguments
from nemo_gym.convert.flattened_tools import CUSTOM_TOOL_CALL, custom_call_item
from nemo_gym.convert.json_access import (
    Json,
    NewId,
    dict_at,
    expect_dict,
    iter_dicts,
    optional_list_at,
    short_repr,
)
from nemo_gym.convert.response_events import content_events, delta_event, done_event, item_added, opening_events
from nemo_gym.convert.responses_chat import empty_response
from nemo_gym.convert.thought_splitter import ThinkTagSplitter
from nemo_gym.errors import ConversionError
from nemo_gym.wire.base import GENERATION_FIELDS, TOKEN_FIELDS

_TEXT_FIELDS = ("content", "refusal", "reasoning_content")
_FIRST_FIELDS = ("role", "reasoning_content", "reasoning", "content", "tool_calls")
_TOKEN_LISTS = ("token_ids", "routed_experts")


def reasoning_text(message: Json) -> str | None:
    """Return the reasoning that an endpoint separated from the text; some send it under both names."""
    for name in ("reasoning_content", "reasoning"):
        if isinstance(message.get(name), str) and message[name]:
            return str(message[name])
    return None


def with_one_reasoning(delta: Json) -> Json:
    """Return a delta whose reasoning is in `reasoning_content`; some endpoints name it `reasoning`, some both."""
    if "reasoning" not in delta:
        return delta
    other_fields = {key: value for key, value in delta.items() if key != "reasoning"}
    if not other_fields.get("reasoning_content") and delta["reasoning"] is not None:
        other_fields["reasoning_content"] = delta["reasoning"]
    return other_fields


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
        yield usage_chunk(completion)


def usage_chunk(completion: Json) -> Json:
    """Return the last chunk of a stream whose client requested the token counts."""
    head = {key: value for key, value in completion.items() if key not in ("choices", "usage", "object")}
    return {**head, "object": "chat.completion.chunk", "choices": [], "usage": completion.get("usage")}


def _chat_deltas(message: Json, path: str) -> Iterator[Json]:
    """Yield the parts of a message in the order in which models stream them, without token ids.

    Token ids are not streamed, because many clients limit the length of a line.
    """
    yield {"role": message.get("role") or "assistant"}
    reasoning = reasoning_text(message)
    if reasoning is not None:
        yield {"reasoning_content": reasoning}
    if message.get("content") is not None:
        yield {"content": message["content"]}
    calls = list(iter_dicts(optional_list_at(message, "tool_calls", path), f"{path}.tool_calls"))
    for index, (call, _) in enumerate(calls):
        yield {"tool_calls": [{"index": index, **call}]}
    skipped = (*_FIRST_FIELDS, *TOKEN_FIELDS, *GENERATION_FIELDS)
    other_fields = {key: value for key, value in message.items() if key not in skipped and value is not None}
    if other_fields:
        yield other_fields


def completion_from_chunks(chunks: Iterable[Any]) -> Json:
    """Build the Chat completion from a stream of chunks.

    Raises:
        ConversionError: a chunk reports an error, or the stream has no choice or an unfinished one.
    """
    builder = CompletionBuilder()
    for chunk, path in iter_dicts(iter(chunks), "chunks"):
        builder.add(chunk, path)
    return builder.completion()


class TextPieces(list[str]):
    """A text that is not complete."""


class CompletionBuilder:
    """Builds a Chat completion, with the token ids and log-probabilities of its chunks, while they arrive."""

    def __init__(self) -> None:
        self._fields: Json = {}
        self._choices: dict[int, Json] = {}

    def add(self, chunk: Json, path: str = "chunk") -> None:
        """Add one chunk.

        Raises:
            ConversionError: the chunk reports an error or is malformed.
        """
        if chunk.get("error") is not None:
            raise ConversionError(f"the stream reports an error: {short_repr(chunk['error'])}", where=path)
        self._fields |= {key: value for key, value in chunk.items() if key != "choices" and value is not None}
        for part in optional_list_at(chunk, "choices", path):
            _add_to_choice(self._choices, expect_dict(part, path), path)

    def completion(self) -> Json:
        """Return the completion.

        Raises:
            ConversionError: the stream has no choice or an unfinished one.
        """
        if not self._choices:
            raise ConversionError("the stream contains no answer", where="stream")
        for index, choice in self._choices.items():
            if choice["finish_reason"] is None:
                raise ConversionError("the stream stops before the answer is finished", where=f"choices[{index}]")
            message = choice["message"]
            calls = message.pop("tool_calls", None) or {}
            for holder in (message, *(call.get("function") or {} for call in calls.values())):
                holder.update({key: "".join(value) for key, value in holder.items() if isinstance(value, TextPieces)})
            if calls:
                message["tool_calls"] = [_with_all_arguments(calls[key]) for key in sorted(calls)]
        choices = [self._choices[index] for index in sorted(self._choices)]
        return {"usage": None, **self._fields, "object": "chat.completion", "choices": choices}


def _with_all_arguments(call: Json) -> Json:
    """Return a call with arguments; empty ones are left to `validate_or_repair`, which knows the whole answer."""
    function = call.get("function") or {}
    return call if isinstance(function.get("arguments"), str) else with_arguments(call)


def _add_to_choice(choices: dict[int, Json], part: Json, path: str) -> None:
    """Add the part of a choice in one chunk to the choice that is being built."""
    index = index_of(part, 0, "a choice", path)
    empty = {"index": index, "message": {"role": "assistant", "content": None}, "finish_reason": None, "logprobs": None}
    choice = choices.setdefault(index, empty)
    for key, value in part.items():
        if key == "delta" and value is not None:
            _add_chat_delta(choice["message"], dict_at(part, "delta", path), path)
        elif key == "logprobs" and value is not None:
            _add_logprobs(choice, dict_at(part, "logprobs", path), path)
        elif key in _TOKEN_LISTS and isinstance(value, list):
            choice[key] = choice[key] if isinstance(choice.get(key), list) else []
            choice[key].extend(value)
        elif key == "finish_reason":
            choice[key] = value or choice[key]  # some endpoints send an empty reason until the end
        elif key not in ("delta", "logprobs", "index", "message") and value is not None:
            choice[key] = value


def _add_chat_delta(message: Json, delta: Json, path: str) -> None:
    """Add a delta to a message: texts are appended, other fields replaced."""
    for key, value in with_one_reasoning(delta).items():
        if key == "tool_calls":
            for call in optional_list_at(delta, key, path):
                _add_call(message.setdefault(key, CallPieces()), expect_dict(call, path), path)
        elif key in _TEXT_FIELDS and isinstance(value, str):
            _add_text(message, key, value)
        elif value is not None:
            message[key] = value


def _add_text(holder: Json, key: str, piece: str) -> None:
    """Add a piece to a text, which is joined at the end: an answer may have a hundred thousand pieces."""
    pieces = holder.get(key)
    if not isinstance(pieces, TextPieces):
        pieces = holder[key] = TextPieces()
    pieces.append(piece)


class CallPieces(dict[int, Json]):
    """The tool calls of a stream by their number."""

    def __init__(self) -> None:
        """Start without calls."""
        super().__init__()
        self._open: dict[int, int] = {}
        """The number of the open call by the index that the endpoint gives."""
        self._last = 0
        """The index of the last piece."""

    def number_of(self, piece: Json, path: str) -> int:
        """Return the number of the call that a piece belongs to.

        Some endpoints give every call the index 0, so a name with another id begins another call. An id alone does
        not: older vLLM gives each piece a new one. Where ids are left out, another name does. Without an index, a name
        begins a call, unless the piece repeats the id and the name of an earlier one.
        """
        function = piece.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        is_named = bool(name)
        index = piece.get("index")
        index = int(index) if isinstance(index, str) and index.isdecimal() else index
        if index is None:
            again = self._index_of_repeated(piece.get("id"), name) if is_named else self._last
            index = again if again is not None and self._open else len(self)
        index = index_of({"index": index}, None, "a tool call", path)
        number = self._open.get(index)
        if number is None:
            number = len(self)
        else:
            first_id = self[number].get("id")
            is_other_id = first_id and piece.get("id") and piece["id"] != first_id
            if is_named and (is_other_id or (not piece.get("id") and name != (_name_of(self[number]) or name))):
                number = len(self)
        self._open[index], self._last = number, index
        return number

    def _index_of_repeated(self, call_id: Any, name: Any) -> int | None:
        """Return the index of the newest open call with an id and a name; None without one."""
        same = (
            index
            for index, number in reversed(self._open.items())
            if call_id and self[number].get("id") == call_id and _name_of(self[number]) == name
        )
        return next(same, None)

    def note(self, piece: Json, path: str) -> int:
        """Note the id of a call and whether it has arguments; return its number."""
        number = self.number_of(piece, path)
        call = self.setdefault(number, {"id": None, "name": "", "has_arguments": False})
        function = expect_dict(piece.get("function") or {}, path)
        call["id"] = piece.get("id") or call["id"]
        call["name"] = function.get("name") or call["name"]
        call["has_arguments"] = call["has_arguments"] or not is_blank(function.get("arguments"))
        return number


def _name_of(call: Json) -> Any:
    """Return the name of a call: that of its function, or the one that was noted."""
    return (call.get("function") or call).get("name")


def _add_call(calls: CallPieces, piece: Json, path: str) -> None:
    """Add a piece of a tool call: pieces of the arguments are appended, other fields replaced."""
    call = calls.setdefault(calls.number_of(piece, path), {})
    call |= {key: value for key, value in piece.items() if key not in ("index", "function") and value not in (None, "")}
    if piece.get("function") is None:
        return
    function = call.setdefault("function", {})
    for key, value in dict_at(piece, "function", path).items():
        if key == "arguments" and isinstance(value, str):
            _add_text(function, key, value)
        elif value not in (None, ""):
            function[key] = value


def _add_logprobs(choice: Json, logprobs: Json, path: str) -> None:
    """Append the log-probabilities of one chunk to those of the choice."""
    if choice["logprobs"] is None:
        choice["logprobs"] = {"content": None, "refusal": None}
    for key, value in logprobs.items():
        if isinstance(value, list):
            if choice["logprobs"].get(key) is None:
                choice["logprobs"][key] = []
            choice["logprobs"][key].extend(value)
        elif value is not None:
            raise ConversionError(f"logprobs.{key} is not a list", where=path)


def index_of(part: Json, default: int | None, subject: str, path: str) -> int:
    """Return the `index` of a part; if it has none, `default`, or an error if that is None."""
    index = part.get("index", default)
    if not isinstance(index, int):
        raise ConversionError(f"{subject}'s index is not a number", where=path)
    return index


class ChunkDecoder:
    """Translates the chunks of a Chat stream to the events of a response while they arrive.

    One item is open at a time. The calls of an endpoint that writes several at once come one after the other: pieces of
    a later call wait until the arguments of the open one are complete. `items` holds the finished items, `response` the
    empty response of the first event. With `split_tags`, thoughts in the text become reasoning; `holds_back` is that of
    `ThinkTagSplitter`. Calls of the tools in `custom_tools` become custom tool calls.
    """

    def __init__(
        self,
        *,
        new_id: NewId,
        split_tags: bool = False,
        holds_back: bool = False,
        custom_tools: frozenset[str] = frozenset(),
        **options: Any,
    ) -> None:
        """Prepare a decoder; `options` are fields of the response."""
        self.items: list[Json] = []
        self.response: Json = {}
        self._new_id = new_id
        self._splitter = ThinkTagSplitter(holds_back=holds_back) if split_tags else None
        self._custom_tools = custom_tools
        self._options = options
        self._item: Json | None = None
        self._calls = CallPieces()
        self._waiting: list[int] = []
        """Indices of the tool calls that have begun and are not finished, in order; the first one is open."""
        self._pieces: dict[int, list[str]] = {}

    @property
    def began_inside_thought(self) -> bool:
        """Return whether the text ended a thought that had not begun in it."""
        return self._splitter is not None and self._splitter.began_inside

    def feed(self, chunk: Json, path: str = "chunk") -> list[Json]:
        """Return the events of one chunk; choices other than the first have no place in a response."""
        events: list[Json] = []
        if not self.response:
            created = chunk.get("created") or 0
            self.response = empty_response(self._new_id("resp"), created, chunk.get("model")) | self._options
            events += opening_events(self.response)
        for part in optional_list_at(chunk, "choices", path):
            choice = expect_dict(part, path)
            if choice.get("index", 0) == 0 and choice.get("delta") is not None:
                events += self._read_delta(dict_at(choice, "delta", path), path)
        return events

    def _read_delta(self, delta: Json, path: str) -> Iterator[Json]:
        reasoning = reasoning_text(delta)
        if reasoning is not None or delta.get("tool_calls"):
            yield from self._flush_text()
        if reasoning is not None:
            yield from self._add("reasoning", reasoning)
        content = delta.get("content")
        if isinstance(content, str) and content:
            parts = [(False, content)] if self._splitter is None else self._splitter.feed(content)
            for is_thought, text in parts:
                yield from self._add("reasoning" if is_thought else "output_text", text)
        if isinstance(delta.get("refusal"), str):
            yield from self._add("refusal", delta["refusal"])
        for call in optional_list_at(delta, "tool_calls", path):
            yield from self._read_call(expect_dict(call, path), path)

    def finish(self) -> list[Json]:
        """Return the events that close the open items; an answer without content gets an empty message."""
        events = [*self._flush_text(), *self._finish_calls()]
        if not self.items and self._item is None:
            events += self._open_part("output_text")
        return [*events, *self._close()]

    def _flush_text(self) -> Iterator[Json]:
        """Add the text that the splitter holds back."""
        if self._splitter is not None:
            is_thought, text = self._splitter.flush()
            yield from self._add("reasoning" if is_thought else "output_text", text)

    def _add(self, kind: str, text: str) -> Iterator[Json]:
        """Add text of one kind to the open item, or to a new one if the open item is of another kind."""
        if not text:
            return
        if self._item is None or self._item["kind"] != kind:
            yield from self._finish_calls()
            yield from self._open_part(kind)
        assert self._item is not None
        self._item["texts"].append(text)
        name = "reasoning_summary_text" if kind == "reasoning" else kind
        yield delta_event(name, text, self._item["place"])

    def _open_part(self, kind: str) -> Iterator[Json]:
        yield from self._close()
        if kind == "reasoning":
            item: Json = {"type": "reasoning", "id": self._new_id("rs"), "summary": []}
            part: Json = {"type": "summary_text", "text": ""}
            place = "summary_index"
        else:
            item = {"type": "message", "id": self._new_id("msg"), "role": "assistant", "status": "completed"}
            item["content"], place = [], "content_index"
            part = {"type": kind, "text": "", "annotations": []} if kind == "output_text" else {"type": kind, kind: ""}
        self._begin(item, kind)
        assert self._item is not None
        self._item["place"][place] = 0
        yield item_added(item, len(self.items))
        name = "reasoning_summary_part" if kind == "reasoning" else "content_part"
        yield {"type": f"response.{name}.added", **self._item["place"], "part": part}

    def _begin(self, item: Json, kind: str) -> None:
        place = {"item_id": item["id"], "output_index": len(self.items)}
        self._item = {"item": item, "kind": kind, "texts": [], "place": place}

    def _close(self) -> Iterator[Json]:
        """Finish the open item, if any."""
        if self._item is None:
            return
        item, kind, place = self._item["item"], self._item["kind"], self._item["place"]
        text = "".join(self._item["texts"])
        if kind == "reasoning":
            part = {"type": "summary_text", "text": text}
            item = {**item, "summary": [part]}
            yield done_event("reasoning_summary_text", "text", text, place)
            yield {"type": "response.reasoning_summary_part.done", **place, "part": part}
        elif kind == "call":
            if not self._calls[self._item["call"]]["has_arguments"]:
                text += NO_ARGUMENTS
                yield delta_event("function_call_arguments", NO_ARGUMENTS, place)
            yield done_event("function_call_arguments", "arguments", text, place)
            item = {**item, "arguments": text}
        elif kind == CUSTOM_TOOL_CALL:
            item = custom_call_item({**item, "arguments": text})
            yield from content_events(item, len(self.items))
        else:
            field = "text" if kind == "output_text" else kind
            part = {"type": kind, field: text} | ({"annotations": []} if kind == "output_text" else {})
            item = {**item, "content": [part]}
            yield done_event(kind, field, text, place)
            yield {"type": "response.content_part.done", **place, "part": part}
        yield {"type": "response.output_item.done", "output_index": len(self.items), "item": item}
        self.items.append(item)
        self._item = None

    def _read_call(self, piece: Json, path: str) -> Iterator[Json]:
        """Add a piece of a tool call; it is written at once if the call is the open one."""
        index = self._calls.note(piece, path)
        arguments = expect_dict(piece.get("function") or {}, path).get("arguments")
        if index not in self._pieces:
            self._pieces[index] = []
            self._waiting.append(index)
        elif index not in self._waiting and isinstance(arguments, str) and arguments.strip():
            raise ConversionError(f"the stream continues tool call {index}, whose arguments are complete", where=path)
        if isinstance(arguments, str):
            self._pieces[index].append(arguments)
        while self._waiting:
            yield from self._write_call(self._waiting[0])
            if len(self._waiting) == 1 or not self._is_complete():
                return
            yield from self._close()
            self._waiting.pop(0)

    def _write_call(self, index: int) -> Iterator[Json]:
        """Write the pieces of a call that have not been written, and the start of its item if it is new."""
        is_open = self._item is not None and self._item.get("call") == index
        if not is_open:
            yield from self._close()
            call = self._calls[index]
            call_id = str(call["id"] or self._new_id("call"))
            is_custom = call["name"] in self._custom_tools
            fields = {"id": call_id, "call_id": call_id, "name": call["name"], "arguments": "", "status": "completed"}
            item = {"type": "function_call", **fields}
            self._begin(item, CUSTOM_TOOL_CALL if is_custom else "call")
            assert self._item is not None
            self._item["call"] = index
            yield item_added(custom_call_item(item) if is_custom else item, len(self.items))
        assert self._item is not None
        pieces, self._pieces[index] = "".join(self._pieces[index]), []
        if not pieces:
            return
        self._item["texts"].append(pieces)
        if self._item["kind"] == "call":
            yield delta_event("function_call_arguments", pieces, self._item["place"])

    def _is_complete(self) -> bool:
        """Return whether the arguments of the open call are a whole JSON value."""
        assert self._item is not None
        try:
            json.loads("".join(self._item["texts"]))
        except ValueError:
            return False
        return True

    def _finish_calls(self) -> Iterator[Json]:
        """Write and close the calls that have begun; later pieces of them would be lost."""
        for index in self._waiting:
            yield from self._write_call(index)
            yield from self._close()
        self._waiting = []
