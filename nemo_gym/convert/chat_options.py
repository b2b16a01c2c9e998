"""Convert request options (everything except the conversation): Responses ↔ Chat."""

from typing import Any

from nemo_gym.convert.json_access import (
    CHAT,
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

LOGPROBS_INCLUDE = "message.output_text.logprobs"

NEEDS_SERVER_STATE = ("background", "previous_response_id", "prompt")
"""Responses options that need a server with state. They raise an error; dropping them would change the request."""

_CHAT_ONLY: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "frequency_penalty": (0,),
    "function_call": (),
    "functions": ([],),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "n": (1,),
    "prediction": (),
    "presence_penalty": (0,),
    "seed": (),
    "stop": ([],),
    "web_search_options": (),
}
"""Chat options without counterpart in the Responses API, with the values that have no effect."""

_CONVERTED_FROM_RESPONSES = frozenset(
    {*NEEDS_SERVER_STATE, "include", "input", "instructions", "max_output_tokens", "max_tool_calls", "reasoning"}
    | {"text", "tool_choice", "tools", "top_logprobs", "truncation"}
)
_SAME_IN_BOTH = frozenset(
    {"metadata", "model", "parallel_tool_calls", "service_tier", "store", "stream", "temperature", "top_p", "user"}
)
_CHAT_HINTS = ("prompt_cache_key", "safety_identifier", "stream_options")
_CONVERTED_FROM_CHAT = frozenset(
    {*_CHAT_HINTS, "logprobs", "max_completion_tokens", "max_tokens", "messages", "reasoning_effort"}
    | {"response_format", "tool_choice", "tools", "top_logprobs", "verbosity"}
)


def options_to_chat(params: Json) -> Json:
    """Convert the options of a Responses request to Chat; options that belong to neither dialect are kept."""
    options = {key: value for key, value in params.items() if key not in _CONVERTED_FROM_RESPONSES}
    for key in NEEDS_SERVER_STATE:
        if params.get(key):
            raise inexpressible(key, CHAT, key)
    if "max_output_tokens" in params:
        options["max_tokens"] = params["max_output_tokens"]
    _reasoning_to_chat(params, options)
    _text_to_chat(params, options)
    _logprobs_to_chat(params, options)
    _tools_to_chat(params, options)
    return options


def options_from_chat(chat: Json) -> Json:
    """Convert the options of a Chat request to Responses.

    Raises:
        ConversionError: an option has no counterpart, and its value has an effect.
    """
    options = {key: value for key, value in chat.items() if key in _SAME_IN_BOTH}
    for key, value in chat.items():
        if key in _CHAT_ONLY:
            if value is not None and value not in _CHAT_ONLY[key]:
                raise inexpressible(key, RESPONSES, key)
        elif key not in _SAME_IN_BOTH and key not in _CONVERTED_FROM_CHAT and value is not None:
            raise inexpressible(key, RESPONSES, key)
    _limits_from_chat(chat, options)
    if chat.get("reasoning_effort") is not None:
        options["reasoning"] = {"effort": chat["reasoning_effort"]}
    _text_from_chat(chat, options)
    if chat.get("logprobs"):
        options["include"] = [LOGPROBS_INCLUDE]
    if "top_logprobs" in chat:
        options["top_logprobs"] = chat["top_logprobs"]
    _tools_from_chat(chat, options)
    return options


def options_lost_in_chat(params: Json) -> list[str]:
    """Return the options of a Responses request that are dropped, because Chat has no counterpart."""
    dropped = [key for key in ("max_tool_calls",) if params.get(key) is not None]
    if params.get("truncation") not in (None, "disabled"):
        dropped.append("truncation")
    dropped += [f"include: {entry}" for entry in params.get("include") or [] if entry != LOGPROBS_INCLUDE]
    reasoning = params.get("reasoning") or {}
    return dropped + [f"reasoning.{key}" for key in reasoning if key != "effort" and reasoning[key] is not None]


def options_lost_in_responses(chat: Json) -> list[str]:
    """Return the options of a Chat request that are dropped: hints to the provider, which do not change the reply."""
    return [key for key in _CHAT_HINTS if chat.get(key) is not None]


def _reasoning_to_chat(params: Json, options: Json) -> None:
    if params.get("reasoning") is not None:
        effort = expect_dict(params["reasoning"], "reasoning").get("effort")
        if effort is not None:
            options["reasoning_effort"] = effort


def _text_to_chat(params: Json, options: Json) -> None:
    """Convert verbosity and text format to Chat."""
    if params.get("text") is None:
        return
    text = expect_dict(params["text"], "text")
    if text.get("verbosity") is not None:
        options["verbosity"] = text["verbosity"]
    if text.get("format") is None:
        return
    form = dict_at(text, "format", "text")
    kind = text_at(form, "type", "text.format")
    if kind == "json_schema":
        schema = {key: value for key, value in form.items() if key != "type" and value is not None}
        options["response_format"] = {"type": kind, "json_schema": schema}
    elif kind in ("text", "json_object"):
        options["response_format"] = {"type": kind}
    else:
        raise inexpressible(kind, f"{CHAT} as a response_format", "text.format")


