"""A rollout as the conversation a trainer reads: messages in the form TRL documents.

Content is plain text; a call's arguments are an object where the model wrote one; a tool's answer names its tool. What
a trainer cannot be told this way (images, calls of hosted tools, reasoning that is only encrypted) is a
`ConversionError`, never left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import orjson

from nemo_gym.convert.chat_options import options_to_chat
from nemo_gym.convert.chat_turns import lead_with_instructions
from nemo_gym.convert.parts import plain_text
from nemo_gym.convert.responses_chat import chat_messages
from nemo_gym.convert.thinking import parse_think_tags
from nemo_gym.errors import ConversionError
from nemo_gym.keys import RESPONSE_KEY_NAME, RESPONSES_CREATE_PARAMS_KEY_NAME

Message: TypeAlias = dict[str, Any]
Reasoning: TypeAlias = Literal["inline", "separate", "drop"]
"""Thoughts as `<think>…</think>` in the content, as `reasoning_content` beside it, or not at all."""
Developer: TypeAlias = Literal["system", "keep"]
"""What becomes of the role `developer`: most chat templates leave its messages out without a word."""
ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class Style:
    """How messages are written."""

    reasoning: Reasoning = "inline"
    developer: Developer = "system"


PLAIN = Style()


@dataclass(frozen=True, slots=True)
class Conversation:
    """What was asked, what became of it, and with which tools."""

    prompt: list[Message]
    completion: list[Message]
    tools: list[dict[str, Any]]

    @property
    def messages(self) -> list[Message]:
        return [*self.prompt, *self.completion]

    def completion_mask(self, roles: Sequence[str]) -> list[int]:
        """1 for each message of the completion that one of `roles` said."""
        return [int(message["role"] in roles) for message in self.completion]

    def mask(self, roles: Sequence[str]) -> list[int]:
        """The same for all messages; nothing of the prompt is learned."""
        return [*(0 for _ in self.prompt), *self.completion_mask(roles)]


def conversation_of(record: Mapping[str, Any], style: Style = PLAIN) -> Conversation:
    """The conversation of a stored rollout.

    Raises:
        ConversionError: it has something that this form cannot say, or nothing that the model said.
    """
    names: dict[str, str] = {}
    prompt = prompt_of(record, style, names)
    said = chat_messages(_part(record, RESPONSE_KEY_NAME).get("output"))
    completion = [_message(message, names, style) for message in said]
    if not any(message["role"] == ASSISTANT for message in completion):
        raise ConversionError("the model said nothing")
    return Conversation(prompt, completion, tools_of(record))


def prompt_of(record: Mapping[str, Any], style: Style = PLAIN, names: dict[str, str] | None = None) -> list[Message]:
    """What the model was asked; `names` learns which tool each call was for.

    Raises:
        ConversionError: it has something that this form cannot say.
    """
    params = _part(record, RESPONSES_CREATE_PARAMS_KEY_NAME)
    asked = chat_messages(params.get("input"))
    if params.get("instructions"):
        asked = lead_with_instructions(asked, str(params["instructions"]))
    known = {} if names is None else names
    return [_message(message, known, style) for message in asked]


def tools_of(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tools the model had: those of the request, or those an agent added, which the response repeats."""
    asked, answered = _part(record, RESPONSES_CREATE_PARAMS_KEY_NAME), _part(record, RESPONSE_KEY_NAME)
    tools = asked.get("tools") or answered.get("tools")
    return _chat_tools(orjson.dumps(tools)) if tools else []


@lru_cache(maxsize=256)
def _chat_tools(written: bytes) -> list[dict[str, Any]]:
    """Tools in their other form; the rollouts of an environment nearly all have the same."""
    return list(options_to_chat({"tools": orjson.loads(written)}).get("tools") or [])


def _part(record: Mapping[str, Any], key: str) -> dict[str, Any]:
    part = record.get(key)
    if not isinstance(part, dict):
        raise ConversionError(f"{key} is not an object")
    return part


def _message(said: Message, names: dict[str, str], style: Style) -> Message:
    role = "system" if said["role"] == "developer" and style.developer == "system" else said["role"]
    content = said.get("content")
    text = plain_text(content) if content is not None else ""
    if text is None:
        raise ConversionError("content that is not text", where=f"a message of the {role}")
    message: Message = {"role": role, "content": text + (said.get("refusal") or "")}
    if role == ASSISTANT:
        _add_thoughts(message, style.reasoning)
        if said.get("tool_calls"):
            message["tool_calls"] = [_call(call, names) for call in said["tool_calls"]]
    elif role == "tool":
        message["tool_call_id"] = said["tool_call_id"]
        if said["tool_call_id"] in names:
            message["name"] = names[said["tool_call_id"]]
    return message


def _add_thoughts(message: Message, reasoning: Reasoning) -> None:
    if reasoning == "inline":
        return
    thoughts, message["content"] = parse_think_tags(message["content"])
    if thoughts and reasoning == "separate":
        message["reasoning_content"] = "\n".join(thoughts)


def _call(call: Mapping[str, Any], names: dict[str, str]) -> dict[str, Any]:
    function = call["function"]
    names[call["id"]] = function["name"]
    return {"id": call["id"], "type": "function", "function": {**function, "arguments": _arguments(function)}}


def _arguments(function: Mapping[str, Any]) -> Any:
    """The object that the model wrote; what is not one stays as it was written."""
    written = function["arguments"]
    try:
        read = orjson.loads(written)
    except (orjson.JSONDecodeError, TypeError):
        return written
    return read if isinstance(read, dict) else written
