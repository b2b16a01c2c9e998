"""Translate a Messages stream to answer events while it arrives, and a response to a Chat completion."""

from time import time
from typing import Any

from nemo_gym.convert.anthropic_blocks import SERVER_BLOCKS, items_from_assistant
from nemo_gym.convert.chat_conversation import reasoning_texts
from nemo_gym.convert.json_access import Json, NewId, dict_at, text_at
from nemo_gym.convert.message_stream import message_from_events
from nemo_gym.convert.response_events import delta_event, done_event, item_added, item_events, opening_events
from nemo_gym.convert.responses_chat import chat_messages, empty_response
from nemo_gym.convert.usage import usage_detail
from nemo_gym.openai_utils import NeMoGymResponse

_FINISH_REASONS = {"max_output_tokens": "length", "content_filter": "content_filter"}


class LiveAnswer:
    """Translates the events of a message to those of a response. One item is open at a time.

    Consecutive blocks of text are parts of one message. A tool's input is one delta at the end of its block, because
    the arguments of the finished call are written anew.
    """

    def __init__(self, model: str, new_id: NewId) -> None:
        self.items: list[Json] = []
        """The finished items, and the open one."""
        self._response = empty_response(new_id("resp"), int(time()), model)
        self._new_id = new_id
        self._message: Json | None = None
        self._block: list[Json] = []
        """The events of a block that is not streamed, or of a thought."""
        self._kind = ""

    def feed(self, event: Json) -> list[Json]:
        """Return the answer events of one event of the endpoint."""
        kind = event.get("type")
        if kind == "message_start":
            return list(opening_events(self._response))
        if kind == "content_block_start":
            return self._begin(event)
        if kind == "content_block_delta":
            return self._add(event)
        if kind == "content_block_stop":
            return self._end(event)
        if kind == "message_stop":
            return self._finish()
        return []

    def adopt(self, response: NeMoGymResponse) -> None:
        """Give a response and its items the ids under which they were streamed."""
        response.id = self._response["id"]
        for item, streamed in zip(response.output, self.items, strict=False):
            if streamed.get("id") and item.type == streamed["type"]:
                item.id = streamed["id"]  # type: ignore[union-attr]

    @property
    def _place(self) -> Json:
        item = self.items[-1]
        return {"item_id": item.get("id") or item.get("call_id"), "output_index": len(self.items) - 1}

    def _begin(self, event: Json) -> list[Json]:
        block = dict_at(event, "content_block", "event")
        self._kind, self._block = text_at(block, "type", "event"), [event]
        if self._kind == "text":
            events = [] if self._message is not None else self._begin_message()
            self._message = self.items[-1]
            part = {"type": "output_text", "text": "", "annotations": []}
            self._message["content"].append(part)
            events.append({"type": "response.content_part.added", **self._part_place, "part": dict(part)})
            return [*events, *self._add_first_text(block)]
        if self._kind in SERVER_BLOCKS:
            return []
        events = self._close_message()
        if self._kind == "thinking":
            summary = {"type": "summary_text", "text": ""}
            self.items.append({"type": "reasoning", "id": self._new_id("rs"), "summary": [summary]})
            added = {"type": "response.reasoning_summary_part.added", **self._place, "summary_index": 0}
            events += [item_added(self.items[-1], len(self.items) - 1), {**added, "part": dict(summary)}]
        return events

    def _add_first_text(self, block: Json) -> list[Json]:
        """Return the delta of text that a block begins with; Anthropic's own blocks begin empty."""
        text = block.get("text")
        if not isinstance(text, str) or not text:
            return []
        self.items[-1]["content"][-1]["text"] = text
        return [delta_event("output_text", text, self._part_place)]

    def _begin_message(self) -> list[Json]:
        item = {"type": "message", "id": self._new_id("msg"), "role": "assistant", "status": "completed", "content": []}
        self.items.append(item)
        return [item_added(item, len(self.items) - 1)]

    @property
    def _part_place(self) -> Json:
        return {**self._place, "content_index": len(self.items[-1]["content"]) - 1}

    def _add(self, event: Json) -> list[Json]:
        self._block.append(event)
        delta = dict_at(event, "delta", "event")
        if delta.get("type") == "text_delta" and self._message is not None:
            text = text_at(delta, "text", "event")
            self._message["content"][-1]["text"] += text
            return [delta_event("output_text", text, self._part_place)]
        if delta.get("type") == "thinking_delta":
            text = text_at(delta, "thinking", "event")
            self.items[-1]["summary"][0]["text"] += text
            return [delta_event("reasoning_summary_text", text, {**self._place, "summary_index": 0})]
        return []

    def _end(self, event: Json) -> list[Json]:
        kind, self._kind = self._kind, ""
        if kind in SERVER_BLOCKS:
            return []
        if kind == "text" and self._message is not None:
            part = dict(self._message["content"][-1])
            done = done_event("output_text", "text", part["text"], self._part_place)
            return [done, {"type": "response.content_part.done", **self._part_place, "part": part}]
        item = self._finished_item(event)
        if kind != "thinking":
            self.items.append(item)
            return list(item_events(item, len(self.items) - 1))
        item = self.items[-1] = {**item, "id": self.items[-1]["id"]}
        place = {**self._place, "summary_index": 0}
        done = done_event("reasoning_summary_text", "text", item["summary"][0]["text"], place)
        part_done = {"type": "response.reasoning_summary_part.done", **place, "part": item["summary"][0]}
        return [done, part_done, self._item_done()]

    def _finished_item(self, stop: Json) -> Json:
        """Return the item of the block whose events were collected."""
        start = {"type": "message_start", "message": {}}
        block = message_from_events([start, *self._block, stop, {"type": "message_stop"}])["content"]
        item = items_from_assistant(block, "event", new_id=self._new_id)[0]
        return with_id_of_call(item)

    def _item_done(self) -> Json:
        return {"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": self.items[-1]}

    def _close_message(self) -> list[Json]:
        is_open, self._message = self._message is not None, None
        return [self._item_done()] if is_open else []

    def _finish(self) -> list[Json]:
        if self.items:
            return self._close_message()
        events = self._begin_message()
        return [*events, self._item_done()]


def with_id_of_call(item: Json) -> Json:
    """Return a function call with an id, to which the events of a stream refer; other items are returned unchanged."""
    return {**item, "id": item["call_id"]} if item["type"] == "function_call" else item


def completion_of_response(response: Json) -> Json:
    """Return a response as a Chat completion, with the reasoning in its own field."""
    output = response["output"]
    thoughts = [text for item in output if item["type"] == "reasoning" for text in reasoning_texts(item, "output")]
    messages = chat_messages([item for item in output if item["type"] != "reasoning"])
    message: Json = messages[0] if messages else {"role": "assistant", "content": ""}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    reason = str((response.get("incomplete_details") or {}).get("reason"))
    finish = _FINISH_REASONS.get(reason) or ("tool_calls" if message.get("tool_calls") else "stop")
    return {
        "id": response["id"],
        "object": "chat.completion",
        "created": int(response["created_at"]),
        "model": response["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
        "usage": _chat_usage(response.get("usage") or {}),
    }


def _chat_usage(usage: Json) -> dict[str, Any]:
    cached = usage_detail(usage, "input_tokens_details", "cached_tokens") or 0
    return {
        "prompt_tokens": usage.get("input_tokens", 0),
        "completion_tokens": usage.get("output_tokens", 0),
        "total_tokens": usage.get("total_tokens", 0),
        "prompt_tokens_details": {"cached_tokens": cached},
    }
