"""Tool calls for a model whose chat template knows nothing of tools.

The tools are described in the system message; the answer is constrained by a grammar built from their schemas, so
what comes back is either plain text or a call that parses.
"""

import json
from typing import Any

from fastapi import HTTPException

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def chosen_tools(chat: dict[str, Any]) -> tuple[list[dict[str, Any]], bool]:
    """The tools a request lets the model call, and whether it must call one.

    Raises:
        HTTPException: 400, the request names a tool it does not give, or gives one that is not a function.
    """
    tools, choice = list(chat.get("tools") or []), chat.get("tool_choice") or "auto"
    if choice == "none" or not tools:
        return [], False
    if any(tool.get("type") != "function" for tool in tools):
        raise HTTPException(400, "this model calls function tools only")
    if isinstance(choice, str):
        return tools, choice == "required"
    allowed = choice.get("allowed_tools")
    wanted = allowed["tools"] if allowed else [choice]
    names = {tool["function"]["name"] for tool in wanted}
    given = [tool for tool in tools if tool["function"]["name"] in names]
    if not given:
        raise HTTPException(400, f"tool_choice names no tool of this request: {', '.join(sorted(names))}")
    return given, allowed is None or allowed.get("mode") == "required"


def tool_schema(tools: list[dict[str, Any]]) -> dict[str, Any]:
    """JSON schema of one call to any of `tools`."""
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
    """A grammar of either one call that follows `schema`, between tags, or text that does not begin like a tag."""
    lines = [
        "%llguidance {}",
        "start: call | TEXT",
        f'call: "{OPEN}" body "{CLOSE}"',
        f"body: %json {json.dumps(schema)}",
        r"TEXT: /[^<](.|\n)*/",
    ]
    return "\n".join(lines)


def with_tool_instructions(messages: list[dict[str, str]], tools: list[dict[str, Any]]) -> list[dict[str, str]]:
    """`messages` with the tools described in the system message."""
    described = "\n".join(json.dumps(tool["function"]) for tool in tools)
    text = f'You may call these functions:\n{described}\nTo call one, write {OPEN}{{"name": …, "arguments": …}}{CLOSE}.'
    if messages and messages[0]["role"] == "system":
        return [{"role": "system", "content": f"{messages[0]['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def parse_call(text: str) -> tuple[str, str] | None:
    """(name, arguments as JSON text) when `text` is a call, else None."""
    body = text.strip().removeprefix(OPEN).removesuffix(CLOSE)
    try:
        call = json.loads(body)
    except ValueError:
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or "arguments" not in call:
        return None
    return call["name"], json.dumps(call["arguments"])


def as_text(message: dict[str, Any]) -> dict[str, str]:
    """One chat message as role and text: the only form the template knows.

    Raises:
        HTTPException: 400, it holds something else than text.
    """
    content = message.get("content") or ""
    if not isinstance(content, str):
        strange = [part["type"] for part in content if part.get("type") not in ("text", "refusal")]
        if strange:
            raise HTTPException(400, f"this model reads text only, not {strange[0]}")
        content = "".join(part.get("text") or part.get("refusal") or "" for part in content)
    calls = [_call_as_text(call["function"]) for call in message.get("tool_calls") or []]
    role = {"developer": "system", "tool": "user"}.get(message["role"], message["role"])
    if message["role"] == "tool":
        content = f"<tool_response>{content}</tool_response>"
    return {"role": role, "content": "\n".join(filter(None, [content, *calls]))}


def _call_as_text(function: dict[str, str]) -> str:
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        arguments = function["arguments"]  # another model's bad JSON is told as it was
    return OPEN + json.dumps({"name": function["name"], "arguments": arguments}) + CLOSE
