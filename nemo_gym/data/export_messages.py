"""Convert a rollout into chat messages in TRL's format.

Content is text; the arguments of a call are an object if they are valid JSON; a tool's answer contains the tool's name.
Content that this format cannot express (images, calls of hosted tools, encrypted reasoning) raises `ConversionError`
instead of being left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import orjson

from nemo_gym.convert.chat_conversation import DROPPED_ITEMS, lead_with_instructions, parse_think_tags, text_content
from nemo_gym.convert.responses_chat import chat_messages, options_to_chat
from nemo_gym.errors import ConversionError
from nemo_gym.keys import RESPONSE_KEY_NAME as RESPONSE
from nemo_gym.keys import RESPONSES_CREATE_PARAMS_KEY_NAME as PARAMS

Message: TypeAlias = dict[str, Any]
Reasoning: TypeAlias = Literal["inline", "separate", "drop"]
"""Reasoning as `<think>…</think>` in the content, as a separate field `reasoning_content`, or dropped."""
Developer: TypeAlias = Literal["system", "keep"]
"""The role `developer` as `system` or unchanged; most chat templates silently ignore `developer` messages."""
ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class MessageStyle:
    """Options for writing messages."""

    reasoning: Reasoning = "inline"
    developer: Developer = "system"


DEFAULT_STYLE = MessageStyle()


@dataclass(frozen=True, slots=True)
class ChatConversation:
    """The messages of the request and of the response, and the tools."""

    prompt: list[Message]
    completion: list[Message]
    tools: list[dict[str, Any]]

    @property
    def messages(self) -> list[Message]:
        return [*self.prompt, *self.completion]

    def completion_loss_mask(self, roles: Sequence[str]) -> list[int]:
        """Return 1 for each message of the completion that has one of `roles`, and 0 for the others."""
        return [int(message["role"] in roles) for message in self.completion]

    def loss_mask(self, roles: Sequence[str]) -> list[int]:
        """Return 0 for each message of the prompt, and the loss mask of the completion."""
        return [*(0 for _ in self.prompt), *self.completion_loss_mask(roles)]


def read_conversation(record: Mapping[str, Any], style: MessageStyle = DEFAULT_STYLE) -> ChatConversation:
    """Return the conversation of a stored rollout.

    Raises:
        ConversionError: the rollout has content that this format cannot express, or no message of the model.
    """
    request, response = _read_object(record, PARAMS), _read_object(record, RESPONSE)
    prompt, output = _request_messages(request), _chat_messages(response.get("output"))
    messages = _convert_messages([*prompt, *output], style)
    completion = messages[len(prompt) :]
    if not any(message["role"] == ASSISTANT for message in completion):
        raise ConversionError("the response has no message of the model")
    return ChatConversation(messages[: len(prompt)], completion, chat_tools(record))


def prompt_messages(record: Mapping[str, Any], style: MessageStyle) -> list[Message]:
    """Return the messages of the request.

    Raises:
        ConversionError: a message has content that this format cannot express.
    """
    return _convert_messages(_request_messages(_read_object(record, PARAMS)), style)


def _request_messages(request: Mapping[str, Any]) -> list[Message]:
    """Return the chat messages of a request, with its instructions first."""
    messages = _chat_messages(request.get("input"))
    return lead_with_instructions(messages, str(request["instructions"])) if request.get("instructions") else messages


def _chat_messages(items: Any) -> list[Message]:
    """Convert items to chat messages. Unlike a model server, refuse items of hosted tools: a reader would miss them."""
    for item in items if isinstance(items, list) else ():
        if isinstance(item, Mapping) and item.get("type") in DROPPED_ITEMS:
            raise ConversionError(f"a conversation in text has no place for an item of type '{item['type']}'")
    return chat_messages(items)


def chat_tools(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the tools of the request; if it has none, the tools of the response, which an agent may have added."""
    request, response = _read_object(record, PARAMS), _read_object(record, RESPONSE)
    tools = request.get("tools") or response.get("tools")
    return _convert_tools(orjson.dumps(tools)) if tools else []


@lru_cache(maxsize=256)
def _convert_tools(tools: bytes) -> list[dict[str, Any]]:
    """Convert tools to the chat format. Cached: nearly all rollouts of an environment have the same tools."""
    return list(options_to_chat({"tools": orjson.loads(tools)}).get("tools") or [])


def _read_object(record: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = record.get(key)
    if not isinstance(value, dict):
        raise ConversionError(f"{key} is not an object")
    return value


def _convert_messages(messages: list[Message], style: MessageStyle) -> list[Message]:
    """Convert chat messages to TRL's format in the given style; the answer to a call gets the name of its tool."""
    tool_names: dict[str, str] = {}
    converted = []
    for message in messages:  # in order, because some models use a call id again
        tool_names |= {call["id"]: call["function"]["name"] for call in message.get("tool_calls") or ()}
        converted.append(_convert_message(message, tool_names, style))
    return converted


def _convert_message(source: Message, tool_names: Mapping[str, str], style: MessageStyle) -> Message:
    """Convert one message; `tool_names` has the name of the tool for each call id so far."""
    role = "system" if source["role"] == "developer" and style.developer == "system" else source["role"]
    content = source.get("content")
    text = text_content(content) if content is not None else ""
    if text is None:
        raise ConversionError("content is not text", where=f"a message of the {role}")
    message: Message = {"role": role, "content": text + (source.get("refusal") or "")}
    if role == ASSISTANT:
        _apply_reasoning_style(message, style.reasoning)
        if source.get("tool_calls"):
            message["tool_calls"] = [_convert_call(call) for call in source["tool_calls"]]
    elif role == "tool":
        message["tool_call_id"] = source["tool_call_id"]
        if source["tool_call_id"] in tool_names:
            message["name"] = tool_names[source["tool_call_id"]]
    return message


def _apply_reasoning_style(message: Message, reasoning: Reasoning) -> None:
    """Leave the `<think>` tags in the content, move their text to `reasoning_content`, or drop them with their text."""
    if reasoning == "inline":
        return
    thoughts, message["content"] = parse_think_tags(message["content"])
    if thoughts and reasoning == "separate":
        message["reasoning_content"] = "\n".join(thoughts)


def _convert_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a call; its arguments become an object if they are the JSON text of one."""
    function = call["function"]
    try:
        arguments = orjson.loads(function["arguments"])
    except (orjson.JSONDecodeError, TypeError):
        arguments = None
    if not isinstance(arguments, dict):
        arguments = function["arguments"]
    return {"id": call["id"], "type": "function", "function": {**function, "arguments": arguments}}
