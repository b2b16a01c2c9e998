"""Tool calls for a model whose chat template knows nothing of tools.

The tools are described in the system message; the answer is constrained by a grammar built from their schemas, so
what comes back is either plain text or a call that parses.
"""

import json
from typing import Any

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def tool_schema(tools: list[dict[str, Any]], only: str | None = None) -> dict[str, Any]:
    """JSON schema of one call to any of `tools` (or to the one named `only`)."""
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
        if only in (None, tool["function"]["name"])
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def call_or_text_grammar(call_grammar: str) -> str:
    """`call_grammar` (whose start is `root`) wrapped so that plain text without `<` first is allowed too."""
    renamed = call_grammar.replace("root ::=", "call ::=", 1)
    return f'root ::= "{OPEN}" call "{CLOSE}" | [^<] text\ntext ::= [^\\x00]*\n{renamed}'


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
    """One chat message as role and text: the only form the template knows."""
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "".join(part.get("text", "") for part in content)
    calls = [
        OPEN + json.dumps({"name": c["function"]["name"], "arguments": json.loads(c["function"]["arguments"])}) + CLOSE
        for c in message.get("tool_calls") or []
    ]
    role = {"developer": "system", "tool": "user"}.get(message["role"], message["role"])
    if message["role"] == "tool":
        content = f"<tool_response>{content}</tool_response>"
    return {"role": role, "content": "\n".join(filter(None, [content, *calls]))}
