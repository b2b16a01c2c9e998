"""Convert requests and replies: Responses API ↔ Chat Completions.

A conversation that the other dialect can express is unchanged after conversion in both directions; any other
conversation raises `ConversionError` with the JSON path (tests/convert/test_responses_chat_laws.py).
"""

from typing import Any

from nemo_gym.convert.chat_conversation import (
    DROPPED_ITEMS,
    ChatMessages,
    SplitThoughts,
    add_item,
    assistant_items,
    items_from_messages,
    lead_with_instructions,
    outside_think_tags,
    parse_think_tags,
)
from nemo_gym.convert.flattened_tools import custom_call_item, custom_tool_names, function_of_custom_tool
from nemo_gym.convert.json_access import (
    CHAT,
    RESPONSES,
    Json,
    NewId,
    dict_at,
    expect_count,
    expect_dict,
    expect_list,
    inexpressible,
    iter_dicts,
    optional_list_at,
    optional_text_at,
    text_at,
)
from nemo_gym.convert.usage import usage_from_chat
from nemo_gym.errors import ConversionError
from nemo_gym.wire.responses import CONTEXT_LENGTH, NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming

_ECHOED_OPTIONS = tuple(
    name
    for name in NeMoGymResponseCreateParamsNonStreaming.model_fields
    if name in NeMoGymResponse.model_fields and name != "model"
)
"""Options of a request that are repeated in the response."""

_INCOMPLETE_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}

LOGPROBS_INCLUDE = "message.output_text.logprobs"

_NEEDS_SERVER_STATE = ("background", "conversation", "previous_response_id", "prompt")
"""Responses options that need a server with state. They raise an error; dropping them would change the request."""

_CHAT_ONLY: dict[str, tuple[Any, ...]] = {
    "audio": (), "frequency_penalty": (0,), "function_call": (), "functions": ([],), "logit_bias": ({},),
    "modalities": (["text"],), "n": (1,), "prediction": (), "presence_penalty": (0,), "seed": (), "stop": ([],),
    "web_search_options": (),
}  # fmt: skip
"""Chat options without counterpart in the Responses API, with the values that have no effect."""

_CONVERTED_FROM_RESPONSES = frozenset(
    {*_NEEDS_SERVER_STATE, "include", "input", "instructions", "max_output_tokens", "max_tool_calls", "reasoning"}
    | {"context_management", "text", "tool_choice", "tools", "top_logprobs", "truncation"}
)
_SAME_IN_BOTH = frozenset(
    {"metadata", "model", "parallel_tool_calls", "service_tier", "store", "stream", "temperature", "top_p", "user"}
    | {"prompt_cache_key", "prompt_cache_retention", "safety_identifier"}
)
_CHAT_HINTS = ("stream_options",)
_CONVERTED_FROM_CHAT = frozenset(
    {*_CHAT_HINTS, "logprobs", "max_completion_tokens", "max_tokens", "messages", "reasoning_effort"}
    | {"response_format", "tool_choice", "tools", "top_logprobs", "verbosity"}
)


def chat_request(params: Json, *, with_tokens: bool = False) -> Json:
    """Convert a Responses request to a Chat Completions request; for `with_tokens` see `chat_conversation`."""
    params = expect_dict(params, "request")
    options = options_to_chat(params)
    messages = chat_messages(params.get("input"), with_tokens=with_tokens)
    instructions = optional_text_at(params, "instructions", "request")
    if instructions:
        messages = lead_with_instructions(messages, instructions)
    return {"messages": messages, **options}


def chat_messages(items: Any, *, with_tokens: bool = False) -> list[Json]:
    """Convert Responses input (items, or one string) to Chat messages."""
    if isinstance(items, str):
        return [{"role": "user", "content": [{"type": "text", "text": items}]}]
    chat = ChatMessages(return_token_id_information=with_tokens)
    for item, path in iter_dicts(items, "input"):
        add_item(chat, item, path)
    chat.flush_media()
    chat.flush_assistant()
    return chat.messages


def responses_request(
    chat: Json, *, new_id: NewId, split_thoughts: SplitThoughts = parse_think_tags, with_tokens: bool = False
) -> Json:
    """Convert a Chat Completions request to a Responses request; for `with_tokens` see `chat_conversation`."""
    chat = expect_dict(chat, "request")
    messages = chat.get("messages")
    items = items_from_messages(messages, new_id=new_id, split_thoughts=split_thoughts, with_tokens=with_tokens)
    return {"input": items, **options_from_chat(chat)}


