"""Streaming Responses requests of coding agents, in the form our models accept.

Tools in a namespace, tools inside the input and system messages at the start are rewritten; whatever is dropped is
listed.
"""

from typing import Any

from nemo_gym.convert.chat_conversation import leading_system_texts
from nemo_gym.convert.json_access import Json, expect_dict, expect_list, expect_text, text_at

NAMESPACE_SEPARATOR = "__"


def flatten_request(body: Any) -> tuple[Json, list[str]]:
    """Return the request without `stream`, with a flat list of tools and leading system messages as `instructions`.

    Raises:
        ConversionError: the body is not a request at all.
    """
    body = expect_dict(body, "request")
    dropped: list[str] = []
    request = {key: value for key, value in body.items() if key not in ("stream", "stream_options")}
    tools = [] if request.get("tools") is None else expect_list(request["tools"], "tools")
    if isinstance(request.get("input"), list):
        items, hoisted = _without_tools(request["input"])
        tools = tools + hoisted
        system_texts, request["input"] = leading_system_texts([_flatten_call(item) for item in items])
        if system_texts:
            instructions = [expect_text(request["instructions"], "instructions")] if request.get("instructions") else []
            request["instructions"] = "\n\n".join([*instructions, *system_texts])
    if tools or "tools" in request:
        request["tools"] = _flatten_tools(tools, dropped)
    return request, dropped


def _without_tools(items: list[Any]) -> tuple[list[Any], list[Any]]:
    rest: list[Any] = []
    tools: list[Any] = []
    for index, item in enumerate(items):
        if isinstance(item, dict) and item.get("type") == "additional_tools":
            tools += expect_list(item.get("tools"), f"input[{index}].tools")
        else:
            rest.append(item)
    return rest, tools


def _flatten_call(item: Any) -> Any:
    """Return a call of a tool in a namespace with its flat name."""
    if not isinstance(item, dict) or item.get("type") != "function_call" or "namespace" not in item:
        return item
    call = {key: value for key, value in item.items() if key != "namespace"}
    if item["namespace"]:
        space = expect_text(item["namespace"], "function_call.namespace")
        call["name"] = f"{space}{NAMESPACE_SEPARATOR}{text_at(item, 'name', 'function_call')}"
    return call


def _flatten_tools(tools: list[Any], dropped: list[str]) -> list[Any]:
    flat: list[Any] = []
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict) or tool.get("type") != "namespace":
            flat.append(tool)
            continue
        where = f"tools[{index}]"
        space = text_at(tool, "name", where)
        for position, inner in enumerate(expect_list(tool.get("tools"), f"{where}.tools")):
            if isinstance(inner, dict) and isinstance(inner.get("name"), str):
                flat.append({**inner, "name": f"{space}{NAMESPACE_SEPARATOR}{inner['name']}"})
            else:
                dropped.append(f"{where}.tools[{position}]: has no name")
        if tool.get("description"):
            dropped.append(f"{where}.description: a flat list of tools cannot have one")
    return flat
