"""Events of a Responses stream: a finished response as events, and events as a response.

These events, without sequence numbers, are also the neutral form of a live answer: `chat_stream.ChunkDecoder` and
`ResponseEventDecoder` make them from what an endpoint streams, and each dialect of a client is encoded from them.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from nemo_gym.convert.json_access import Json, dict_at, expect_dict, expect_list, iter_dicts, short_repr, text_at
from nemo_gym.convert.responses_chat import empty_response
from nemo_gym.errors import ConversionError
from nemo_gym.wire.base import GENERATION_FIELDS, TOKEN_FIELDS

FINAL_EVENTS = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")

_OPENING_EVENTS = ("response.created", "response.in_progress")
_PART_OF_TEXT = {
    "output_text": "content_part",
    "refusal": "content_part",
    "reasoning_summary_text": "reasoning_summary_part",
}
"""The part that holds a text, by the name of the text's events."""
_CALL_EVENTS = ("function_call_arguments", "custom_tool_call_input")
_ITEM_OF_EVENT = {
    "content_part": "message",
    "output_text": "message",
    "refusal": "message",
    "reasoning_summary_text": "reasoning",
    "reasoning_summary_part": "reasoning",
    "reasoning_text": "reasoning",
}
"""The type of an item that can begin without its `output_item.added`, by the name of its events."""
_PART_INDEX = {
    name: "summary_index" if name.startswith("reasoning_summary") else "content_index" for name in _ITEM_OF_EVENT
}
"""The field with the number of a part, by the name of its events."""
_TEXT_FIELDS = {"output_text": "text", "refusal": "refusal"}
_UNFINISHED_FIELDS = frozenset({*TOKEN_FIELDS, *GENERATION_FIELDS, "encrypted_content"})
_EMPTY_FIELDS: dict[str, Json] = {
    "message": {"content": []},
    "function_call": {"arguments": ""},
    "custom_tool_call": {"input": ""},
    "reasoning": {"summary": []},
}
"""The fields of an item that fill while it is generated, as the item begins."""


def events_from_response(response: Json) -> Iterator[Json]:
    """Yield every event of a finished response, without sequence numbers."""
    response = expect_dict(response, "response")
    yield from opening_events(response)
    for index, item in enumerate(expect_list(response.get("output"), "output")):
        yield from item_events(item, index)
    yield closing_event(response)


def numbered_events(events: Iterable[Json]) -> Iterator[Json]:
    """Add the sequence numbers that clients expect."""
    for number, event in enumerate(events):
        yield {"type": event["type"], "sequence_number": number, **event}


def opening_events(response: Json) -> Iterator[Json]:
    """Yield the events with which a response begins; `response` may be finished or empty."""
    start = {**response, "status": "in_progress", "output": [], "incomplete_details": None, "usage": None}
    for name in ("created", "in_progress"):
        yield {"type": f"response.{name}", "response": start}


def closing_event(response: Json) -> Json:
    """Return the last event of a response.

    For an incomplete response it is `completed`, too; its status is inside. Clients would mistake `incomplete` for a
    failed connection and send the request again.
    """
    name = "failed" if response.get("status") == "failed" else "completed"
    return {"type": f"response.{name}", "response": response}


def item_events(item: Any, index: int) -> Iterator[Json]:
    """Yield the events of one finished output item."""
    item = expect_dict(item, f"output[{index}]")
    yield item_added(item, index)
    yield from content_events(item, index)
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def item_added(item: Json, index: int) -> Json:
    """Return the event with which an item begins: without its content, tokens and ciphertext."""
    kind = item.get("type")
    start = {key: value for key, value in item.items() if key not in _UNFINISHED_FIELDS}
    if isinstance(kind, str) and kind in _EMPTY_FIELDS:
        start |= {key: value for key, value in _EMPTY_FIELDS[kind].items() if key in item}
        if kind == "reasoning":
            start.pop("content", None)
    if "status" in start:
        start["status"] = "in_progress"
    return {"type": "response.output_item.added", "output_index": index, "item": start}


