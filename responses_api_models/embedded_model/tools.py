"""Tool calls for a model whose chat template does not support tools.

The tools are described in the system message. A grammar built from their schemas constrains the reply, so it is
either text or a call that parses.
"""

import json
from typing import Any

from fastapi import HTTPException

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def chosen_tools(chat: dict[str, Any]) -> tuple[list[dict[str, Any]], bool]:
    """Return the tools that the model may call, and whether it must call one.

    Raises:
        HTTPException: 400, `tool_choice` names an unknown tool, or a tool is not a function.
    """
    tools, choice = list(chat.get("tools") or []), chat.get("tool_choice") or "auto"
    if choice == "none" or not tools:
        return [], False
    if any(tool.get("type") != "function" for tool in tools):
        raise HTTPException(400, "this model calls function tools only")
    if isinstance(choice, str):
        return tools, choice == "required"
    allowed = choice.get("allowed_tools")
    selected = allowed["tools"] if allowed else [choice]
    names = {tool["function"]["name"] for tool in selected}
    callable_tools = [tool for tool in tools if tool["function"]["name"] in names]
    if not callable_tools:
        raise HTTPException(400, f"tool_choice names no tool of this request: {', '.join(sorted(names))}")
    return callable_tools, allowed is None or allowed.get("mode") == "required"


def tool_schema(tools: list[dict[str, Any]]) -> dict[str, Any]:
    """Build the JSON schema of one call to any of `tools`."""
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool["function"]["name"]},
                "arguments": tool["function"].get("parameters") or {"type": "object"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def call_or_text_grammar(schema: dict[str, Any]) -> str:
    """Build a grammar of one call that follows `schema`, in tags, or text that does not start like a tag."""
    lines = [
        "%llguidance {}",
        "start: call | TEXT",
        f'call: "{OPEN}" body "{CLOSE}"',
        f"body: %json {json.dumps(schema)}",
        r"TEXT: /[^<](.|\n)*/",
    ]
    return "\n".join(lines)


def with_tool_instructions(messages: list[dict[str, str]], tools: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Add a description of the tools to the system message."""
    described = "\n".join(json.dumps(tool["function"]) for tool in tools)
    text = f'You may call these functions:\n{described}\nTo call one, write {OPEN}{{"name": …, "arguments": …}}{CLOSE}.'
    if messages and messages[0]["role"] == "system":
        return [{"role": "system", "content": f"{messages[0]['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def parse_call(text: str) -> tuple[str, str] | None:
    """Parse a call into name and arguments as JSON text; None if `text` is no call."""
    body = text.strip().removeprefix(OPEN).removesuffix(CLOSE)
    try:
        call = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or "arguments" not in call:
        return None
    return call["name"], json.dumps(call["arguments"])


def as_text(message: dict[str, Any]) -> dict[str, str]:
    """Convert a chat message to role and text, the only form the template supports.

    Raises:
        HTTPException: 400, it has other content than text.
    """
    content = message.get("content") or ""
    if not isinstance(content, str):
        unsupported = [part["type"] for part in content if part.get("type") not in ("text", "refusal")]
        if unsupported:
            raise HTTPException(400, f"this model reads text only, not {unsupported[0]}")
        content = "".join(part.get("text") or part.get("refusal") or "" for part in content)
    calls = [_call_as_text(call["function"]) for call in message.get("tool_calls") or []]
    role = {"developer": "system", "tool": "user"}.get(message["role"], message["role"])
    if message["role"] == "tool":
        content = f"<tool_response>{content}</tool_response>"
    return {"role": role, "content": "\n".join(filter(None, [content, *calls]))}


def _call_as_text(function: dict[str, str]) -> str:
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        arguments = function["arguments"]  # invalid JSON of another model is sent unchanged
    return OPEN + json.dumps({"name": function["name"], "arguments": arguments}) + CLOSE
