"""Answers of endpoints that lack what the dialect requires: ids, times, token counts and empty arguments of a call."""

import json
from contextlib import suppress
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from nemo_gym.convert.json_access import Json, NewId
from nemo_gym.wire.chat_completions import NeMoGymChatCompletion

AnswerT = TypeVar("AnswerT", bound=BaseModel)

NO_ARGUMENTS = "{}"
"""The arguments of a tool call whose endpoint leaves them out."""

_ITEM_PREFIXES = {"message": "msg", "reasoning": "rs"}
"""The prefixes of the ids of items that must have one."""
_COUNTS = ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "total_tokens")


def validate_or_repair(kind: type[AnswerT], answer: Json, *, new_id: NewId) -> AnswerT:
    """Return an answer as an object of the class `kind`; only one that clients cannot read is repaired: it takes time.

    Raises:
        ValidationError: the answer is not valid after the repair either.
    """
    if not _is_odd(answer):
        with suppress(ValidationError):
            return kind.model_validate(answer)
    return kind.model_validate(with_required_fields(answer, new_id=new_id))


def with_required_fields(answer: Json, *, new_id: NewId) -> Json:
    """Return a completion or response with an id, a whole number as its time, and token counts that are numbers.

    A missing count is 0, missing arguments are an empty object; the rest of the answer is unchanged, so that validation
    explains what else is wrong with it.
    """
    is_completion = "choices" in answer
    kind, prefix, time_name = (
        ("chat.completion", "chatcmpl", "created") if is_completion else ("response", "resp", "created_at")
    )
    repaired = {**answer, "object": answer.get("object") or kind, "id": answer.get("id") or new_id(prefix)}
    created = answer.get(time_name)
    repaired[time_name] = int(created) if isinstance(created, int | float) else 0
    if is_completion and isinstance(answer["choices"], list):
        choices = enumerate(answer["choices"])
        repaired["choices"] = [_repaired_choice(choice, position, new_id) for position, choice in choices]
    if not is_completion and isinstance(answer.get("output"), list):
        repaired["output"] = [_with_item_id(item, new_id) for item in answer["output"]]
    if "usage" in answer:
        repaired["usage"] = _with_counts(answer["usage"], is_completion=is_completion)
    return repaired


def is_blank(arguments: Any) -> bool:
    """Return whether a tool call, or what has arrived of it, has no arguments."""
    return not isinstance(arguments, str) or not arguments.strip()


def arguments_text(arguments: Any) -> Any:
    """Return arguments as JSON text; some endpoints write them as an object."""
    return json.dumps(arguments) if isinstance(arguments, dict) else arguments


def with_arguments(call: Any) -> Any:
    """Return a tool call of Chat with arguments as text; what is no function call is unchanged."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    arguments = arguments_text(function.get("arguments"))
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        arguments = NO_ARGUMENTS
    return (
        call if arguments is function.get("arguments") else {**call, "function": {**function, "arguments": arguments}}
    )


def text_and_thought(content: Any) -> tuple[str, str] | None:
    """Return the text and the thoughts of content that is a list of parts; None if it has other parts."""
    texts: dict[str, list[str]] = {"text": [], "thinking": []}
    for part in content if isinstance(content, list) else ():
        kind = str(part.get("type")) if isinstance(part, dict) else ""
        text = part.get(kind) if kind in texts else None
        if isinstance(text, list):
            inner = text_and_thought(text)
            text = None if inner is None else "".join(inner)
        if not isinstance(text, str):
            return None
        texts[kind].append(text)
    return "".join(texts["text"]), "".join(texts["thinking"])


def _is_odd(answer: Json) -> bool:
    """Return whether a valid completion has tool calls that clients cannot use: without id or arguments."""
    for choice in answer.get("choices") or () if isinstance(answer.get("choices"), list) else ():
        message = choice.get("message") if isinstance(choice, dict) else None
        for call in (message.get("tool_calls") or ()) if isinstance(message, dict) else ():
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict) and (not call.get("id") or is_blank(function.get("arguments"))):
                return True
    return False


def _repaired_choice(choice: Any, position: int, new_id: NewId) -> Any:
    """Return a choice with its number, whose content is a text and whose tool calls have ids and arguments."""
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        return choice
    texts = text_and_thought(message["content"]) if isinstance(message.get("content"), list) else None
    if texts is not None:
        thought = {"reasoning_content": texts[1]} if texts[1] else {}
        message = {**message, "content": texts[0], **thought}
    if isinstance(message.get("tool_calls"), list):
        calls = [with_arguments(call) for call in message["tool_calls"]]
        message = {**message, "tool_calls": [_with_id(call, new_id) for call in calls]}
    index = position if choice.get("index") is None else choice["index"]
    return {**choice, "index": index, "message": message}


def _with_item_id(item: Any, new_id: NewId) -> Any:
    """Return a message or reasoning item with an id, which clients require."""
    prefix = _ITEM_PREFIXES.get(str(item.get("type"))) if isinstance(item, dict) else None
    return item if prefix is None or item.get("id") else {**item, "id": new_id(prefix)}


def _with_id(call: Any, new_id: NewId) -> Any:
    """Return a tool call with an id, by which a client refers to it in its result."""
    return {**call, "id": new_id("call")} if isinstance(call, dict) and not call.get("id") else call


def _with_counts(usage: Any, *, is_completion: bool) -> Any:
    """Return token counts with 0 for each one that is missing; what is no object is unchanged."""
    if not isinstance(usage, dict):
        return usage
    names = (*(_COUNTS[:2] if is_completion else _COUNTS[2:4]), "total_tokens")
    counts = {name: 0 if usage.get(name) is None else usage[name] for name in names}
    if usage.get("total_tokens") is None and all(isinstance(value, int) for value in counts.values()):
        counts["total_tokens"] = sum(counts.values())
    return {**usage, **counts}


def with_reasoning_content(completion: NeMoGymChatCompletion) -> NeMoGymChatCompletion:
    """Return a completion whose reasoning is in `reasoning_content`, as in a stream, not in `reasoning`."""
    extras = [choice.message.model_extra or {} for choice in completion.choices]
    if not any("reasoning" in extra for extra in extras):
        return completion
    completion = completion.model_copy(deep=True)
    for choice in completion.choices:
        extra = choice.message.model_extra or {}
        reasoning = extra.pop("reasoning", None)
        if reasoning is not None and not extra.get("reasoning_content"):
            extra["reasoning_content"] = reasoning
    return completion