def content_events(item: Json, index: int) -> Iterator[Json]:
    """Yield the events between the start and the end of an item; none for an item of another kind or form."""
    kind = item.get("type")
    place: Json = {"item_id": item_id(item, index), "output_index": index}
    if kind == "message":
        for position, part in enumerate(_parts(item, "content")):
            yield from part_events(part, {**place, "content_index": position})
    elif kind == "function_call":
        yield from value_events("function_call_arguments", "arguments", item.get("arguments"), place)
    elif kind == "custom_tool_call":
        yield from value_events("custom_tool_call_input", "input", item.get("input"), place)
    elif kind == "reasoning":
        for position, part in enumerate(_parts(item, "summary")):
            yield from summary_events(part, {**place, "summary_index": position})
        for position, part in enumerate(_parts(item, "content")):
            yield from value_events("reasoning_text", "text", part.get("text"), {**place, "content_index": position})


def item_id(item: Json, index: int) -> str:
    """Return the id under which the events of an item refer to it."""
    return str(item.get("id") or item.get("call_id") or f"item_{index}")


def part_events(part: Json, place: Json) -> Iterator[Json]:
    """Yield the events of one finished part of a message."""
    kind = part.get("type")
    field = _TEXT_FIELDS.get(kind) if isinstance(kind, str) else None
    start = {**part, field: ""} if field else part
    extras: Json = {"annotations": []} if field == "text" else {}
    yield {"type": "response.content_part.added", **place, "part": {**start, **extras}}
    if field:
        yield from value_events(str(kind), field, part.get(field), place)
    yield {"type": "response.content_part.done", **place, "part": part}


def summary_events(part: Json, place: Json) -> Iterator[Json]:
    """Yield the events of one finished part of the summary of reasoning."""
    yield {"type": "response.reasoning_summary_part.added", **place, "part": {**part, "text": ""}}
    yield from value_events("reasoning_summary_text", "text", part.get("text"), place)
    yield {"type": "response.reasoning_summary_part.done", **place, "part": part}


def value_events(name: str, field: str, value: Any, place: Json) -> Iterator[Json]:
    """Yield one delta with a whole text and the event of its end; nothing if the value is not a text."""
    if not isinstance(value, str):
        return
    if value:
        yield delta_event(name, value, place)
    yield done_event(name, field, value, place)


def delta_event(name: str, piece: str, place: Json) -> Json:
    """Return the event of one more piece of a text."""
    return {"type": f"response.{name}.delta", **place, "delta": piece, **_LOGPROBS.get(name, {})}


def done_event(name: str, field: str, value: str, place: Json) -> Json:
    """Return the event of the end of a text."""
    return {"type": f"response.{name}.done", **place, field: value, **_LOGPROBS.get(name, {})}


_LOGPROBS: dict[str, Json] = {"output_text": {"logprobs": []}}
"""A required field of the events about texts; the log-probabilities are on the finished part."""


def _parts(item: Json, key: str) -> list[Json]:
    """Return the parts of an item; empty if the field is not a list of objects."""
    parts = item.get(key)
    return parts if isinstance(parts, list) and all(isinstance(part, dict) for part in parts) else []


def events_of_failure(message: str, *, code: str, model: str, response_id: str, created_at: int) -> Iterator[Json]:
    """Yield `created`, then `failed`: the failure of a stream that has begun with status 200."""
    response = empty_response(response_id, created_at, model) | {"status": "in_progress"}
    yield {"type": "response.created", "response": response}
    yield failed_event(response, message, code)


def failed_event(response: Json, message: str, code: str) -> Json:
    """Return the last event of a response that fails."""
    failed = {**response, "status": "failed", "error": {"code": code, "message": message}}
    return {"type": "response.failed", "response": failed}


