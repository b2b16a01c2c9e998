"""The record of one captured generation, its digest, and the token fields of model answers.

An answer is a Responses, Chat or Messages payload. Exactly one of its output items, or the chat message, carries the
token fields.
"""

import hashlib
import math
import struct
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self, overload

import orjson
from pydantic import BaseModel, ConfigDict, Field, model_validator

from nemo_gym.wire.base import (
    REQUIRED_TOKEN_FIELDS,
    TOKEN_FIELDS,
    TOKEN_METADATA_FIELDS,
    LogProbs,
    TokenIds,
    has_token_fields,
)
from nemo_gym.wire.responses import CONTEXT_LENGTH

SCHEMA_VERSION: Literal[1] = 1
DIGEST_VERSION = 1
_DIGEST_DOMAIN = b"nemo-gym-tokens"
_COMMA = ord(",")

Json = dict[str, Any]
ParentResolution = Literal["root", "resolved", "unresolved"]


class TokenEntry(BaseModel):
    """One generation of a rollout: the tokens of its prompt, its own tokens, and the call that it continues."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    schema_version: Literal[1] = SCHEMA_VERSION
    rollout_id: str
    model_call_id: str
    model: str = ""
    prompt_token_ids: TokenIds
    generation_token_ids: TokenIds
    generation_log_probs: LogProbs
    routed_experts: str | list[Any] | None = None
    output_items: list[Json] = Field(default_factory=list)
    """The model's output without the token arrays."""
    token_item_index: int = 0
    """The output item that carried the token arrays."""
    created_at: float = 0.0
    response_id: str = ""
    parent_call_id: str | None = None
    cum_len: int = 0
    """Number of tokens of the complete prompt and the generation, also in a delta record."""
    digest: str = ""
    """Digest of these tokens. In the token files, only delta records have it: `read` computes the others."""
    parent_resolution: ParentResolution | None = None
    parent_resolution_reason: str = ""
    opens_context: bool = False
    """The call continues no captured call, and every earlier model text in its request is in captured calls or came
    with the task: a task with earlier turns, or a context that the agent compacted."""
    continuation_fingerprint: str = ""
    """Fingerprint of the model's part of a conversation that continues this call."""
    continuation_context_len: int = 0
    """Number of request items before the output."""
    continuation_context_digest: str = ""
    fingerprint_version: int | None = None
    prompt_is_delta: bool = False
    """`prompt_token_ids` has only the tokens after the parent's."""
    prefix_requested: bool = False
    """The request to the engine carried the parent's tokens."""
    prefix_supplied: bool = False
    """The request carried the parent's tokens, and the prompt of the engine begins with them."""
    extends_parent: bool = False
    """The prompt of the engine begins with the parent's tokens, also if the request did not carry them."""
    opening_texts: list[str] = Field(default_factory=list)
    """Fingerprints of the model's items in a request that opens a context."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.generation_token_ids) != len(self.generation_log_probs):
            raise ValueError(
                f"{len(self.generation_token_ids)} generated token ids, but {len(self.generation_log_probs)} log-probs"
            )
        if self.output_items and not 0 <= self.token_item_index < len(self.output_items):
            raise ValueError(f"token_item_index {self.token_item_index} is outside the {len(self.output_items)} items")
        if (self.parent_resolution == "resolved") != (self.parent_call_id is not None):
            raise ValueError("parent_call_id belongs to parent_resolution 'resolved'")
        if self.prompt_is_delta and self.parent_resolution != "resolved":
            raise ValueError("a delta prompt needs a resolved parent")
        return self


def token_digest(token_ids: Sequence[int]) -> str:
    """Return the SHA-256 digest of a sequence of token ids as hexadecimal text.

    Raises:
        ValueError: an id is negative or larger than 64 bits.
    """
    digest = hashlib.sha256(_DIGEST_DOMAIN)
    if len(token_ids):
        digest.update(struct.pack(">BQ", DIGEST_VERSION, len(token_ids)))
        digest.update(pack_ids(token_ids))
    return digest.hexdigest()


def pack_ids(token_ids: Sequence[int]) -> bytes:
    """Return token ids as big-endian 64-bit numbers; raise ValueError for an id that is negative or too large."""
    try:
        numbers = array("Q", token_ids)
    except (OverflowError, TypeError) as error:
        raise ValueError(f"a token id is not a whole number from 0 to 2**64 - 1: {error}") from None
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers.tobytes()


class TokenText(Sequence[int]):
    """Token ids as the text that a JSON array of them has, without brackets.

    A record is written from this text, and two sequences are compared by it, so that the ids are converted once. It
    takes a fifth of the memory of a list, and the garbage collector has nothing to visit.
    """

    __slots__ = ("_length", "data")

    def __init__(self, data: bytes, length: int) -> None:
        self.data = data
        self._length = length

    @classmethod
    def of(cls, token_ids: Sequence[int]) -> "TokenText":
        """Convert token ids.

        Each JSON value but a whole number from 0 has one of the marks `- . e l " [ {`: `-1`, `0.5`, `1e16`, `true`,
        `null`, a text, a container. Searching for them takes a third of the time of a test of every character.

        Raises:
            ValueError: a value is not a whole number from 0.
        """
        if isinstance(token_ids, cls):
            return token_ids
        try:
            text = orjson.dumps(token_ids)
        except TypeError as error:
            raise ValueError(f"the token ids are not numbers: {error}") from None
        data = text[1:-1]
        is_list = text.startswith(b"[")
        if not is_list or b"-" in data or b"." in data or b"e" in data or b"l" in data or _has_other_marks(data):
            raise ValueError("a token id is not a whole number from 0 to 2**64 - 1")
        return cls(data, len(token_ids))

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        return self.tolist()[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self.tolist())

    def __add__(self, other: "TokenText") -> "TokenText":
        if not self._length or not other._length:
            return other if other._length else self
        return TokenText(b"%b,%b" % (self.data, other.data), self._length + other._length)

    def startswith(self, prefix: "TokenText") -> bool:
        """Return whether the sequence begins with the tokens of `prefix`."""
        if not prefix._length or self._length <= prefix._length:
            return not prefix._length or self.data == prefix.data
        return self.data.startswith(prefix.data) and self.data[len(prefix.data)] == _COMMA

    @property
    def json(self) -> orjson.Fragment:
        """The JSON array, for `orjson.dumps`."""
        return orjson.Fragment(b"[%b]" % self.data)

    def tolist(self) -> list[int]:
        ids: list[int] = orjson.loads(b"[%b]" % self.data)
        return ids


def _has_other_marks(data: bytes) -> bool:
    return b'"' in data or b"[" in data or b"{" in data


class TokenFields(NamedTuple):
    """The token fields of one answer."""

    prompt_token_ids: list[int]
    generation_token_ids: list[int]
    generation_log_probs: list[float]
    routed_experts: Any = None


class ModelOutput(NamedTuple):
    """The output of one answer: its items without token arrays, and the token fields of one of them."""

    items: list[Json]
    token_index: int
    """The item that carried the token fields; 0 without token fields."""
    fields: TokenFields | None


def response_to_output_items(payload: Mapping[str, Any]) -> list[Json]:
    """Return the output of a Responses, Chat or Messages payload as a list of items.

    A chat message is one item. Thinking blocks of Messages become reasoning items.

    Raises:
        ValueError: the payload is none of the three, or has more than one choice.
    """
    if isinstance(payload.get("output"), list):
        return [_as_object(item) for item in payload["output"]]
    choices = payload.get("choices")
    if isinstance(choices, list):
        if len(choices) != 1:
            raise ValueError(f"the answer has {len(choices)} choices; capture needs one")
        return [_as_object(_as_object(choices[0]).get("message"))]
    if isinstance(payload.get("content"), list) and payload.get("role") == "assistant":
        return _items_of_message(payload["content"])
    raise ValueError("the answer is neither a response, a chat completion nor a message")


def extract_token_fields(payload: Mapping[str, Any]) -> TokenFields | None:
    """Return the token fields of an answer; None if it has none.

    Raises:
        ValueError: two items carry token fields, an item carries only some of them, or a log-prob is not finite.
    """
    return split_output(payload).fields


def split_output(payload: Mapping[str, Any]) -> ModelOutput:
    """Return the output of an answer, with its token fields apart.

    Raises:
        ValueError: the payload is no answer, or its token fields are not those of one generation.
    """
    items = response_to_output_items(payload)
    index = _carrier_index(items)
    if index is None:
        return ModelOutput(items, 0, None)
    fields = _checked_fields(items[index])
    for item in items:
        if item is items[index] or not TOKEN_METADATA_FIELDS.isdisjoint(item):
            for name in TOKEN_FIELDS:
                item.pop(name, None)
    return ModelOutput(items, index, fields)


def _checked_fields(item: Mapping[str, Any]) -> TokenFields:
    prompt, generation, log_probs, routed_experts = map(item.get, TOKEN_FIELDS)
    if prompt is None or generation is None or log_probs is None:
        missing = [name for name in REQUIRED_TOKEN_FIELDS if item.get(name) is None]
        raise ValueError(f"the answer has token fields without {', '.join(missing)}")
    fields = TokenFields(prompt, generation, log_probs, routed_experts)
    if len(fields.generation_token_ids) != len(fields.generation_log_probs):
        raise ValueError(
            f"the answer has {len(fields.generation_token_ids)} generated ids and "
            f"{len(fields.generation_log_probs)} log-probs"
        )
    try:
        is_finite = math.isfinite(math.fsum(fields.generation_log_probs))
    except (TypeError, ValueError, OverflowError):
        is_finite = False
    if not is_finite:
        raise ValueError("a log-prob of the answer is not a finite number")
    return fields


def is_too_long(answer: Mapping[str, Any]) -> bool:
    """Return whether a Responses or Chat answer is empty because its prompt left no space for a generation."""
    details = answer.get("incomplete_details")
    which = details.get("which") if isinstance(details, Mapping) else getattr(details, "which", None)
    choices = answer.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
        which = choices[0].get("stop_reason")
    return bool(which == CONTEXT_LENGTH)


def strip_token_fields(items: Sequence[Mapping[str, Any]]) -> tuple[list[Json], int]:
    """Return the items without token arrays, and the index of the item that carried them (0 without one)."""
    index = _carrier_index(items)
    return [{name: value for name, value in item.items() if name not in TOKEN_FIELDS} for item in items], index or 0


def _carrier_index(items: Sequence[Mapping[str, Any]]) -> int | None:
    carriers = [
        index
        for index, item in enumerate(items)
        if not TOKEN_METADATA_FIELDS.isdisjoint(item) and has_token_fields(item)
    ]
    if len(carriers) > 1:
        raise ValueError(f"{len(carriers)} items of one answer carry token fields")
    return carriers[0] if carriers else None


def _as_object(value: Any) -> Json:
    if type(value) is dict:
        return value.copy()
    if isinstance(value, Mapping):
        return dict(value)
    raise ValueError(f"an output item must be an object, not {type(value).__name__}")


def _items_of_message(blocks: list[Any]) -> list[Json]:
    """Return the content of a Messages answer as items."""
    items: list[Json] = []
    for block in map(_as_object, blocks):
        kind = block.get("type")
        if kind in ("thinking", "redacted_thinking"):
            summary = [{"type": "summary_text", "text": block["thinking"]}] if block.get("thinking") else []
            items.append({"type": "reasoning", "summary": summary})
        elif kind == "tool_use":
            call = {"type": "function_call", "call_id": block.get("id"), "name": block.get("name")}
            items.append({**call, "arguments": block.get("input")})
        else:
            part = {"type": "output_text", "text": block["text"]} if kind == "text" else block
            items.append({"type": "message", "role": "assistant", "content": [part]})
    return items
