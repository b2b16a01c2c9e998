"""Convert requests and replies: Responses API ↔ Anthropic Messages.

`responses_request` and `message_from_response` are for a Messages client of a Responses model; `messages_request` and
`response_from_message` for a Responses client of a Messages model.
"""

from typing import Any

from nemo_gym.convert.anthropic_blocks import (
    SERVER_BLOCKS,
    assistant_blocks,
    items_from_assistant,
    items_from_user,
    joined_text,
    output_message,
    tool_result_block,
    user_blocks,
)
from nemo_gym.convert.anthropic_tools import function_of_typed_tool
from nemo_gym.convert.chat_conversation import DROPPED_ITEMS, item_kind
from nemo_gym.convert.json_access import (
    MESSAGES,
    RESPONSES,
    Json,
    NewId,
    dict_at,
    expect_dict,
    inexpressible,
    iter_dicts,
    optional_dict_at,
    optional_list_at,
    optional_text_at,
    text_at,
)
from nemo_gym.convert.responses_chat import empty_response, function_tools, reject_server_state, reply_fields
from nemo_gym.convert.usage import usage_from_message, usage_to_message

_INCOMPLETE_REASONS = {
    "max_tokens": "max_output_tokens",
    "model_context_window_exceeded": "max_output_tokens",
    "refusal": "content_filter",
}
_COMPLETED = (None, "end_turn", "stop_sequence", "tool_use")
_FROM_MESSAGES = {"model": "model", "max_tokens": "max_output_tokens", "temperature": "temperature", "top_p": "top_p"}
_TO_ENGINE = {"top_k": "top_k", "stop_sequences": "stop"}
"""Options that the Responses API lacks and engines have."""
_CONVERTED = frozenset(
    {*_FROM_MESSAGES, "messages", "system", "tools", "tool_choice", "stream", "metadata", "output_format"}
)
_CHOICES = {"auto": "auto", "none": "none", "any": "required"}
_NO_PARAMETERS: Json = {"type": "object", "properties": {}}


def responses_request(body: Json, *, new_id: NewId) -> Json:
    """Convert a Messages request to a Responses request; the `options_lost_from_messages` are dropped."""
    body = expect_dict(body, "request")
    params = options_from_messages(body)
    if body.get("system") is not None:
        params["instructions"] = joined_text(body["system"], "system")
    items: list[Json] = []
    for message, path in iter_dicts(body.get("messages"), "messages"):
        role = text_at(message, "role", path)
        if role == "user":
            items += items_from_user(message.get("content"), path)
        elif role == "assistant":
            items += items_from_assistant(message.get("content"), path, new_id=new_id)
        elif role == "system":
            text = joined_text(message.get("content"), f"{path}.content")
            items.append({"type": "message", "role": role, "content": text})
        else:
            raise inexpressible(role, f"{RESPONSES} as the role of a message", path)
    return {"input": items, **params}


def accepted_request(body: Json, *, new_id: NewId) -> tuple[Json, list[str]]:
    """Convert a Messages request to a Responses request with options of engines; return also what is dropped."""
    params = responses_request(body, new_id=new_id)
    params |= {name: body[key] for key, name in _TO_ENGINE.items() if body.get(key)}
    dropped = [key for key in options_lost_from_messages(body) if key not in _TO_ENGINE]
    return params, [f"{key}: our models have no such option" for key in dropped]


def message_from_response(response: Json, *, model: str, new_id: NewId) -> Json:
    """Convert a finished response to a message, without token ids."""
    response = expect_dict(response, "response")
    content: list[Json] = []
    has_refusal = False
    for item, path in iter_dicts(response.get("output"), "output"):
        kind = item_kind(item, path)
        if kind == "message" and item.get("role", "assistant") != "assistant":
            raise inexpressible(item["role"], f"{MESSAGES} as the role of a model", path)
        if kind in DROPPED_ITEMS:
            continue  # of a tool that ran at the provider
        content += [_as_thinking(block) for block in assistant_blocks(item, kind, path)]
        parts = item.get("content") if kind == "message" else None
        has_refusal |= isinstance(parts, list) and any(part["type"] == "refusal" for part in parts)
    return {
        "id": str(response.get("id") or new_id("msg")),  # of the response, so that both name the same generation
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": _stop_reason(response, content, has_refusal),
        "stop_sequence": None,
        "usage": usage_to_message(response.get("usage")),
    }