def response_from_events(events: Iterable[Any]) -> Json:
    """Return the response in the last event of a stream; a failed response has an `error`.

    Some servers leave its `output` empty; then the items of the `output_item.done` events are used.

    Raises:
        ConversionError: the stream reports an error or stops before the end.
    """
    decoder = ResponseEventDecoder()
    for event, path in iter_dicts(iter(events), "events"):
        decoder.feed(event, path)
        if decoder.response is not None:
            return decoder.response
    raise ConversionError("the stream stops before the response is finished", where="stream")


class ResponseEventDecoder:
    """Decodes the Responses stream of an endpoint to complete events without sequence numbers.

    Endpoints leave events out: the first ones, those between the start and the end of an item, whole items, the end of
    an item. What is missing is added from what arrives, at last from the final response. `response` is set by the last
    event, which `feed` does not return.
    """

    def __init__(self) -> None:
        self.response: Json | None = None
        self._items: dict[int, Json] = {}
        self._begun: dict[int, SentEvents] = {}
        self._ids: dict[int, Any] = {}
        """The ids under which the client knows the items, by number."""
        self._numbers: dict[int, int] = {}
        """The number of the newest item by the number that the endpoint gives; some give every item the number 0."""
        self._opened = 0
        """The number of opening events that were sent."""
        self._start: Json = {}
        self._invented_id: str | None = None
        """The id of a response that began without the event that has it; clients expect one id to the end."""

    def feed(self, event: Json, path: str = "event") -> list[Json]:
        """Return the events for the client.

        Raises:
            ConversionError: the event reports an error or is malformed.
        """
        kind = text_at(event, "type", path)
        if kind == "error":
            raise ConversionError(f"the stream reports an error: {short_repr(event.get('message'))}", where=path)
        if kind in FINAL_EVENTS:
            return self._finish(dict_at(event, "response", path))
        event = {key: value for key, value in event.items() if key != "sequence_number"}
        event = self._with_place(self._with_own_number(event))
        opening = [] if self._opened > 1 else self._open(event)
        if kind in _OPENING_EVENTS:
            return [*opening, event]
        index = event.get("output_index")
        if kind == "response.output_item.done" and isinstance(index, int):
            if index in self._items:
                return opening  # sent before; a call that a client gets twice is made twice
            return [*opening, *self._finish_item(index, dict_at(event, "item", path), event)]
        if not isinstance(index, int):
            return [*opening, event]
        return [*opening, *self._place(index, event)]

    def _with_own_number(self, event: Json) -> Json:
        """Return an event with the number of its item, which is a new one if the item with its number is another."""
        index, item = event.get("output_index"), event.get("item")
        if not isinstance(index, int):
            return event
        number = self._numbers.get(index, index)
        name = item.get("id") if isinstance(item, dict) else event.get("item_id")
        if number in self._items and not self._is_same_item(number, name, item):
            number = self._numbers[index] = self._newest() + 1
        return event if number == index else {**event, "output_index": number}

    def _is_same_item(self, number: int, name: Any, item: Any) -> bool:
        """Return whether an event, with its item if it has one, belongs to the finished item with a number."""
        finished = self._items[number]
        if not isinstance(item, dict):
            return name is None or name in (finished.get("id"), self._ids.get(number))
        if item.get("type") != finished.get("type"):
            return False
        if name is not None and name == finished.get("id"):
            return True
        if item.get("call_id") or finished.get("call_id"):
            return bool(item.get("call_id") == finished.get("call_id"))
        return item | {"id": None} == finished | {"id": None}

    def _newest(self) -> int:
        """Return the highest number of an item; -1 without one."""
        return max([*self._ids, *self._items, *self._begun], default=-1)

    def _with_place(self, event: Json) -> Json:
        """Return an event of an item with the numbers and the id that say where it belongs, if they are left out.

        It then belongs to the item with its id, or to the newest one, and there to the newest part.
        """
        kind = event["type"].removeprefix("response.")
        item = event.get("item")
        if kind in ("output_item.added", "output_item.done") and isinstance(item, dict):
            index = event.get("output_index")
            if not isinstance(index, int):
                index = self._index_of(item.get("id"), is_new=kind == "output_item.added")
            return {**event, "output_index": index, "item": self._with_known_id(item, index)}
        name = kind.rpartition(".")[0]
        if name not in _ITEM_OF_EVENT and name not in _CALL_EVENTS:
            return event
        index = event.get("output_index")
        if not isinstance(index, int):
            index = self._index_of(event.get("item_id"), is_new=False)
        own_id = self._ids.setdefault(index, event.get("item_id") or f"item_{index}")
        place: Json = {"output_index": index, "item_id": own_id}
        part_index = _PART_INDEX.get(name)
        if part_index is not None and not isinstance(event.get(part_index), int):
            sent, added = self._begun.get(index), f"response.{_PART_OF_TEXT.get(name, name)}.added"
            newest = -1 if sent is None else sent.newest_part(added)
            place[part_index] = newest + 1 if event["type"] == added else max(newest, 0)
        return {**event, **place}

    def _with_known_id(self, item: Json, index: int) -> Json:
        """Return an item with the id under which the client knows it; a message or reasoning must have one."""
        if index not in self._ids and (item.get("id") or item.get("type") in ("message", "reasoning")):
            self._ids[index] = item.get("id") or item_id(item, index)
        own_id = self._ids.get(index, item.get("id"))
        return item if own_id == item.get("id") else {**item, "id": own_id}

    def _index_of(self, name: Any, *, is_new: bool) -> int:
        """Return the number of the item with an id; without one, a new number or that of the newest item."""
        if name is not None and name in self._ids.values():
            return next(index for index, own_id in self._ids.items() if own_id == name)
        newest = self._newest()
        return newest + 1 if is_new or newest < 0 or newest in self._items else newest

    def _open(self, event: Json) -> list[Json]:
        """Return the opening events that the endpoint has left out before `event`."""
        kind = event["type"]
        if kind in _OPENING_EVENTS:
            self._start = event.get("response") or self._start
        if not self._start and kind not in _OPENING_EVENTS:
            item_name = event.get("item_id") or (event.get("item") or {}).get("id") or "stream"
            self._start = {**empty_response(f"resp_{item_name}", 0, ""), "status": "in_progress"}
            self._invented_id = self._start["id"]
        start = self._start
        before = _OPENING_EVENTS.index(kind) if kind in _OPENING_EVENTS else len(_OPENING_EVENTS)
        missing = _OPENING_EVENTS[self._opened : before]
        self._opened = max(self._opened, before + (kind in _OPENING_EVENTS))
        return [{"type": name, "response": start} for name in missing]

    def _place(self, index: int, event: Json) -> list[Json]:
        """Return an event of an item, after events that start the item and its part if these were left out."""
        kind, events = event["type"], []
        sent = self._begun.get(index)
        if kind == "response.output_item.added":
            if sent is None:
                self._begun[index] = SentEvents()
                return [event]
            return []
        name = kind.removeprefix("response.").rpartition(".")[0]
        if sent is None:
            is_thought = (event.get("part") or {}).get("type") == "reasoning_text"
            item_kind = "reasoning" if is_thought else _ITEM_OF_EVENT.get(name)
            if item_kind is None:
                return [] if name in _CALL_EVENTS else [event]  # a call begins with its name, which is not known yet
            sent = self._begun[index] = SentEvents()
            item = {"type": item_kind, "id": event.get("item_id") or f"item_{index}", **_EMPTY_FIELDS[item_kind]}
            head = {"role": "assistant", "status": "in_progress"} if item_kind == "message" else {}
            events.append({"type": "response.output_item.added", "output_index": index, "item": item | head})
        part = _PART_OF_TEXT.get(name)
        if part is not None and not sent.has(f"response.{part}.added", event):
            added = _part_added(name, part, event)
            sent.note(added)
            events.append(added)
        sent.note(event)
        return [*events, event]

    def _finish_item(self, index: int, item: Json, event: Json) -> list[Json]:
        """Return the end of an item, after what the endpoint has left out of it."""
        self._items[index] = item
        sent = self._begun.get(index)
        return list(item_events(item, index)) if sent is None else [*sent.missing(content_events(item, index)), event]

    def _finish(self, response: Json) -> list[Json]:
        """Set the response; return the events of items that the endpoint has not finished before."""
        if self._items and not response.get("output"):
            response = {**response, "output": [self._items[index] for index in sorted(self._items)]}
        if self._invented_id is not None:
            response = {**response, "id": self._invented_id}
        self.response = response = self._with_sent_ids(response)
        output = response.get("output")
        if not self._opened or response.get("status") in ("failed", "cancelled") or not isinstance(output, list):
            return []
        events = self._open({"type": "response.completed"})
        finished = [item["id"] for item in self._items.values() if item.get("id")]  # an id may be any JSON
        for index, item in enumerate(output):
            if isinstance(item, dict) and index not in self._items and item.get("id") not in finished:
                done = {"type": "response.output_item.done", "output_index": index, "item": item}
                events += self._finish_item(index, item, done)
        return events

    def _with_sent_ids(self, response: Json) -> Json:
        """Return the response with the ids under which its items were sent; some endpoints give them new ones."""
        output = response.get("output")
        if not isinstance(output, list) or len(self._items) != len(output):
            return response
        items = [self._items.get(index) for index in range(len(output))]
        pairs = list(zip(output, items, strict=True))
        if any(not isinstance(new, dict) or sent is None or new.get("type") != sent.get("type") for new, sent in pairs):
            return response
        named = [{**new, "id": sent["id"]} if sent and sent.get("id") else new for new, sent in pairs]
        return {**response, "output": named}


