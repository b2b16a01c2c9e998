"""Tools of the Responses API that other dialects lack, written as functions: namespaces and custom tools.

A tool in a namespace becomes a function whose name has the namespace as prefix; a custom tool, whose input is free
text, becomes a function with one text field. Calls in the answer are converted back.
"""

import json
from collections.abc import Mapping
from typing import Any

from nemo_gym.convert.json_access import Json, dump_json, expect_list, expect_text, optional_list_at, text_at

NAMESPACE_SEPARATOR = "__"
CUSTOM_TOOL_CALL = "custom_tool_call"
CUSTOM_INPUT = "input"
"""The only field of the function that stands for a custom tool."""

NamespacedNames = dict[str, tuple[str, str]]
"""The namespace and the name of a tool by its flat name."""


def flat_name(namespace: str, name: str) -> str:
    return f"{namespace}{NAMESPACE_SEPARATOR}{name}"


def flatten_tools(tools: list[Any], dropped: list[str]) -> tuple[list[Any], NamespacedNames]:
    """Replace each namespace by its tools; return the tools and their names. What is lost is added to `dropped`."""
    flat: list[Any] = []
    names: NamespacedNames = {}
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict) or tool.get("type") != "namespace":
            flat.append(tool)
            continue
        path = f"tools[{index}]"
        namespace = text_at(tool, "name", path)
        for position, inner in enumerate(expect_list(tool.get("tools"), f"{path}.tools")):
            if isinstance(inner, dict) and isinstance(inner.get("name"), str):
                name = flat_name(namespace, inner["name"])
                names[name] = (namespace, inner["name"])
                flat.append({**inner, "name": name})
            else:
                dropped.append(f"{path}.tools[{position}]: has no name")
        if tool.get("description"):
            dropped.append("tools.namespace.description: a flat list of tools cannot have one")
    return flat, names


def flatten_choice(choice: Any, names: NamespacedNames, tools: list[Any]) -> Any:
    """Return a tool choice with the flat names of tools in a namespace; also without it, if only one has the name."""
    if not isinstance(choice, dict):
        return choice
    if isinstance(choice.get("tools"), list):  # allowed_tools
        return {**choice, "tools": [flatten_choice(tool, names, tools) for tool in choice["tools"]]}
    name, namespace = choice.get("name"), choice.get("namespace")
    if not isinstance(name, str):
        return choice
    flat_choice = {key: value for key, value in choice.items() if key != "namespace"}
    if isinstance(namespace, str) and namespace:
        return {**flat_choice, "name": flat_name(namespace, name)}
    if any(isinstance(tool, dict) and tool.get("name") == name for tool in tools):
        return flat_choice
    matches = [flat for flat, (_, inner) in names.items() if inner == name]
    return {**flat_choice, "name": matches[0]} if len(matches) == 1 else flat_choice


def flatten_call(item: Any) -> Any:
    """Return a call of a namespaced tool with the flat name of its tool; other items are returned unchanged."""
    if not isinstance(item, dict) or "namespace" not in item or not str(item.get("type")).endswith("_call"):
        return item
    call = {key: value for key, value in item.items() if key != "namespace"}
    if item["namespace"]:
        namespace = expect_text(item["namespace"], "function_call.namespace")
        call["name"] = flat_name(namespace, text_at(item, "name", "function_call"))
    return call


def split_call(item: Any, names: Mapping[str, tuple[str, str]]) -> Any:
    """Return a call of a flattened tool with its namespace and name; other items are returned unchanged."""
    if not isinstance(item, dict) or item.get("name") not in names:
        return item
    namespace, name = names[item["name"]]
    return {**item, "name": name, "namespace": namespace}


def split_event(event: Json, names: Mapping[str, tuple[str, str]]) -> Json:
    """Return an event of a response with the namespaces of the calls in its item or output."""
    if "item" in event:
        return {**event, "item": split_call(event["item"], names)}
    response = event.get("response")
    if isinstance(response, dict) and response.get("output"):
        return {**event, "response": split_response(response, names)}
    return event


def split_response(response: Json, names: Mapping[str, tuple[str, str]]) -> Json:
    """Return a response with the namespaces of its calls."""
    return {**response, "output": [split_call(item, names) for item in response["output"]]}


def custom_tool_names(params: Json) -> frozenset[str]:
    """Return the names of the custom tools of a Responses request."""
    tools = optional_list_at(params, "tools", "request")
    return frozenset(str(tool.get("name")) for tool in tools if isinstance(tool, dict) and tool.get("type") == "custom")


def function_of_custom_tool(tool: Json, path: str) -> Json:
    """Return the function tool that stands for a custom tool; its grammar is part of the description."""
    texts = [str(tool["description"])] if tool.get("description") else []
    text_format = tool.get("format")
    if isinstance(text_format, dict) and text_format.get("type") == "grammar":
        texts.append(f"The input follows this {text_format.get('syntax')} grammar:\n{text_format.get('definition')}")
    parameters = {"type": "object", "properties": {CUSTOM_INPUT: {"type": "string"}}, "required": [CUSTOM_INPUT]}
    function: Json = {"type": "function", "name": text_at(tool, "name", path), "parameters": parameters}
    return function | {"description": "\n\n".join(texts)} if texts else function


def custom_call_item(call: Json) -> Json:
    """Return a function call as the call of a custom tool; arguments of another form are its input unchanged."""
    arguments = call["arguments"]
    try:
        value = json.loads(arguments)
    except ValueError:
        value = None
    text = value.get(CUSTOM_INPUT) if isinstance(value, dict) and len(value) == 1 else None
    fields = {key: value for key, value in call.items() if key not in ("arguments", "type")}
    return {**fields, "type": CUSTOM_TOOL_CALL, "input": text if isinstance(text, str) else arguments}


def function_of_custom_call(item: Json, path: str) -> Json:
    """Return the call of a custom tool in a conversation as a function call."""
    arguments = dump_json({CUSTOM_INPUT: text_at(item, "input", path)}, path)
    fields = {key: value for key, value in item.items() if key != "input"}
    return {**fields, "type": "function_call", "arguments": arguments}
