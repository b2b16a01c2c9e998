"""Build the model replies that fixtures, audits and tests send to a verifier, and read the texts of prompts."""

import json
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

Row = dict[str, Any]
Reply = str | list[dict[str, Any]]
"""The text of a final message, or the items of a response's output in their order."""
ToolCaller = Callable[..., Awaitable[Any]]
"""`await call("/tool", {...})` posts to the server inside the session and returns the tool's answer."""


def text_response(text: str) -> dict[str, Any]:
    """Build a response whose only message is `text`; an empty text gives a response without output."""
    return build_response(text)


def build_response(reply: Reply, row: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Build the response that a verifier receives for a reply, with the tools of the row.

    Ids, statuses and other required fields that the items lack are added.
    """
    params = (row or {}).get("responses_create_params")
    tools = params.get("tools") if isinstance(params, Mapping) else None
    items = reply if isinstance(reply, list) else [message(reply)] if reply else []
    return {
        "id": "resp_1",
        "created_at": 0.0,
        "model": "fixture",
        "object": "response",
        "output": [_complete_item(item, number) for number, item in enumerate(items, start=1)],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": tools if isinstance(tools, list) else [],
    }


def _complete_item(item: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return an item with the required fields that it lacks."""
    fields = {"type": "message", **item}
    if fields["type"] == "function_call":
        fields["arguments"] = _as_text(fields.get("arguments", {}))
        return {"id": f"fc_{number}", "call_id": f"call_{number}", "status": "completed", **fields}
    if fields["type"] == "function_call_output":
        return {**fields, "output": _as_text(fields.get("output", ""))}
    if fields["type"] == "message" and fields.get("role", "assistant") == "assistant":
        content = fields.get("content", "")
        if isinstance(content, str):
            fields["content"] = [{"type": "output_text", "text": content, "annotations": []}]
        return {"id": f"msg_{number}", "role": "assistant", "status": "completed", **fields}
    return fields


def message(text: str, role: str = "assistant") -> dict[str, Any]:
    """Return a message as an item of a reply."""
    return {"type": "message", "role": role, "content": text}


def tool_call(name: str, arguments: Any, output: Any = None, *, call_id: str | None = None) -> list[dict[str, Any]]:
    """Return a tool call and, unless `output` is None, its output. Values that are not text are encoded as JSON."""
    call_id = call_id or f"call_{zlib.crc32(f'{name} {_as_text(arguments)}'.encode()):08x}"
    items = [{"type": "function_call", "name": name, "arguments": _as_text(arguments), "call_id": call_id}]
    if output is not None:
        items.append({"type": "function_call_output", "call_id": call_id, "output": _as_text(output)})
    return items


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def prompt_texts(prompt: Any) -> list[str]:
    """Return the texts of a prompt: of each message that has text. Messages and their parts are dicts or models."""
    texts = [prompt] if isinstance(prompt, str) else []
    for item in map(dict, prompt if isinstance(prompt, list) else ()):
        content = item.get("content") or ""
        parts = [content] if isinstance(content, str) else [str(dict(part).get("text", "")) for part in content]
        texts.append("\n".join(parts))
    return [text for text in texts if text.strip()]


async def play_calls(row: Mapping[str, Any], reply: Reply, call: ToolCaller) -> None:  # noqa: ARG001 - the form of `act`
    """Run a reply's tool calls in the session, in order. For use as `act` in an audit.py."""
    for item in reply if isinstance(reply, list) else ():
        if item.get("type") == "function_call":
            arguments = item.get("arguments", {})
            try:
                arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
            except ValueError:
                continue  # an agent would report this to the model without calling the tool
            if isinstance(arguments, dict):
                await call(f"/{item['name']}", arguments)


def shorten_reply(reply: Reply, limit: int = 160) -> str:
    """Return a reply on one line, cut after `limit` characters."""
    line = repr(reply) if isinstance(reply, str) else json.dumps(reply, ensure_ascii=False)
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
