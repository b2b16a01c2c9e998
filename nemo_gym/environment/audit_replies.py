"""What a model might answer, as an audit writes it down, and as a verifier receives it."""

import json
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from nemo_gym.environment.verifier_fixture import said

Reply = str | list[dict[str, Any]]
"""The text of a final message, or the items of a response's output in their order."""
Call = Callable[..., Awaitable[Any]]
"""`await call("/tool", {...})` posts to the server inside the session and gives what it answers."""


def response_of(reply: Reply, row: Mapping[str, Any]) -> dict[str, Any]:
    """The response a verifier is given for a reply. What every item must have and an audit need not write is added."""
    response = said(reply if isinstance(reply, str) else "")
    if not isinstance(reply, str):
        response["output"] = [_item(item, number) for number, item in enumerate(reply)]
    params = row.get("responses_create_params")
    offered = params.get("tools") if isinstance(params, Mapping) else None
    return {**response, "tools": offered if isinstance(offered, list) else []}


def _item(item: Mapping[str, Any], number: int) -> dict[str, Any]:
    made = {"type": "message", **item}
    if made["type"] == "function_call":
        arguments = made.get("arguments", {})
        made["arguments"] = arguments if isinstance(arguments, str) else json.dumps(arguments)
        return {"id": f"fc_{number}", "call_id": f"call_{number}", "status": "completed", **made}
    if made["type"] == "function_call_output" and not isinstance(made.get("output", ""), str):
        return {**made, "output": json.dumps(made["output"])}
    if made["type"] == "message" and made.get("role", "assistant") == "assistant":
        content = made.get("content", "")
        if isinstance(content, str):
            made["content"] = [{"type": "output_text", "text": content, "annotations": []}]
        return {"id": f"msg_{number}", "role": "assistant", "status": "completed", **made}
    return made


def message(text: str) -> dict[str, Any]:
    """A message as an item of a reply."""
    return {"type": "message", "content": text}


def tool_call(name: str, arguments: Any, output: Any = None, *, call_id: str | None = None) -> list[dict[str, Any]]:
    """A call and, unless None, what came back; arguments and output as data or as text."""
    label = call_id or f"call_{zlib.crc32(f'{name} {_text(arguments)}'.encode()):08x}"
    made = [{"type": "function_call", "name": name, "arguments": _text(arguments), "call_id": label}]
    if output is not None:
        made.append({"type": "function_call_output", "call_id": label, "output": _text(output)})
    return made


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


async def play_calls(row: Mapping[str, Any], reply: Reply, call: Call) -> None:  # noqa: ARG001 - the form of `act`
    """Run a reply's tool calls in the session, in order, as an agent would. For use as `act` in an audit.py."""
    for item in reply if isinstance(reply, list) else ():
        if item.get("type") == "function_call":
            arguments = item.get("arguments", {})
            try:
                arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
            except ValueError:
                continue  # an agent tells the model; the tool never sees it
            if isinstance(arguments, dict):
                await call(f"/{item['name']}", arguments)


def shown(reply: Reply, most: int = 160) -> str:
    """A reply on one line, cut where it is long."""
    text = reply if isinstance(reply, str) else json.dumps(reply, ensure_ascii=False)
    line = repr(text) if isinstance(reply, str) else text
    return line if len(line) <= most else f"{line[: most - 1]}…"
