"""Rewrite streaming Responses requests of coding agents into the form that our model servers accept.

Tools in a namespace, tools inside the input and leading system messages are rewritten; dropped elements are reported.
"""

from typing import Any

from nemo_gym.convert.chat_conversation import leading_system_texts
from nemo_gym.convert.json_access import Json, expect_dict, expect_list, expect_text, text_at

NAMESPACE_SEPARATOR = "__"


def flatten_request(body: Any) -> tuple[Json, list[str]]:
    """Return the rewritten request, and descriptions of the dropped elements.

    The result has no `stream`, a flat list of tools, and the leading system messages as `instructions`.

    Raises:
        ConversionError: the body does not have the form of a request.
    """
    body = expect_dict(body, "request")
    dropped: list[str] = []
    request = {key: value for key, value in body.items() if key not in ("stream", "stream_options")}
    tools = [] if request.get("tools") is None else expect_list(request["tools"], "tools")
    if isinstance(request.get("input"), list):
        items, input_tools = _split_off_tools(request["input"])
        tools = tools + input_tools
        system_texts, request["input"] = leading_system_texts([_flatten_call(item) for item in items])
        if system_texts:
            instructions = [expect_text(request["instructions"], "instructions")] if request.get("instructions") else []
            request["instructions"] = "\n\n".join([*instructions, *system_texts])
    if tools or "tools" in request:
        request["tools"] = _flatten_tools(tools, dropped)
    return request, dropped


def _split_off_tools(items: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return the items without `additional_tools` items, and the tools of those."""
    other_items: list[Any] = []
    tools: list[Any] = []
    for index, item in enumerate(items):
        if isinstance(item, dict) and item.get("type") == "additional_tools":
            tools += expect_list(item.get("tools"), f"input[{index}].tools")
        else:
            other_items.append(item)
    return other_items, tools


def _flatten_call(item: Any) -> Any:
    """Return a function call with the flat name of its tool; other items are returned unchanged."""
    if not isinstance(item, dict) or item.get("type") != "function_call" or "namespace" not in item:
        return item
    call = {key: value for key, value in item.items() if key != "namespace"}
    if item["namespace"]:
        space = expect_text(item["namespace"], "function_call.namespace")
        call["name"] = f"{space}{NAMESPACE_SEPARATOR}{text_at(item, 'name', 'function_call')}"
    return call


def _flatten_tools(tools: list[Any], dropped: list[str]) -> list[Any]:
    """Replace each namespace by its tools, whose names get the namespace as prefix."""
    flat: list[Any] = []
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict) or tool.get("type") != "namespace":
            flat.append(tool)
            continue
        path = f"tools[{index}]"
        space = text_at(tool, "name", path)
        for position, inner in enumerate(expect_list(tool.get("tools"), f"{path}.tools")):
            if isinstance(inner, dict) and isinstance(inner.get("name"), str):
                flat.append({**inner, "name": f"{space}{NAMESPACE_SEPARATOR}{inner['name']}"})
            else:
                dropped.append(f"{path}.tools[{position}]: has no name")
        if tool.get("description"):
            dropped.append(f"{path}.description: a flat list of tools cannot have one")
    return flat
