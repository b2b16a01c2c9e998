"""Convert request options (everything except the conversation): Responses ↔ Anthropic Messages."""

from typing import Any

from nemo_gym.convert.json_access import (
    MESSAGES,
    RESPONSES,
    Json,
    dict_at,
    expect_dict,
    inexpressible,
    iter_dicts,
    optional_list_at,
    text_at,
)
from nemo_gym.errors import ConversionError

_FROM_MESSAGES = {"model": "model", "max_tokens": "max_output_tokens", "temperature": "temperature", "top_p": "top_p"}
_CONVERTED = frozenset({*_FROM_MESSAGES, "messages", "system", "tools", "tool_choice", "stream"})
_CHOICES = {"auto": "auto", "none": "none", "any": "required"}
_NO_PARAMETERS: Json = {"type": "object", "properties": {}}


def options_from_messages(body: Json) -> Json:
    """Convert the options of a Messages request to Responses."""
    params = {name: body[key] for key, name in _FROM_MESSAGES.items() if body.get(key) is not None}
    tools = optional_list_at(body, "tools", "request")
    if tools:
        params["tools"] = [_tool_from_messages(tool, path) for tool, path in iter_dicts(tools, "tools")]
    if body.get("tool_choice") is not None:
        choice = dict_at(body, "tool_choice", "request")
        params["tool_choice"] = _choice_from_messages(choice)
        if choice.get("disable_parallel_tool_use"):
            params["parallel_tool_calls"] = False
    return params


def options_to_messages(params: Json) -> Json:
    """Convert the options of a Responses request to Messages."""
    options: Json = {key: params[key] for key in ("temperature", "top_p") if params.get(key) is not None}
    if params.get("user") is not None:
        options["metadata"] = {"user_id": params["user"]}
    _text_to_messages(params, options)
    tools = optional_list_at(params, "tools", "request")
    choice = params.get("tool_choice")
    if not tools:
        if choice not in (None, "auto", "none"):
            what = "a tool call is required but there are no tools"
            raise ConversionError(what, where="tool_choice", fix="give tools")
        return options
    options["tools"] = [_tool_to_messages(tool, path) for tool, path in iter_dicts(tools, "tools")]
    if choice is not None or params.get("parallel_tool_calls") is False:
        options["tool_choice"] = _choice_to_messages("auto" if choice is None else choice)
        if params.get("parallel_tool_calls") is False and options["tool_choice"]["type"] != "none":
            options["tool_choice"]["disable_parallel_tool_use"] = True
    return options


def options_lost_from_messages(body: Json) -> list[str]:
    """Return the options of a Messages request that are dropped, because Responses has no counterpart."""
    return [key for key, value in body.items() if key not in _CONVERTED and value not in (None, [], {})]


def options_lost_in_messages(params: Json) -> list[str]:
    """Return the options of a Responses request that are dropped, because Messages has no counterpart."""
    keys = ("include", "max_tool_calls", "metadata", "reasoning", "service_tier", "store", "top_logprobs")
    dropped = [key for key in keys if params.get(key)]
    return [*dropped, "truncation"] if params.get("truncation") not in (None, "disabled") else dropped


def thinking_option(thinking: Any, budget: int | None) -> Json | None:
    """Return the `thinking` field for a setting: an object, one of Anthropic's types, or True; None if it is off."""
    if thinking is None or thinking is False:
        return None
    if isinstance(thinking, dict):
        return thinking
    kind = "enabled" if thinking is True else str(thinking)
    if kind == "enabled" and budget is not None:
        return {"type": kind, "budget_tokens": budget}
    return {"type": kind}


def _text_to_messages(params: Json, options: Json) -> None:
    """Convert the text format to Messages."""
    text = params.get("text")
    form = expect_dict(text, "text").get("format") if text is not None else None
    if form is None:
        return
    kind = text_at(expect_dict(form, "text.format"), "type", "text.format")
    if kind == "json_schema":
        schema = dict_at(form, "schema", "text.format")
        options["output_config"] = {"format": {"type": kind, "schema": schema}}
    elif kind != "text":
        raise inexpressible(kind, f"{MESSAGES} as an output format", "text.format", fix="give a json_schema")


def _tool_from_messages(tool: Json, path: str) -> Json:
    """Convert a tool with an input schema to a function tool."""
    if tool.get("type") not in (None, "custom"):
        raise inexpressible(tool["type"], f"{RESPONSES} as a tool", path, fix="give tools with an input_schema only")
    function: Json = {"type": "function", "name": text_at(tool, "name", path)}
    if tool.get("description") is not None:
        function["description"] = text_at(tool, "description", path)
    return {**function, "parameters": dict_at(tool, "input_schema", path), "strict": tool.get("strict") is True}


def _tool_to_messages(tool: Json, path: str) -> Json:
    """Convert a function tool to Messages."""
    kind = text_at(tool, "type", path)
    if kind != "function":
        raise inexpressible(f"{kind} tool", MESSAGES, path, fix="give function tools only")
    converted: Json = {"name": text_at(tool, "name", path)}
    if tool.get("description") is not None:
        converted["description"] = text_at(tool, "description", path)
    has_parameters = tool.get("parameters") is not None
    converted["input_schema"] = dict_at(tool, "parameters", path) if has_parameters else dict(_NO_PARAMETERS)
    return converted | {"strict": True} if tool.get("strict") is True else converted


def _choice_from_messages(choice: Json) -> Any:
    """Convert a tool choice to Responses."""
    kind = text_at(choice, "type", "tool_choice")
    if kind == "tool":
        return {"type": "function", "name": text_at(choice, "name", "tool_choice")}
    if kind not in _CHOICES:
        raise inexpressible(kind, f"{RESPONSES} as a tool_choice", "tool_choice")
    return _CHOICES[kind]


def _choice_to_messages(choice: Any) -> Json:
    """Convert a tool choice to Messages."""
    if isinstance(choice, str):
        for kind, mode in _CHOICES.items():
            if mode == choice:
                return {"type": kind}
    elif expect_dict(choice, "tool_choice").get("type") == "function":
        return {"type": "tool", "name": text_at(choice, "name", "tool_choice")}
    raise inexpressible(choice, f"{MESSAGES} as a tool_choice", "tool_choice")