class SentEvents:
    """The events of one item that a client has received."""

    def __init__(self) -> None:
        """Start without events."""
        self._kinds: set[tuple[str, Any]] = set()
        self._texts: dict[tuple[str, Any], list[str]] = {}

    def note(self, event: Json) -> None:
        """Note an event that is sent."""
        key = _kind_and_part(event["type"], event)
        if event["type"].endswith(".delta") and isinstance(event.get("delta"), str):
            self._texts.setdefault(key, []).append(event["delta"])
        else:
            self._kinds.add(key)

    def has(self, kind: str, place: Json) -> bool:
        """Return whether an event of this kind was sent for the part of another event."""
        return _kind_and_part(kind, place) in self._kinds

    def newest_part(self, kind: str) -> int:
        """Return the number of the newest part for which an event of this kind was sent; -1 without one."""
        return max((part for sent, part in self._kinds if sent == kind and isinstance(part, int)), default=-1)

    def missing(self, events: Iterable[Json]) -> Iterator[Json]:
        """Yield those of all events of the item that were not sent, and the rest of texts that were sent in part."""
        for event in events:
            key = _kind_and_part(event["type"], event)
            if not event["type"].endswith(".delta"):
                if key not in self._kinds:
                    yield event
                continue
            text = "".join(self._texts.get(key, ()))
            if event["delta"].startswith(text) and event["delta"] != text:
                yield {**event, "delta": event["delta"][len(text) :]}


def _kind_and_part(kind: str, place: Json) -> tuple[str, Any]:
    return kind, place.get("content_index", place.get("summary_index"))


def _part_added(name: str, part_name: str, event: Json) -> Json:
    """Return the event that adds a text part, for a text event whose part was never added."""
    place: Json = {
        key: event[key] for key in ("item_id", "output_index", "content_index", "summary_index") if key in event
    }
    if name == "reasoning_summary_text":
        part: Json = {"type": "summary_text", "text": ""}
    else:
        part = {"type": name, _TEXT_FIELDS[name]: ""} | ({"annotations": []} if name == "output_text" else {})
    return {"type": f"response.{part_name}.added", **place, "part": part}
