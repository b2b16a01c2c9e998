"""Answers of endpoints that lack what the dialect requires: ids, times, token counts and empty arguments of a call."""

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from nemo_gym.convert.json_access import Json, NewId
from nemo_gym.wire.chat_completions import NeMoGymChatCompletion

AnswerT = TypeVar("AnswerT", bound=BaseModel)

NO_ARGUMENTS = "{}"
"""The arguments of a tool call whose endpoint leaves them out."""

_COUNTS = ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "total_tokens")


def validate_or_repair(kind: type[AnswerT], answer: Json, *, new_id: NewId) -> AnswerT:
    """Return an answer as an object of the class `kind`; only one that is not valid is repaired, which takes time.

    Raises:
        ValidationError: the answer is not valid after the repair either.
    """
    try:
        return kind.model_validate(answer)
    except ValidationError:
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
        repaired["choices"] = [_with_calls(choice) for choice in answer["choices"]]
    if "usage" in answer:
        repaired["usage"] = _with_counts(answer["usage"], is_completion=is_completion)
    return repaired


def with_arguments(call: Any) -> Any:
    """Return a tool call of Chat with arguments; what is no function call is unchanged."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or function.get("arguments") is not None:
        return call
    return {**call, "function": {**function, "arguments": NO_ARGUMENTS}}


def _with_calls(choice: Any) -> Any:
    """Return a choice whose tool calls have arguments."""
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict) or not isinstance(message.get("tool_calls"), list):
        return choice
    return {**choice, "message": {**message, "tool_calls": [with_arguments(call) for call in message["tool_calls"]]}}


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
