"""A streaming Responses request as coding agents write it, in the plain form our models take.

What has another form there is rewritten: tools grouped in a namespace, tools given inside the input, and the system
messages that open the conversation. What cannot be kept is listed, never silently lost.
"""

from typing import Any

from nemo_gym.convert.parts import plain_text
from nemo_gym.convert.shapes import Json, as_dict, as_list, as_text, text_at

NAMESPACE_SEPARATOR = "__"


def flattened_request(body: Any) -> tuple[Json, list[str]]:
    """The request without `stream`, its tools in one flat list, its opening system messages in `instructions`.

    Raises:
        ConversionError: the body is not a request at all.
    """
    body = as_dict(body, "request")
    dropped: list[str] = []
    request = {key: value for key, value in body.items() if key not in ("stream", "stream_options")}
    tools = [] if request.get("tools") is None else as_list(request["tools"], "tools")
    if isinstance(request.get("input"), list):
        items, hoisted = _without_tools(request["input"])
        tools = tools + hoisted
        request["input"] = _without_system(request, [_plain_call(item) for item in items])
    if tools or "tools" in request:
        request["tools"] = _flat(tools, dropped)
    return request, dropped


def _without_tools(items: list[Any]) -> tuple[list[Any], list[Any]]:
    rest: list[Any] = []
    tools: list[Any] = []
    for index, item in enumerate(items):
        if isinstance(item, dict) and item.get("type") == "additional_tools":
            tools += as_list(item.get("tools"), f"input[{index}].tools")
        else:
            rest.append(item)
    return rest, tools


def _plain_call(item: Any) -> Any:
    """A call of a tool in a namespace, by its flat name."""
    if not isinstance(item, dict) or item.get("type") != "function_call" or "namespace" not in item:
        return item
    call = {key: value for key, value in item.items() if key != "namespace"}
    if item["namespace"]:
        space = as_text(item["namespace"], "function_call.namespace")
        call["name"] = f"{space}{NAMESPACE_SEPARATOR}{text_at(item, 'name', 'function_call')}"
    return call


def _without_system(request: Json, items: list[Any]) -> list[Any]:
    """`items` without the system messages that open them; what those said is moved to the instructions."""
    said = [as_text(request["instructions"], "instructions")] if request.get("instructions") else []
    rest = 0
    for item in items:
        if not isinstance(item, dict) or item.get("role") not in ("system", "developer"):
            break
        text = plain_text(item.get("content"))
        if text is None:
            break
        said.append(text)
        rest += 1
    if rest:
        request["instructions"] = "\n\n".join(said)
    return items[rest:]


def _flat(tools: list[Any], dropped: list[str]) -> list[Any]:
    flat: list[Any] = []
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict) or tool.get("type") != "namespace":
            flat.append(tool)
            continue
        where = f"tools[{index}]"
        space = text_at(tool, "name", where)
        for position, inner in enumerate(as_list(tool.get("tools"), f"{where}.tools")):
            if isinstance(inner, dict) and isinstance(inner.get("name"), str):
                flat.append({**inner, "name": f"{space}{NAMESPACE_SEPARATOR}{inner['name']}"})
            else:
                dropped.append(f"{where}.tools[{position}]: has no name")
        if tool.get("description"):
            dropped.append(f"{where}.description: a flat list of tools has no place for it")
    return flat