def response_from_completion(
    params: Json,
    completion: Json,
    *,
    new_id: NewId,
    split_thoughts: SplitThoughts = parse_think_tags,
    with_tokens: bool = False,
) -> Json:
    """Convert a completion to the response to the Responses request `params`, whose options it repeats."""
    params, completion = expect_dict(params, "request"), expect_dict(completion, "completion")
    choices = expect_list(completion.get("choices"), "choices")
    if len(choices) != 1:
        problem = f"a response is made from one choice, got {len(choices)}"
        raise ConversionError(problem, where="choices", fix="request n=1")
    choice = expect_dict(choices[0], "choices[0]")
    message = dict_at(choice, "message", "choices[0]")
    path = "choices[0].message"
    output = assistant_items(message, path, new_id=new_id, split_thoughts=split_thoughts, with_tokens=with_tokens)
    custom_tools = custom_tool_names(params)
    if custom_tools:
        output = [custom_call_item(item) if item.get("name") in custom_tools else item for item in output]
    if LOGPROBS_INCLUDE in optional_list_at(params, "include", "request"):
        _add_logprobs(output, choice, message)
    finish = choice.get("finish_reason")
    reason = _INCOMPLETE_REASONS.get(finish) if isinstance(finish, str) else None
    created_at = expect_count(completion.get("created"), "created")
    response = empty_response(new_id("resp"), created_at, params.get("model") or completion.get("model"))
    response |= reply_fields(output, reason, usage_from_chat(completion.get("usage")), params)
    if reason and choice.get("stop_reason") == CONTEXT_LENGTH:
        response["incomplete_details"]["which"] = CONTEXT_LENGTH
    if completion.get("service_tier") is not None:
        response["service_tier"] = completion["service_tier"]
    return response


def reply_fields(output: list[Json], reason: str | None, usage: Json | None, params: Json) -> Json:
    """Return the fields of a finished response: output, status, usage and the options of the request `params`."""
    fields: Json = {"output": output, "usage": usage, "status": "incomplete" if reason else "completed"}
    fields["incomplete_details"] = {"reason": reason} if reason else None
    return fields | {key: params[key] for key in _ECHOED_OPTIONS if params.get(key) is not None}


def _add_logprobs(output: list[Json], choice: Json, message: Json) -> None:
    """Add the log-probabilities of a choice to its first text in `output`, without those of thoughts."""
    contents = [item["content"] for item in output if item["type"] == "message"]
    texts = [part for content in contents for part in content if part["type"] == "output_text"]
    if choice.get("logprobs") is None or not texts:
        return
    path = "choices[0].logprobs"
    content = optional_list_at(dict_at(choice, "logprobs", "choices[0]"), "content", path)
    entries = [_logprob(entry, location) for entry, location in iter_dicts(content, f"{path}.content")]
    original = message.get("content")
    if isinstance(original, str) and original != texts[0]["text"]:  # thoughts were removed
        entries = [entries[index] for index in outside_think_tags(original, [entry["token"] for entry in entries])]
    texts[0]["logprobs"] = entries


def _logprob(entry: Json, path: str) -> Json:
    """Convert a token's log-probability to Responses, where all fields are required."""
    top = optional_list_at(entry, "top_logprobs", path)
    alternatives = [_token_logprob(other, location) for other, location in iter_dicts(top, f"{path}.top_logprobs")]
    return _token_logprob(entry, path) | {"top_logprobs": alternatives}


def _token_logprob(entry: Json, path: str) -> Json:
    token, logprob = text_at(entry, "token", path), entry.get("logprob")
    return {"token": token, "bytes": optional_list_at(entry, "bytes", path), "logprob": logprob}


