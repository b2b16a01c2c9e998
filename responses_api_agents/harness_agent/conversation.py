"""Rebuild the conversation of a program from its model calls.

The calls of a program are not one conversation: it may ask for a title, start sub-agents, or compact its context. A
call belongs to the trace whose assistant items (texts and tool calls) its request begins with; otherwise it begins a
new one. The main trace is the one with most calls.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nemo_gym.capture.record import CapturedExchange
from nemo_gym.convert import responses_anthropic, responses_chat
from nemo_gym.convert.gemini_request import accepted_gemini_request
from nemo_gym.convert.json_access import new_id
from nemo_gym.errors import ConversionError

logger = logging.getLogger("nemo_gym.harness_agent")

Json = dict[str, Any]
Key = tuple[str, ...]
MAX_TRACES = 64
"""Traces of one rollout; the shortest is dropped for a new one."""
_ANSWER_TYPES = ("function_call", "custom_tool_call", "reasoning")


@dataclass
class Trace:
    """Calls of which each continues the one before: the request of the last one, and its answer."""

    items: list[Json]
    keys: list[Key]
    """The assistant items, which identify the conversation."""
    start: int
    """Index of the first item that the model or a tool wrote."""
    calls: int = 1

    @property
    def items_after_prompt(self) -> list[Json]:
        """Return the items after the prompt."""
        return self.items[self.start :]

    def final_text(self) -> str:
        """Return the last text of the model; empty without one."""
        texts = [_text(item) for item in self.items if _role(item) == "assistant"]
        return next((text for text in reversed(texts) if text.strip()), "")

    def describe(self) -> Json:
        """Return what the record of a rollout says about a trace."""
        prompt = next((_text(item) for item in reversed(self.items[: self.start]) if _role(item) == "user"), "")
        return {
            "calls": self.calls,
            "items": len(self.items_after_prompt),
            "prompt": prompt[:200],
            "text": self.final_text()[:200],
        }


@dataclass
class Conversations:
    """The traces of one rollout."""

    traces: list[Trace] = field(default_factory=list)
    unread_calls: int = 0
    """Calls that no conversation can be made from."""

    def add(self, record: CapturedExchange) -> None:
        """Add a successful call."""
        try:
            request_items, answer_items = exchange_items(record)
        except (ConversionError, KeyError, TypeError, ValueError) as error:
            self.unread_calls += 1
            logger.warning("a model call of a program cannot be read: %s", error)
            return
        keys = [key for item in request_items if (key := _key(item))]
        answer_keys = [key for item in answer_items if (key := _key(item))]
        start = next(
            (index for index, item in enumerate(request_items) if _key(item) or _is_answer(item)), len(request_items)
        )
        trace = self._continued_trace(keys)
        if trace is None:
            self.traces.append(Trace([*request_items, *answer_items], [*keys, *answer_keys], start))
            if len(self.traces) > MAX_TRACES:
                self.traces.remove(min(self.traces[:-1], key=lambda each: each.calls))
            return
        trace.items, trace.keys, trace.start = [*request_items, *answer_items], [*keys, *answer_keys], start
        trace.calls += 1

    def _continued_trace(self, keys: Sequence[Key]) -> Trace | None:
        """Return the trace with most assistant items that a request with these assistant items continues."""
        candidates = [trace for trace in self.traces if trace.keys and list(keys[: len(trace.keys)]) == trace.keys]
        return max(candidates, key=lambda trace: len(trace.keys), default=None)

    def main(self) -> Trace | None:
        """Return the trace with most calls, the last of several; None without a readable call."""
        return max(reversed(self.traces), key=lambda trace: trace.calls, default=None)


def exchange_items(record: CapturedExchange) -> tuple[list[Json], list[Json]]:
    """Return the items of the Responses API that a call sent and received.

    Raises:
        ConversionError: the call contains something that the Responses API cannot express.
    """
    request, answer = dict(record.request or {}), record.response
    if not isinstance(answer, Mapping):
        raise ConversionError("the answer is not an object", where="response")
    answer = dict(answer)
    if record.dialect == "responses":
        return _input_items(request.get("input")), [_item_of(item) for item in answer.get("output") or ()]
    if record.dialect == "messages":
        params = responses_anthropic.responses_request(request, new_id=new_id)
        model = str(answer.get("model") or "")
        response = responses_anthropic.response_from_message(
            params, answer, model=model, now=int(time.time()), new_id=new_id
        )
    elif record.dialect == "chat":
        params = responses_chat.responses_request(request, new_id=new_id)
        response = responses_chat.response_from_completion(params, answer, new_id=new_id)
    else:
        params, _ = accepted_gemini_request(request, model="", new_id=new_id)
        content = {"contents": [each["content"] for each in answer["candidates"]]}
        written, _ = accepted_gemini_request(content, model="", new_id=new_id)
        return params["input"], written["input"]
    return _input_items(params["input"]), [_item_of(item) for item in response["output"]]


def _input_items(value: Any) -> list[Json]:
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    return [_item_of(item) for item in value or ()]


def _item_of(item: Any) -> Json:
    """Return an item as a dictionary; a message without type gets it."""
    fields: Json = dict(item)
    return {"type": "message", **fields} if "role" in fields else fields


def _role(item: Json) -> str:
    return str(item.get("role") or "")


def _is_answer(item: Json) -> bool:
    return item.get("type") in _ANSWER_TYPES or str(item.get("type")).endswith("_output") or _role(item) == "assistant"


def _text(item: Json) -> str:
    content = item.get("content")
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text") or "") for part in content or () if isinstance(part, Mapping))


def _key(item: Json) -> Key | None:
    """Return what identifies an assistant item; None for other items, and for reasoning, which programs drop."""
    if item.get("type") in ("function_call", "custom_tool_call"):
        return "call", str(item.get("call_id") or item.get("id")), str(item.get("name"))
    if item.get("type") == "message" and _role(item) == "assistant":
        text = " ".join(_text(item).split())
        return ("text", text) if text else None
    return None
