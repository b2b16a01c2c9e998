"""The tools of a rollout: their parameters as a table, the schema, and how often the model called them."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from nemo_gym.wire.stored_rollout import StoredRollout

MAX_TOOLS = 500
MAX_PARAMETERS = 200


def list_tools(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the tools that the request offers, and those that the model called although it does not offer them."""
    stored = StoredRollout(record)
    calls = Counter(
        str(item.get("name"))
        for item in stored.output
        if isinstance(item, dict) and item.get("type") == "function_call" and item.get("name")
    )
    errors = Counter(str(error.get("tool")) for error in stored.tool_errors)
    offered = stored.request.get("tools")
    tools = []
    for tool in offered[:MAX_TOOLS] if isinstance(offered, list) else []:
        if isinstance(tool, dict):
            function = tool.get("function") if isinstance(tool.get("function"), dict) else tool
            assert isinstance(function, dict)
            name = str(function.get("name") or tool.get("type") or "")
            tools.append(
                {
                    "name": name,
                    "description": str(function.get("description") or ""),
                    "parameters": list(_parameters(function.get("parameters"))),
                    "schema": tool,
                    "calls": calls.pop(name, 0),
                    "errors": errors.get(name, 0),
                }
            )
    unknown = [
        {"name": name, "description": "", "parameters": [], "calls": n, "errors": errors.get(name, 0)}
        for name, n in list(calls.items())[:MAX_TOOLS]
    ]
    return [*tools, *unknown]


def _parameters(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield name, type and description of each parameter of a JSON schema."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return
    required = schema.get("required")
    required = required if isinstance(required, list) else []
    for name, one in list(properties.items())[:MAX_PARAMETERS]:
        facts = one if isinstance(one, dict) else {}
        default = {"default": facts["default"]} if "default" in facts else {}
        yield {
            "name": str(name),
            "type": _type_text(facts),
            "required": name in required,
            "description": str(facts.get("description") or ""),
            **default,
        }


def _type_text(schema: Mapping[str, Any], depth: int = 3) -> str:
    """Return the type of a schema as text, such as `array of string` or `number, 1 to 60`."""
    if isinstance(schema.get("enum"), list):
        return " | ".join(str(value) for value in schema["enum"][:20])
    kind = schema.get("type")
    text = " | ".join(map(str, kind)) if isinstance(kind, list) else str(kind) if kind else ""
    if not text and depth:
        options = schema.get("anyOf") or schema.get("oneOf")
        parts = [_type_text(one, depth - 1) for one in options if isinstance(one, dict)] if options else []
        text = " | ".join(parts) if isinstance(options, list) else ""
    if kind == "array" and isinstance(schema.get("items"), dict) and depth:
        text = f"array of {_type_text(schema['items'], depth - 1)}"
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"{text}, {low} to {high}"
    return text or "any"
