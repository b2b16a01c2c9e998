"""The question and the answer of a captured model call, as text, in every dialect."""

from collections.abc import Mapping
from typing import Any

from nemo_gym.capture.record import CapturedExchange

_TEXT_PARTS = frozenset({None, "text", "input_text", "output_text", "refusal"})


def question_of(call: CapturedExchange) -> str | None:
    """Return the text of the last message of the user; None without one."""
    request = call.request or {}
    if isinstance(text := request.get("input"), str):
        return text or None
    for name in ("input", "messages", "contents"):
        for message in reversed(_objects(request.get(name))):
            if message.get("role") == "user" and (text := _text(message.get("content", message.get("parts")))):
                return text
    return None


def answer_of(call: CapturedExchange) -> str | None:
    """Return the text that the model answered, without its reasoning; None if it only called tools or failed."""
    response = call.response if isinstance(call.response, Mapping) else {}
    messages = [
        *(item for item in _objects(response.get("output")) if item.get("type") == "message"),
        *(choice.get("message") for choice in _objects(response.get("choices"))[:1]),
        *(candidate.get("content") for candidate in _objects(response.get("candidates"))[:1]),
    ]
    if isinstance(response.get("content"), list):
        messages.append(response)
    texts = (_text(message.get("content", message.get("parts"))) for message in _objects(messages))
    return "".join(filter(None, texts)) or None


def _text(content: Any) -> str | None:
    """Return the text of a content: text itself, or parts, of which those with thoughts or tool calls have none."""
    if isinstance(content, str):
        return content or None
    parts = [
        part.get("text", part.get("refusal"))
        for part in _objects(content)
        if part.get("type") in _TEXT_PARTS and part.get("thought") is not True
    ]
    return "".join(part for part in parts if isinstance(part, str)) or None


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []
