"""Custom tools of Chat, whose input is free text, as functions for endpoints that have only functions, and back."""

from typing import Any

from nemo_gym.convert.flattened_tools import custom_call_item, function_of_custom_call, function_of_custom_tool
from nemo_gym.convert.json_access import Json, dict_at, text_at


def has_custom_tools(tools: Any) -> bool:
    """Return whether a list of tools has a custom one."""
    return any(isinstance(tool, dict) and tool.get("type") == "custom" for tool in tools or ())


def with_functions(request: Json) -> tuple[Json, frozenset[str]]:
    """Return a Chat request whose custom tools are functions, and the names of these tools."""
    tools = [_function_tool(tool, f"tools[{index}]") for index, tool in enumerate(request["tools"])]
    names = frozenset(tool["custom"]["name"] for tool in request["tools"] if tool.get("type") == "custom")
    messages = [_with_function_calls(message, f"messages[{n}]") for n, message in enumerate(request["messages"])]
    converted = {**request, "tools": tools, "messages": messages}
    choice = request.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "custom":
        converted["tool_choice"] = {"type": "function", "function": dict_at(choice, "custom", "tool_choice")}
    return converted, names


def with_custom_calls(message: Json, names: frozenset[str]) -> None:
    """Turn the calls of functions that stand for custom tools into calls of these tools."""
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        if function.get("name") in names:
            item = custom_call_item({"arguments": function.get("arguments") or "", "name": function["name"]})
            del call["function"]
            call |= {"type": "custom", "custom": {"name": item["name"], "input": item["input"]}}


def _function_tool(tool: Json, path: str) -> Json:
    if tool.get("type") != "custom":
        return tool
    custom = dict_at(tool, "custom", path)
    text_format = custom.get("format")
    if isinstance(text_format, dict) and isinstance(text_format.get("grammar"), dict):
        custom = {**custom, "format": {"type": "grammar", **text_format["grammar"]}}
    function = function_of_custom_tool(custom, f"{path}.custom")
    return {"type": "function", "function": {key: value for key, value in function.items() if key != "type"}}


def _with_function_calls(message: Json, path: str) -> Json:
    calls = message.get("tool_calls") or []
    if not has_custom_tools(calls):
        return message
    return {**message, "tool_calls": [_function_call(call, path) for call in calls]}


def _function_call(call: Json, path: str) -> Json:
    if call.get("type") != "custom":
        return call
    item = function_of_custom_call(dict_at(call, "custom", path), path)
    function = {"name": text_at(item, "name", path), "arguments": item["arguments"]}
    return {"id": call.get("id"), "type": "function", "function": function}