def messages_request(
    params: Json, *, model: str, max_tokens: int, thinking: Any = None, thinking_budget_tokens: int | None = None
) -> Json:
    """Convert a Responses request to a Messages request.

    `max_tokens` is used if the request has no token limit, because the Messages API requires one. For `thinking` and
    `thinking_budget_tokens` see `thinking_option`.
    """
    params = expect_dict(params, "request")
    reject_server_state(params, MESSAGES)
    limit = params.get("max_output_tokens")
    request: Json = {"model": model, "max_tokens": max_tokens if limit is None else limit}
    system, messages = _conversation(params)
    if system:
        request["system"] = "\n\n".join(system)
    request["messages"] = messages
    request |= options_to_messages(params)
    option = thinking_option(thinking, thinking_budget_tokens)
    if option is not None:
        request["thinking"] = option
    return request


def response_from_message(params: Json, message: Json, *, model: str, now: int, new_id: NewId) -> Json:
    """Convert a message to the response to the Responses request `params`, whose options it repeats."""
    params, message = expect_dict(params, "request"), expect_dict(message, "message")
    output = items_from_assistant(message.get("content"), "message", new_id=new_id)
    stop = message.get("stop_reason")
    if stop not in _COMPLETED and (not isinstance(stop, str) or stop not in _INCOMPLETE_REASONS):
        raise inexpressible(stop, f"{RESPONSES} as the end of an answer", "stop_reason")
    reason = _INCOMPLETE_REASONS.get(stop) if stop is not None else None
    response = empty_response(new_id("resp"), now, model)
    usage = usage_from_message(message.get("usage"))
    return response | reply_fields(output or [output_message("", new_id)], reason, usage, params)


def _conversation(params: Json) -> tuple[list[str], list[Json]]:
    """Return the leading system texts and the messages; consecutive items of one role become one message."""
    instructions = optional_text_at(params, "instructions", "request")
    system = [instructions] if instructions else []
    items = params.get("input")
    if isinstance(items, str):
        return system, [{"role": "user", "content": items}]
    messages: list[Json] = []
    for item, path in iter_dicts(items, "input"):
        kind = item_kind(item, path)
        if kind == "message" and item.get("role") in ("system", "developer"):
            if messages:
                raise inexpressible(f"a {item['role']} message inside the conversation", MESSAGES, path)
            system.append(joined_text(item.get("content"), f"{path}.content"))
            continue
        role, blocks = _blocks(item, kind, path)
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += blocks
        elif blocks:
            messages.append({"role": role, "content": blocks})
    return system, messages


def _blocks(item: Json, kind: str, path: str) -> tuple[str, list[Json]]:
    """Convert an item to the role and the blocks of a message."""
    if kind == "function_call_output":
        return "user", [tool_result_block(item, path)]
    if kind == "message":
        role = text_at(item, "role", path)
        if role == "user":
            return role, user_blocks(item.get("content"), f"{path}.content")
        if role != "assistant":
            raise inexpressible(role, f"{MESSAGES} as a role", path)
    blocks = assistant_blocks(item, kind, path)
    if kind == "reasoning" and any(block.get("signature") == "" for block in blocks):
        raise inexpressible(
            "reasoning without a signature", MESSAGES, path, fix="leave reasoning items out of the input"
        )
    return "assistant", blocks


def _as_thinking(block: Json) -> Json:
    """Convert redacted thinking to thinking without text: the client sends the block back in its next request.

    `responses_request` accepts only thinking there, and restores the ciphertext from its signature.
    """
    if block["type"] != "redacted_thinking":
        return block
    return {"type": "thinking", "thinking": "", "signature": block["data"]}


def _stop_reason(response: Json, content: list[Json], has_refusal: bool) -> str:
    """Return the `stop_reason` of a message that is made from a response."""
    status = response.get("status")
    if status not in (None, "completed", "incomplete"):
        raise inexpressible(status, f"{MESSAGES} as the end of an answer", "status")
    reason = dict_at(response, "incomplete_details", "response").get("reason") if status == "incomplete" else None
    if reason == "max_output_tokens":
        return "max_tokens"
    if reason == "content_filter" or has_refusal:
        return "refusal"
    if reason is not None:
        raise inexpressible(reason, f"{MESSAGES} as a stop_reason", "incomplete_details.reason")
    return "tool_use" if any(block["type"] == "tool_use" for block in content) else "end_turn"


def options_from_messages(body: Json) -> Json:
    """Convert the options of a Messages request to those of a Responses request."""
    params = {name: body[key] for key, name in _FROM_MESSAGES.items() if body.get(key) is not None}
    if isinstance(body.get("metadata"), dict) and body["metadata"].get("user_id") is not None:
        params["user"] = str(body["metadata"]["user_id"])
    _output_from_messages(body, params)
    tools = optional_list_at(body, "tools", "request")
    functions = [_tool_from_messages(tool, path) for tool, path in iter_dicts(tools, "tools")]
    if any(functions):
        params["tools"] = [function for function in functions if function is not None]
    if body.get("tool_choice") is not None:
        choice = dict_at(body, "tool_choice", "request")
        params["tool_choice"] = _choice_from_messages(choice)
        if choice.get("disable_parallel_tool_use"):
            params["parallel_tool_calls"] = False
    return params


