"""Chunks of Chat endpoints in the one form that every reader of a stream expects.

Endpoints number tool calls in several ways, repeat their names and ids or leave them out, write arguments as objects
and content as a list of parts, and send a whole message in place of a delta. The encoder of a Chat client, the decoder
for the other dialects and the builder of the completion all read the repaired chunks, so that they say the same.
"""

from typing import Any

from nemo_gym.convert.answer_repair import arguments_text, text_and_thought
from nemo_gym.convert.chat_stream import CallPieces
from nemo_gym.convert.json_access import Json, NewId, expect_dict, optional_list_at


class ChunkRepair:
    """Repairs the chunks of one stream; a chunk that needs no repair is returned unchanged."""

    def __init__(self, new_id: NewId) -> None:
        self._new_id = new_id
        self._calls: dict[int, CallPieces] = {}
        """The tool calls of each choice."""
        self._named: set[tuple[int, int]] = set()
        """The choice and the number of the calls whose name was sent."""
        self._begun: set[int] = set()
        """The choices that have had a delta with more than a role."""

    def repair(self, chunk: Json) -> Json:
        """Return a chunk whose choices have a number and a delta of texts and numbered pieces of calls.

        Raises:
            ConversionError: the chunk is malformed.
        """
        choices = optional_list_at(chunk, "choices", "chunk")
        repaired = [self._choice(expect_dict(choice, "chunk")) for choice in choices]
        is_same = all(new is old for new, old in zip(repaired, choices, strict=True))
        return chunk if is_same else {**chunk, "choices": repaired}

    def _choice(self, choice: Json) -> Json:
        index = number_of_text(choice.get("index", 0), 0)
        if index is not choice.get("index", 0):
            choice = {**choice, "index": index}
        delta, message = choice.get("delta"), choice.get("message")
        if delta is None and isinstance(message, dict) and index not in self._begun:
            choice = {**{key: value for key, value in choice.items() if key != "message"}, "delta": message}
            delta = message
        if not isinstance(delta, dict) or not delta:
            return choice
        if any(value for key, value in delta.items() if key != "role"):
            self._begun.add(index)
        repaired = self._delta(delta, index)
        return choice if repaired is delta else {**choice, "delta": repaired}

    def _delta(self, delta: Json, choice: int) -> Json:
        if isinstance(delta.get("content"), list):
            delta = with_plain_content(delta)
        if not delta.get("tool_calls"):
            return delta
        calls = self._calls.setdefault(choice, CallPieces())
        pieces = [expect_dict(piece, "chunk") for piece in optional_list_at(delta, "tool_calls", "chunk")]
        return {**delta, "tool_calls": [self._piece(piece, calls, choice) for piece in pieces]}

    def _piece(self, piece: Json, calls: CallPieces, choice: int) -> Json:
        """Return a piece of a call: the first one has the id, only one has the name."""
        count = len(calls)
        number = calls.note(piece, "chunk")
        repaired: Json = {**piece, "index": number}
        if number >= count:
            repaired["id"] = calls[number]["id"] = piece.get("id") or self._new_id("call")
        else:
            for name in ("id", "type"):
                repaired.pop(name, None)
        function = piece.get("function")
        if not isinstance(function, dict):
            return repaired
        repaired["function"] = function = dict(function)
        if (choice, number) in self._named or not function.get("name"):
            function.pop("name", None)
        else:
            self._named.add((choice, number))
        if "arguments" in function:
            function["arguments"] = arguments_text(function["arguments"])
        return repaired


def number_of_text(index: Any, default: int) -> Any:
    """Return the number that some endpoints write as a text or null; other values are returned unchanged."""
    if index is None:
        return default
    return int(index) if isinstance(index, str) and index.isdecimal() else index


def with_plain_content(message: Json) -> Json:
    """Return a message or delta whose content is a text and whose thoughts are in `reasoning_content`."""
    texts = text_and_thought(message.get("content"))
    if texts is None:
        return message
    thought = {"reasoning_content": texts[1]} if texts[1] else {}
    return {**message, "content": texts[0] or None, **thought}
