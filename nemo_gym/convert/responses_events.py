"""A finished response as Responses API stream events, and such events as the finished response."""

from collections.abc import Iterable, Iterator
from typing import Any

from nemo_gym.convert.shapes import Json, as_dict, as_list, dict_at, each_dict, shown, text_at
from nemo_gym.errors import ConversionError

_FINAL = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")


def events_from_response(response: Json) -> Iterator[Json]:
    """`created`, one `output_item.done` per item, `completed`.

    A response that was cut short also ends with `completed`, its status inside: clients take `incomplete` for a
    failure of the connection and ask again.
    """
    response = as_dict(response, "response")
    output = as_list(response.get("output"), "output")
    begun = {**response, "status": "in_progress", "output": [], "incomplete_details": None, "usage": None}
    yield {"type": "response.created", "sequence_number": 0, "response": begun}
    for index, item in enumerate(output):
        number = index + 1
        yield {"type": "response.output_item.done", "sequence_number": number, "output_index": index, "item": item}
    yield {"type": "response.completed", "sequence_number": len(output) + 1, "response": response}


def events_of_failure(message: str, *, model: str, response_id: str, created_at: int, code: str) -> Iterator[Json]:
    """`created`, then `failed`: how a stream that has begun with status 200 says that there is no answer."""
    response: Json = {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "model": model,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
    }
    yield {"type": "response.created", "sequence_number": 0, "response": response}
    failed = {**response, "status": "failed", "error": {"code": code, "message": message}}
    yield {"type": "response.failed", "sequence_number": 1, "response": failed}


def response_from_events(events: Iterable[Any]) -> Json:
    """The response a stream ends with; a failed one comes back with its `error`.

    Some servers leave `output` of the last event empty: then it is what `output_item.done` said.

    Raises:
        ConversionError: the stream reports an error or stops before the end.
    """
    items: dict[int, Any] = {}
    for event, where in each_dict(iter(events), "events"):
        kind = text_at(event, "type", where)
        if kind == "response.output_item.done":
            index = event.get("output_index")
            items[index if isinstance(index, int) else len(items)] = dict_at(event, "item", where)
        elif kind == "error":
            raise ConversionError(f"the stream reports an error: {shown(event.get('message'))}", where=where)
        elif kind in _FINAL:
            response = dict_at(event, "response", where)
            if items and not response.get("output"):
                response = {**response, "output": [items[index] for index in sorted(items)]}
            return response
    raise ConversionError("the stream stops before the response is finished", where="stream")
