"""Prompts of a conversation as token ids, in which earlier turns keep the ids that the model generated.

Text is not tokenised twice: a sampled sequence of tokens is often not the one that the tokenizer gives for its text,
and a chat template writes tool calls differently from how the model wrote them. A trainer would then learn from tokens
that the model never sampled.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol
from uuid import uuid4

from nemo_gym.errors import ModelFailed
from nemo_gym.wire.base import REQUIRED_TOKEN_FIELDS

Message = Mapping[str, Any]
Json = dict[str, Any]
ParseReply = Callable[[str], Json]
"""Function from the text of a turn to `content` and `tool_calls` of a chat message."""

_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)


class ChatTokenizer(Protocol):
    """The part of a `transformers` tokenizer that a policy needs; any object with these members will do."""

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a turn."""

    def apply_chat_template(
        self,
        conversation: list[Json],
        *,
        tools: list[Json] | None = None,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        return_dict: bool = False,
    ) -> Any:
        """Return the ids of a conversation; with `add_generation_prompt`, up to the start of the next turn."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> Any:
        """Return the text of the ids."""


def render_prompt(
    tokenizer: ChatTokenizer, messages: Sequence[Message], tools: list[Json] | None, end_ids: Collection[int]
) -> list[int]:
    """Return the ids of the prompt for the next turn of the assistant.

    If an assistant message has token fields, the prompt starts with exactly these tokens, and only what follows is
    rendered. `end_ids` are the tokens that end a turn.

    Raises:
        ModelFailed: the chat template does not show where the turn ends.
    """
    conversation = [_for_template(message) for message in messages]
    last = next((index for index in reversed(range(len(messages))) if _has_ids(messages[index])), None)
    if last is None:
        return _render(tokenizer, conversation, tools, add_generation_prompt=True)
    sampled = [*messages[last]["prompt_token_ids"], *messages[last]["generation_token_ids"]]
    return sampled + _ids_after(tokenizer, conversation, last, tools, end_ids, ended=sampled[-1] in end_ids)


def _ids_after(
    tokenizer: ChatTokenizer,
    conversation: list[Json],
    last: int,
    tools: list[Json] | None,
    end_ids: Collection[int],
    *,
    ended: bool,
) -> list[int]:
    """Return the ids that follow the tokens of turn `last`, with its end token if the model did not generate one.

    The end is found by rendering the conversation up to this turn, and whole. Some templates render an earlier turn
    differently (without its thoughts), so a second attempt uses placeholders in place of the assistant's texts.
    """
    for attempt in (conversation, [_placeholder(message) for message in conversation]):
        before = _render(tokenizer, attempt[: last + 1], tools)
        whole = _render(tokenizer, attempt, tools, add_generation_prompt=True)
        end = next((index for index in reversed(range(len(before))) if before[index] in end_ids), None)
        if end is None or tokenizer.decode(before[end + 1 :], skip_special_tokens=False).strip():
            continue  # this template writes no end token after a turn of the assistant
        if whole[: end + 1] == before[: end + 1]:
            return whole[end + 1 :] if ended else whole[end:]
    raise ModelFailed(
        "the chat template does not show where an earlier turn ends, so its tokens cannot be kept",
        fix="use a template that writes the end-of-sequence token after each turn of the assistant",
    )


def _render(
    tokenizer: ChatTokenizer, messages: list[Json], tools: list[Json] | None, *, add_generation_prompt: bool = False
) -> list[int]:
    ids = tokenizer.apply_chat_template(
        messages, tools=tools or None, add_generation_prompt=add_generation_prompt, tokenize=True, return_dict=False
    )
    return [int(token) for token in ids]


def _has_ids(message: Message) -> bool:
    return message.get("role") == "assistant" and all(message.get(name) for name in REQUIRED_TOKEN_FIELDS)


def _placeholder(message: Json) -> Json:
    return {"role": "assistant", "content": "."} if message["role"] == "assistant" else message


def _for_template(message: Message) -> Json:
    """Return a message as chat templates read it: text as one string, arguments of tool calls as objects.

    Raises:
        ModelFailed: the message has other content than text.
    """
    rendered = {key: message[key] for key in ("role", "name", "tool_call_id") if message.get(key) is not None}
    content = message.get("content")
    if isinstance(content, list):
        others = [part.get("type") for part in content if not isinstance(part.get("text"), str)]
        if others:
            raise ModelFailed(f"this policy reads text only, not {others[0]}")
        content = "".join(part["text"] for part in content)
    rendered["content"] = content or ""
    calls = [_call_for_template(call) for call in message.get("tool_calls") or []]
    return rendered | ({"tool_calls": calls} if calls else {})


def _call_for_template(call: Message) -> Json:
    function = dict(call["function"])
    with suppress(ValueError, RecursionError):  # invalid JSON of a model is shown unchanged
        function["arguments"] = json.loads(function.get("arguments") or "{}")
    return {"type": "function", "id": call.get("id"), "function": function}


def parse_hermes(text: str) -> Json:
    """Parse calls of the form `<tool_call>{"name": …, "arguments": {…}}</tool_call>`; what is no call stays text."""
    calls: list[Json] = []

    def collect_call(match: re.Match[str]) -> str:
        try:
            call = json.loads(match[1])
        except (ValueError, RecursionError):
            return match[0]
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            return match[0]
        calls.append(tool_call(call["name"], call.get("arguments") or {}))
        return ""

    content = _CALL.sub(collect_call, text).strip()
    return {"content": content or None, "tool_calls": calls} if calls else {"content": text}


def tool_call(name: str, arguments: Any) -> Json:
    """Build a tool call of a chat message."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": f"call_{uuid4().hex}", "type": "function", "function": function}
