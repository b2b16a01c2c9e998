"""A finished Chat completion as stream chunks, and such chunks as the finished completion.

Token ids are not streamed: one line of a stream is read into a buffer that many clients keep small.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from nemo_gym.convert.shapes import Json, as_dict, dict_at, each_dict, optional_list_at, shown
from nemo_gym.convert.tokens import TOKEN_FIELDS
from nemo_gym.errors import ConversionError

_GROWING = ("content", "refusal", "reasoning_content", "reasoning")
_IN_ORDER = ("role", "reasoning_content", "content", "tool_calls")


def chunks_from_completion(completion: Json, *, include_usage: bool = False) -> Iterator[Json]:
    """Per choice: its role, reasoning, content, tool calls, whatever else it says, and why it ended; then the usage."""
    completion = as_dict(completion, "completion")
    head = {key: value for key, value in completion.items() if key not in ("choices", "usage", "object")}
    head["object"] = "chat.completion.chunk"
    if include_usage:
        head["usage"] = None
    for position, (choice, where) in enumerate(each_dict(completion.get("choices"), "choices")):
        index = choice.get("index", position)
        for delta in _deltas(dict_at(choice, "message", where), f"{where}.message"):
            yield {**head, "choices": [{"index": index, "delta": delta, "finish_reason": None}]}
        last: Json = {"index": index, "delta": {}, "finish_reason": choice.get("finish_reason")}
        if choice.get("logprobs") is not None:
            last["logprobs"] = choice["logprobs"]
        yield {**head, "choices": [last]}
    if include_usage:
        yield {**head, "choices": [], "usage": completion.get("usage")}


def _deltas(message: Json, where: str) -> Iterator[Json]:
    yield {"role": message.get("role") or "assistant"}
    for key in ("reasoning_content", "content"):
        if message.get(key) is not None:
            yield {key: message[key]}
    calls = optional_list_at(message, "tool_calls", where)
    if calls:
        yield {
            "tool_calls": [
                {"index": index, **as_dict(call, f"{where}.tool_calls[{index}]")} for index, call in enumerate(calls)
            ]
        }
    skipped = (*_IN_ORDER, *TOKEN_FIELDS)
    rest = {key: value for key, value in message.items() if key not in skipped and value is not None}
    if rest:
        yield rest


def completion_from_chunks(chunks: Iterable[Any]) -> Json:
    """The completion a stream of chunks adds up to.

    Raises:
        ConversionError: a chunk reports an error, or a choice never ends.
    """
    completion: Json = {}
    choices: dict[int, Json] = {}
    for chunk, where in each_dict(iter(chunks), "chunks"):
        if chunk.get("error") is not None:
            raise ConversionError(f"the stream reports an error: {shown(chunk['error'])}", where=where)
        completion |= {key: value for key, value in chunk.items() if key != "choices" and value is not None}
        for part in optional_list_at(chunk, "choices", where):
            _add_to_choice(choices, as_dict(part, where), where)
    if not choices:
        raise ConversionError("the stream holds no answer", where="stream")
    for index, choice in choices.items():
        if choice["finish_reason"] is None:
            raise ConversionError("the stream stops before the answer is finished", where=f"choices[{index}]")
        calls = choice["message"].pop("tool_calls", None)
        if calls:
            choice["message"]["tool_calls"] = [calls[key] for key in sorted(calls)]
    completion["object"] = "chat.completion"
    completion["choices"] = [choices[index] for index in sorted(choices)]
    completion.setdefault("usage", None)
    return completion


def _add_to_choice(choices: dict[int, Json], part: Json, where: str) -> None:
    index = part.get("index", 0)
    if not isinstance(index, int):
        raise ConversionError("a choice's index is not a number", where=where)
    empty = {"index": index, "message": {"role": "assistant", "content": None}, "finish_reason": None, "logprobs": None}
    choice = choices.setdefault(index, empty)
    if part.get("delta") is not None:
        _add_delta(choice["message"], dict_at(part, "delta", where), where)
    if part.get("finish_reason") is not None:
        choice["finish_reason"] = part["finish_reason"]
    if part.get("logprobs") is not None:
        _add_logprobs(choice, dict_at(part, "logprobs", where), where)


def _add_delta(message: Json, delta: Json, where: str) -> None:
    for key, value in delta.items():
        if key == "tool_calls":
            for call in optional_list_at(delta, key, where):
                _add_call(message.setdefault(key, {}), as_dict(call, where), where)
        elif value is None:
            continue
        elif key in _GROWING and isinstance(value, str):
            message[key] = (message.get(key) or "") + value
        else:
            message[key] = value


def _add_call(calls: dict[int, Json], piece: Json, where: str) -> None:
    """Add a piece of a tool call: names and ids come once, arguments bit by bit."""
    index = piece.get("index", len(calls))
    if not isinstance(index, int):
        raise ConversionError("a tool call's index is not a number", where=where)
    call = calls.setdefault(index, {})
    call |= {key: value for key, value in piece.items() if key not in ("index", "function") and value is not None}
    if piece.get("function") is None:
        return
    said = dict_at(piece, "function", where)
    function = call.setdefault("function", {})
    for key, value in said.items():
        if key == "arguments" and isinstance(value, str):
            function[key] = function.get(key, "") + value
        elif value is not None:
            function[key] = value


def _add_logprobs(choice: Json, logprobs: Json, where: str) -> None:
    if choice["logprobs"] is None:
        choice["logprobs"] = {"content": None, "refusal": None}
    held = choice["logprobs"]
    for key, value in logprobs.items():
        if isinstance(value, list):
            held[key] = (held.get(key) or []) + value
        elif value is not None:
            raise ConversionError(f"logprobs.{key} is not a list", where=where)