def _text_from_chat(chat: Json, options: Json) -> None:
    """Convert verbosity and response format to Responses."""
    text: Json = {}
    if chat.get("response_format") is not None:
        form = dict_at(chat, "response_format", "request")
        kind = text_at(form, "type", "response_format")
        if kind == "json_schema":
            text["format"] = {"type": kind, **dict_at(form, "json_schema", "response_format")}
        elif kind in ("text", "json_object"):
            text["format"] = {"type": kind}
        else:
            raise inexpressible(kind, f"{RESPONSES} as a text format", "response_format")
    if chat.get("verbosity") is not None:
        text["verbosity"] = chat["verbosity"]
    if text:
        options["text"] = text


def _logprobs_to_chat(params: Json, options: Json) -> None:
    if params.get("top_logprobs") is not None:
        options["top_logprobs"] = params["top_logprobs"]
    # Chat rejects top_logprobs without logprobs.
    if LOGPROBS_INCLUDE in optional_list_at(params, "include", "request") or params.get("top_logprobs"):
        options["logprobs"] = True


def _limits_from_chat(chat: Json, options: Json) -> None:
    """Convert the token limit, which Chat accepts under two names."""
    limits = [chat[key] for key in ("max_completion_tokens", "max_tokens") if chat.get(key) is not None]
    if len(limits) == 2 and limits[0] != limits[1]:
        what = "max_tokens and max_completion_tokens disagree"
        raise ConversionError(what, where="max_tokens", fix="give one of them")
    if limits:
        options["max_output_tokens"] = limits[0]


def _tools_to_chat(params: Json, options: Json) -> None:
    """Convert tools and tool choice to Chat, which does not accept a tool choice without tools."""
    tools = optional_list_at(params, "tools", "request")
    choice = params.get("tool_choice")
    if tools:
        options["tools"] = [_tool_to_chat(tool, path) for tool, path in iter_dicts(tools, "tools")]
        if "tool_choice" in params:
            options["tool_choice"] = _choice_to_chat(choice)
        return
    if choice not in (None, "auto", "none"):
        raise ConversionError("a tool call is required but there are no tools", where="tool_choice", fix="give tools")
    options.pop("parallel_tool_calls", None)


def _tools_from_chat(chat: Json, options: Json) -> None:
    tools = optional_list_at(chat, "tools", "request")
    if tools:
        options["tools"] = [_tool_from_chat(tool, path) for tool, path in iter_dicts(tools, "tools")]
    if chat.get("tool_choice") is not None:
        options["tool_choice"] = _choice_from_chat(chat["tool_choice"])


def _tool_to_chat(tool: Json, path: str) -> Json:
    """Convert a function tool to Chat."""
    kind = text_at(tool, "type", path)
    if kind != "function":
        raise inexpressible(f"{kind} tool", CHAT, path, fix="give function tools only")
    text_at(tool, "name", path)
    # `strict: false` is the default of Chat.
    function = {key: value for key, value in tool.items() if key != "type" and value is not None}
    if function.get("strict") is False:
        del function["strict"]
    return {"type": "function", "function": function}


def _tool_from_chat(tool: Json, path: str) -> Json:
    """Convert a function tool to Responses."""
    kind = text_at(tool, "type", path)
    if kind != "function":
        raise inexpressible(f"{kind} tool", RESPONSES, path, fix="give function tools only")
    function = dict_at(tool, "function", path)
    text_at(function, "name", f"{path}.function")
    # Responses is strict by default, Chat is not.
    return {"type": "function", "parameters": None, **function, "strict": bool(function.get("strict"))}


def _choice_to_chat(choice: Any) -> Any:
    """Convert a tool choice to Chat."""
    if choice is None or isinstance(choice, str):
        return choice
    choice = expect_dict(choice, "tool_choice")
    kind = text_at(choice, "type", "tool_choice")
    if kind == "function":
        return {"type": kind, kind: {"name": text_at(choice, "name", "tool_choice")}}
    if kind == "allowed_tools":
        names = [_function_name(tool, path) for tool, path in iter_dicts(choice.get("tools"), "tool_choice.tools")]
        allowed = [{"type": "function", "function": {"name": name}} for name in names]
        return {"type": kind, kind: {"mode": text_at(choice, "mode", "tool_choice"), "tools": allowed}}
    raise inexpressible(kind, f"{CHAT} as a tool_choice", "tool_choice")


def _choice_from_chat(choice: Any) -> Any:
    """Convert a tool choice to Responses."""
    if isinstance(choice, str):
        return choice
    choice = expect_dict(choice, "tool_choice")
    kind = text_at(choice, "type", "tool_choice")
    if kind == "function":
        return {"type": kind, "name": text_at(dict_at(choice, kind, "tool_choice"), "name", f"tool_choice.{kind}")}
    if kind == "allowed_tools":
        allowed = dict_at(choice, kind, "tool_choice")
        tools = iter_dicts(allowed.get("tools"), "tool_choice.allowed_tools.tools")
        names = [_function_name(dict_at(tool, "function", path), path) for tool, path in tools]
        mode = text_at(allowed, "mode", "tool_choice.allowed_tools")
        return {"type": kind, "mode": mode, "tools": [{"type": "function", "name": name} for name in names]}
    raise inexpressible(kind, f"{RESPONSES} as a tool_choice", "tool_choice")


def _function_name(tool: Json, path: str) -> str:
    if tool.get("type", "function") != "function":
        raise inexpressible(tool["type"], f"{CHAT} as a tool_choice", path)
    return text_at(tool, "name", path)