def options_to_messages(params: Json) -> Json:
    """Convert the options of a Responses request, except the token limit, to those of a Messages request."""
    options: Json = {key: params[key] for key in ("temperature", "top_p") if params.get(key) is not None}
    if params.get("user") is not None:
        options["metadata"] = {"user_id": params["user"]}
    _text_to_messages(params, options)
    tools = function_tools(params, MESSAGES)
    choice = params.get("tool_choice")
    if not tools:
        return options
    options["tools"] = [_tool_to_messages(tool, path) for tool, path in tools]
    if choice is not None or params.get("parallel_tool_calls") is False:
        options["tool_choice"] = _choice_to_messages("auto" if choice is None else choice)
        if params.get("parallel_tool_calls") is False and options["tool_choice"]["type"] != "none":
            options["tool_choice"]["disable_parallel_tool_use"] = True
    return options


def options_lost_from_messages(body: Json) -> list[str]:
    """Return the options, tools and blocks of a Messages request that are dropped: Responses has no counterpart."""
    dropped = [key for key, value in body.items() if key not in _CONVERTED and value not in (None, [], {})]
    config = body.get("output_config")
    if config and isinstance(config, dict) and config.keys() <= {"format", "effort"}:
        dropped.remove("output_config")
    if body.get("thinking") == {"type": "disabled"}:
        dropped.remove("thinking")
    for index, tool in enumerate(body.get("tools") or []):
        if isinstance(tool, dict) and tool.get("type") and _tool_from_messages(tool, f"tools[{index}]") is None:
            dropped.append(f"tools: {tool['type']}")
    contents = [message.get("content") for message in body.get("messages") or []]
    blocks = [block for content in contents if isinstance(content, list) for block in content]
    kinds = dict.fromkeys(block.get("type") for block in blocks)
    return dropped + [f"messages: {kind}" for kind in kinds if kind in SERVER_BLOCKS]


def _output_from_messages(body: Json, params: Json) -> None:
    """Add the output format and the effort of a Messages request to the options of a Responses request."""
    config = optional_dict_at(body, "output_config", "request")
    formats = {"output_config.format": config.get("format"), "output_format": body.get("output_format")}
    path = next((path for path, value in formats.items() if value is not None), None)
    if path is not None:  # `output_format` is the form of the beta of structured outputs
        schema = dict_at(expect_dict(formats[path], path), "schema", path)
        params["text"] = {"format": {"type": "json_schema", "name": "output", "schema": schema, "strict": True}}
    if config.get("effort") is not None:
        params["reasoning"] = {"effort": text_at(config, "effort", "output_config")}


def options_lost_in_messages(params: Json) -> list[str]:
    """Return the options of a Responses request that are dropped, because Messages has no counterpart."""
    keys = ("include", "max_tool_calls", "metadata", "reasoning", "service_tier", "store", "top_logprobs")
    dropped = [key for key in keys if params.get(key)]
    return [*dropped, "truncation"] if params.get("truncation") not in (None, "disabled") else dropped


def thinking_option(thinking: Any, budget: int | None) -> Json | None:
    """Return the `thinking` field for a setting: that field itself, one of its types, or True; None if it is off."""
    if thinking is None or thinking is False:
        return None
    if isinstance(thinking, dict):
        return thinking
    kind = "enabled" if thinking is True else str(thinking)
    if kind == "enabled" and budget is not None:
        return {"type": kind, "budget_tokens": budget}
    return {"type": kind}


def _text_to_messages(params: Json, options: Json) -> None:
    """Add the text format of a Responses request to the options of a Messages request."""
    text = params.get("text")
    text_format = expect_dict(text, "text").get("format") if text is not None else None
    if text_format is None:
        return
    kind = text_at(expect_dict(text_format, "text.format"), "type", "text.format")
    if kind == "json_schema":
        schema = dict_at(text_format, "schema", "text.format")
        options["output_config"] = {"format": {"type": kind, "schema": schema}}
    elif kind != "text":
        raise inexpressible(kind, f"{MESSAGES} as an output format", "text.format", fix="give a json_schema")


def _tool_from_messages(tool: Json, path: str) -> Json | None:
    """Convert a tool to a function tool; None for a tool that runs at Anthropic."""
    if tool.get("type") not in (None, "custom"):
        return function_of_typed_tool(tool, path)
    function: Json = {"type": "function", "name": text_at(tool, "name", path)}
    if tool.get("description") is not None:
        function["description"] = text_at(tool, "description", path)
    return {**function, "parameters": dict_at(tool, "input_schema", path), "strict": tool.get("strict") is True}


def _tool_to_messages(tool: Json, path: str) -> Json:
    """Convert a function tool to Messages."""
    converted: Json = {"name": tool["name"]}
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
