"""The rules by which codex reads a Responses stream, as a state machine.

Codex accepts a stream if it begins with `response.created`, every delta belongs to an item that has been added and not
ended, every added item ends, and the last event is `response.completed` with an id and whole numbers as token counts.
"""

from typing import Any

Json = dict[str, Any]

_DELTAS = {
    "response.output_text.delta": "message",
    "response.refusal.delta": "message",
    "response.function_call_arguments.delta": "function_call",
    "response.custom_tool_call_input.delta": "custom_tool_call",
    "response.reasoning_summary_text.delta": "reasoning",
    "response.reasoning_text.delta": "reasoning",
    "response.reasoning_summary_part.added": "reasoning",
}
_COUNTS = (
    "input_tokens",
    "output_tokens",
    "total_tokens",
    "input_tokens_details.cached_tokens",
    "output_tokens_details.reasoning_tokens",
)


class CodexReader:
    """Reads events one by one and raises `AssertionError` where codex would fail or lose something."""

    def __init__(self) -> None:
        self.items: list[Json] = []
        self.completed: Json | None = None
        self._active: Json | None = None
        self._last_number = -1
        self._has_begun = False
        self._texts: dict[str, str] = {}

    def read(self, event: Json) -> None:
        """Read one event."""
        kind = event["type"]
        assert self.completed is None, f"{kind} after the end"
        assert event["sequence_number"] == self._last_number + 1, "events are numbered without gaps"
        self._last_number += 1
        if not self._has_begun:
            assert kind == "response.created" and event["response"]["id"]
            self._has_begun = True
        elif kind == "response.output_item.added":
            assert self._active is None, "an item is added before the one before it ends"
            assert event["output_index"] == len(self.items)
            self._active = event["item"]
        elif kind in _DELTAS:
            self._read_delta(event, _DELTAS[kind])
        elif kind == "response.output_item.done":
            self._end_item(event)
        elif kind == "response.completed":
            self._complete(event["response"])
        else:
            assert kind not in ("response.failed", "error"), event

    def _read_delta(self, event: Json, item_type: str) -> None:
        assert self._active is not None, f"{event['type']} without an item"
        assert self._active["type"] == item_type
        assert event["item_id"] == self._active["id"]
        assert event["output_index"] == len(self.items)
        if "delta" in event:
            self._texts[item_type] = self._texts.get(item_type, "") + event["delta"]

    def _end_item(self, event: Json) -> None:
        item = event["item"]
        assert self._active is not None and item["type"] == self._active["type"]
        assert item.get("id") == self._active.get("id")
        if item["type"] == "message":
            text = "".join(part.get("text") or part.get("refusal") or "" for part in item["content"])
            assert self._texts.pop("message", "") == text
        elif item["type"] == "function_call":
            assert self._texts.pop("function_call", "") == item["arguments"]
            assert item["call_id"] and item["name"]
        self._texts.clear()
        self.items.append(item)
        self._active = None

    def _complete(self, response: Json) -> None:
        assert self._active is None, "the response ends inside an item"
        assert response["id"]
        usage = response.get("usage")
        if usage is not None:
            for path in _COUNTS:
                value = usage
                for key in path.split("."):
                    value = value[key]
                assert type(value) is int, f"usage.{path} is {value!r}, and codex expects a whole number"
        assert [item["type"] for item in response["output"]] == [item["type"] for item in self.items]
        self.completed = response