def empty_response(response_id: str, created_at: Any, model: Any) -> Json:
    """Return a Responses reply without output, with the required fields."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "model": model,
        "output": [],
        "error": None,
        "incomplete_details": None,
        "usage": None,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def options_to_chat(params: Json) -> Json:
    """Convert the options of a Responses request to those of a Chat request; options of neither dialect are kept."""
    options = {key: value for key, value in params.items() if key not in _CONVERTED_FROM_RESPONSES}
    reject_server_state(params, CHAT)
    if "max_output_tokens" in params:
        options["max_tokens"] = params["max_output_tokens"]
    if params.get("reasoning") is not None:
        effort = expect_dict(params["reasoning"], "reasoning").get("effort")
        if effort is not None:
            options["reasoning_effort"] = effort
    _text_to_chat(params, options)
    if params.get("top_logprobs") is not None:
        options["top_logprobs"] = params["top_logprobs"]
    # Chat rejects top_logprobs without logprobs.
    if LOGPROBS_INCLUDE in optional_list_at(params, "include", "request") or params.get("top_logprobs"):
        options["logprobs"] = True
    _tools_to_chat(params, options)
    return options


def options_from_chat(chat: Json) -> Json:
    """Convert the options of a Chat request to those of a Responses request.

    Raises:
        ConversionError: an option has no counterpart, and its value has an effect.
    """
    options = {key: value for key, value in chat.items() if key in _SAME_IN_BOTH}
    for key, value in chat.items():
        is_convertible = key in _SAME_IN_BOTH or key in _CONVERTED_FROM_CHAT
        if not is_convertible and value is not None and value not in _CHAT_ONLY.get(key, ()):
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


def reject_server_state(params: Json, dialect: str) -> None:
    """Raise `ConversionError` if a Responses request needs a server with state."""
    for key in _NEEDS_SERVER_STATE:
        if params.get(key):
            raise inexpressible(key, dialect, key)


def function_tools(params: Json, dialect: str) -> list[tuple[Json, str]]:
    """Return the functions and custom tools of a Responses request as functions, with their JSON paths.

    Hosted tools are left out: they run at a provider, and other endpoints do not have them.

    Raises:
        ConversionError: a tool has no name or is a namespace, or a tool call is required but there are no tools.
    """
    tools: list[tuple[Json, str]] = []
    for tool, path in iter_dicts(optional_list_at(params, "tools", "request"), "tools"):
        kind = text_at(tool, "type", path)
        if kind == "function":
            text_at(tool, "name", path)  # raises if there is no name
            tools.append((tool, path))
        elif kind == "custom":
            tools.append((function_of_custom_tool(tool, path), path))
        elif kind == "namespace":
            raise inexpressible("a namespace of tools", dialect, path, fix="give the tools in one flat list")
    if not tools and params.get("tool_choice") not in (None, "auto", "none"):
        raise ConversionError("a tool call is required but there are no tools", where="tool_choice", fix="give tools")
    return tools


def options_lost_in_chat(params: Json) -> list[str]:
    """Return the options, tools and items of a Responses request that are dropped: Chat has no counterpart."""
    dropped = [key for key in ("max_tool_calls", "context_management") if params.get(key) is not None]
    kinds = [tool.get("type") for tool in params.get("tools") or []]
    dropped += [f"tools: {kind}" for kind in dict.fromkeys(kinds) if kind not in ("function", "custom", "namespace")]
    items = params.get("input")
    dropped += dict.fromkeys(
        f"input: {item['type']}" for item in (items if isinstance(items, list) else ()) if _is_dropped(item)
    )
    if params.get("truncation") not in (None, "disabled"):
        dropped.append("truncation")
    dropped += [f"include: {entry}" for entry in params.get("include") or [] if entry != LOGPROBS_INCLUDE]
    reasoning = params.get("reasoning") or {}
    return dropped + [f"reasoning.{key}" for key in reasoning if key != "effort" and reasoning[key] is not None]


def _is_dropped(item: Json) -> bool:
    """Return whether an item has no place in a Chat conversation: of a hosted tool, or encrypted reasoning."""
    kind = item.get("type")
    if kind == "reasoning":
        return bool(item.get("encrypted_content")) and not item.get("summary") and not item.get("content")
    return kind in DROPPED_ITEMS


def options_lost_in_responses(chat: Json) -> list[str]:
    """Return the options of a Chat request that are dropped: hints to the provider, which do not change the reply."""
    return [key for key in _CHAT_HINTS if chat.get(key) is not None]


def _text_to_chat(params: Json, options: Json) -> None:
    """Add verbosity and text format of a Responses request to the options of a Chat request."""
    if params.get("text") is None:
        return
    text = expect_dict(params["text"], "text")
    if text.get("verbosity") is not None:
        options["verbosity"] = text["verbosity"]
    if text.get("format") is None:
        return
    text_format = dict_at(text, "format", "text")
    kind = text_at(text_format, "type", "text.format")
    if kind == "json_schema":
        schema = {key: value for key, value in text_format.items() if key != "type" and value is not None}
        options["response_format"] = {"type": kind, "json_schema": schema}
    elif kind in ("text", "json_object"):
        options["response_format"] = {"type": kind}
    else:
        raise inexpressible(kind, f"{CHAT} as a response_format", "text.format")


def _text_from_chat(chat: Json, options: Json) -> None:
    """Add verbosity and response format of a Chat request to the options of a Responses request."""
    text: Json = {}
    if chat.get("response_format") is not None:
        response_format = dict_at(chat, "response_format", "request")
        kind = text_at(response_format, "type", "response_format")
        if kind == "json_schema":
            text["format"] = {"type": kind, **dict_at(response_format, "json_schema", "response_format")}
        elif kind in ("text", "json_object"):
            text["format"] = {"type": kind}
        else:
            raise inexpressible(kind, f"{RESPONSES} as a text format", "response_format")
    if chat.get("verbosity") is not None:
        text["verbosity"] = chat["verbosity"]
    if text:
        options["text"] = text


def _limits_from_chat(chat: Json, options: Json) -> None:
    """Add the token limit of a Chat request, which has two names, to the options of a Responses request."""
    limits = [chat[key] for key in ("max_completion_tokens", "max_tokens") if chat.get(key) is not None]
    if len(limits) == 2 and limits[0] != limits[1]:
        problem = "max_tokens and max_completion_tokens disagree"
        raise ConversionError(problem, where="max_tokens", fix="give one of them")
    if limits:
        options["max_output_tokens"] = limits[0]


def _tools_to_chat(params: Json, options: Json) -> None:
    """Add tools and tool choice to the options of a Chat request; without tools, Chat accepts no options about them."""
    tools = function_tools(params, CHAT)
    if not tools:
        options.pop("parallel_tool_calls", None)
        return
    options["tools"] = [_tool_to_chat(tool) for tool, _ in tools]
    if "tool_choice" in params:
        options["tool_choice"] = _choice_to_chat(params["tool_choice"])


def _tools_from_chat(chat: Json, options: Json) -> None:
    """Add tools and tool choice of a Chat request to the options of a Responses request."""
    tools = optional_list_at(chat, "tools", "request")
    if tools:
        options["tools"] = [_tool_from_chat(tool, path) for tool, path in iter_dicts(tools, "tools")]
    if chat.get("tool_choice") is not None:
        options["tool_choice"] = _choice_from_chat(chat["tool_choice"])


def _tool_to_chat(tool: Json) -> Json:
    """Convert a function tool to Chat; `strict: false` is left out, because it is the default there."""
    function = {key: value for key, value in tool.items() if key != "type" and value is not None}
    if function.get("strict") is False:
        del function["strict"]
    return {"type": "function", "function": function}


def _tool_from_chat(tool: Json, path: str) -> Json:
    """Convert a function tool to Responses, where tools are strict by default, unlike in Chat."""
    kind = text_at(tool, "type", path)
    if kind != "function":
        raise inexpressible(f"{kind} tool", RESPONSES, path, fix="give function tools only")
    function = dict_at(tool, "function", path)
    text_at(function, "name", f"{path}.function")  # raises if there is no name
    return {"type": "function", "parameters": None, **function, "strict": bool(function.get("strict"))}


def _choice_to_chat(choice: Any) -> Any:
    """Convert a tool choice to Chat."""
    if choice is None or isinstance(choice, str):
        return choice
    choice = expect_dict(choice, "tool_choice")
    kind = text_at(choice, "type", "tool_choice")
    if kind in ("function", "custom"):
        return {"type": "function", "function": {"name": text_at(choice, "name", "tool_choice")}}
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
    if tool.get("type", "function") not in ("function", "custom"):
        raise inexpressible(tool["type"], f"{CHAT} as a tool_choice", path)
    return text_at(tool, "name", path)
