"""Lineage: the captured call that a request continues, found by the fingerprint of its conversation.

A resolver answers for one rollout at a time. `InMemoryLineageStore` serves one process; the stores of `lineage_files`
read what other processes wrote.
"""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, runtime_checkable

from nemo_gym.token_id_capture.fingerprint import (
    FINGERPRINT_VERSION,
    assistant_fingerprint,
    conversation_digest,
    text_fingerprints,
)
from nemo_gym.token_id_capture.records import TokenEntry, TokenText, token_digest

MAX_ROLLOUTS = 512
MAX_TOKENS = 8_000_000


class ParentResolutionStatus(StrEnum):
    """Whether a request continues a captured call."""

    ROOT = "root"
    RESOLVED = "resolved"
    UNRESOLVED = "unresolved"


class UnresolvedReason(StrEnum):
    """Why the call that a request continues is unknown."""

    NO_MATCH = "no_match"
    AMBIGUOUS = "ambiguous"
    RESOLVER_UNAVAILABLE = "resolver_unavailable"
    LOOKUP_ERROR = "lookup_error"
    NOT_ATTEMPTED = "not_attempted"


class TurnSpan(NamedTuple):
    """The generated tokens of one call, as a part of the tokens of a conversation."""

    start: int
    end: int
    is_closed: bool = False
    """The last token ends the turn, even if the chat template would write another token."""


@dataclass(frozen=True, slots=True)
class LineageMatch:
    """The call that a request continues."""

    model_call_id: str
    cumulative_token_ids: Sequence[int] = ()
    digest: str = ""
    staging_chain: tuple[str, ...] = ()
    """Staging keys from the first call to this one, if a worker keeps the tokens."""
    prev_len: int = 0
    chain_hash: str | None = None
    generation_log_probs: Sequence[float] = ()
    """Log-probs of the call itself; its generated ids are the last ones of `cumulative_token_ids`."""
    turns: tuple[TurnSpan, ...] = ()
    """Where this call and the calls that it continues generated `cumulative_token_ids`, oldest first."""


@dataclass(frozen=True, slots=True)
class LineageResolution:
    """The answer of a resolver."""

    status: ParentResolutionStatus
    match: LineageMatch | None = None
    reason: str = ""
    opens_context: bool = False
    """The request continues no call and contains no model text of unknown origin (`TokenEntry.opens_context`)."""


ROOT = LineageResolution(ParentResolutionStatus.ROOT)
_RESOLVED = LineageResolution(ParentResolutionStatus.RESOLVED)


def unresolved_because(reason: UnresolvedReason, *, opens_context: bool = False) -> LineageResolution:
    """Build the answer for a request whose earlier call is unknown."""
    return LineageResolution(ParentResolutionStatus.UNRESOLVED, reason=reason, opens_context=opens_context)


@runtime_checkable
class LineageResolver(Protocol):
    """Finds the call that a request continues."""

    async def resolve(self, rollout_id: str, request_items: Sequence[Mapping[str, Any]]) -> LineageResolution: ...

    def is_process_shared(self) -> bool:
        """Return whether the resolver sees the calls that other processes stored."""
        ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class LineageEntry:
    """The part of a record that resolution needs, without its tokens."""

    model_call_id: str
    fingerprint: str
    context_len: int
    context_digest: str
    digest: str
    """Digest of the tokens; empty if this process stored the call and no other call has its conversation."""
    cum_len: int
    parent_call_id: str | None = None
    text_fingerprints: frozenset[str] = frozenset()
    """Fingerprint of each item that the model wrote in this call, or that came with a request that opens a context."""
    ref: Any = None
    """Where a store finds the tokens."""
    generated_len: int = 0
    """Number of tokens that the call generated; the last ones of its `cum_len` tokens."""
    extends_parent: bool = False
    """The prompt begins with the tokens of the parent."""
    is_closed: bool = False
    """The last token ends the turn."""

    @classmethod
    def of(cls, entry: TokenEntry, ref: Any = None) -> "LineageEntry":
        return cls(
            model_call_id=entry.model_call_id,
            fingerprint=entry.continuation_fingerprint if entry.fingerprint_version == FINGERPRINT_VERSION else "",
            context_len=entry.continuation_context_len,
            context_digest=entry.continuation_context_digest,
            digest=entry.digest or token_digest([*entry.prompt_token_ids, *entry.generation_token_ids]),
            cum_len=entry.cum_len,
            parent_call_id=entry.parent_call_id,
            text_fingerprints=frozenset([*text_fingerprints(entry.output_items), *entry.opening_texts]),
            ref=ref,
            generated_len=len(entry.generation_token_ids),
            extends_parent=entry.extends_parent or entry.prompt_is_delta,
            is_closed=is_turn_closed(entry.output_items[entry.token_item_index] if entry.output_items else {}),
        )

    @property
    def _identity(self) -> tuple[Any, ...]:
        return (self.fingerprint, self.context_digest, self.digest, self.cum_len, self.parent_call_id)


def opening_texts(request_items: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the fingerprints of the model's items in a request that opens a context."""
    return sorted(set(text_fingerprints(request_items)) - {""})


def is_turn_closed(item: Mapping[str, Any]) -> bool:
    """Return whether the last token of an answer ends its turn; after a length limit or a stop string it does not."""
    is_ended = item.get("finish_reason") in ("stop", "tool_calls")
    return is_ended and not isinstance(item.get("stop_reason"), str)


@dataclass
class RolloutLineage:
    """The calls of one rollout, by fingerprint."""

    entries: dict[str, LineageEntry] = field(default_factory=dict)
    by_fingerprint: dict[str, list[str]] = field(default_factory=dict)
    texts: set[str] = field(default_factory=set)
    last_spans: tuple[str, tuple[TurnSpan, ...]] = ("", ())
    """The call whose turns were computed last, and these turns: the next request mostly continues it."""

    def add(self, entry: LineageEntry) -> None:
        """Add a call; the same call again has no effect.

        Raises:
            ValueError: the call id is in use for another call.
        """
        earlier = self.entries.get(entry.model_call_id)
        if earlier is not None:
            if earlier._identity != entry._identity:
                raise ValueError(f"the model call id {entry.model_call_id!r} is used for two different calls")
            return
        self.entries[entry.model_call_id] = entry
        self.texts |= entry.text_fingerprints
        if entry.fingerprint:
            self.by_fingerprint.setdefault(entry.fingerprint, []).append(entry.model_call_id)

    def distinguish(self, entry: LineageEntry, tokens_of: Callable[[str], "CachedCall | None"]) -> None:
        """Compute the digests of a new call and of calls with the same conversation, to see if their tokens differ."""
        siblings = [self.entries[call_id] for call_id in self.by_fingerprint.get(entry.fingerprint) or ()]
        if not siblings or entry.model_call_id in self.entries:
            return
        for each in (entry, *siblings):
            call = tokens_of(each.model_call_id) if not each.digest else None
            if call is not None:
                each.digest = token_digest(call.tokens)

    def resolve(self, request_items: Sequence[Mapping[str, Any]]) -> tuple[LineageResolution, LineageEntry | None]:
        """Return the resolution of a request, without tokens, and the entry of the call that it continues."""
        fingerprint = assistant_fingerprint(request_items)
        if not fingerprint:
            return ROOT, None
        digests: dict[int, str] = {}
        candidates: list[LineageEntry] = []
        for call_id in self.by_fingerprint.get(fingerprint, ()):
            entry = self.entries[call_id]
            length = entry.context_len
            if length <= len(request_items):
                digest = digests.get(length) or digests.setdefault(length, conversation_digest(request_items, length))
                if digest == entry.context_digest:
                    candidates.append(entry)
        if not candidates:
            opens_context = not self.entries or self.texts.issuperset(opening_texts(request_items))
            return unresolved_because(UnresolvedReason.NO_MATCH, opens_context=opens_context), None
        if len(candidates) == 1:
            return _RESOLVED, candidates[0]
        longest = max(
            entry.context_len for entry in candidates
        )  # a call without text has the fingerprint of its parent
        candidates = [entry for entry in candidates if entry.context_len == longest]
        if len({(entry.digest, entry.cum_len) for entry in candidates}) > 1:
            return unresolved_because(UnresolvedReason.AMBIGUOUS), None
        return _RESOLVED, min(candidates, key=lambda entry: entry.model_call_id)

    def turn_spans(self, entry: LineageEntry) -> tuple[TurnSpan, ...]:
        """Return the generated parts of a call's tokens: its own, and of the calls that it continues token by token."""
        chain: list[LineageEntry] = [entry]
        earlier: tuple[TurnSpan, ...] = ()
        while (link := chain[-1]).extends_parent and len(chain) <= len(self.entries):  # ends in a cycle of parents too
            if link.parent_call_id == self.last_spans[0]:
                earlier = self.last_spans[1]
                break
            parent = self.entries.get(link.parent_call_id or "")
            if parent is None:
                break
            chain.append(parent)
        is_whole = bool(earlier) or not chain[-1].extends_parent
        links = [link for link in reversed(chain) if link.generated_len]
        own = [TurnSpan(link.cum_len - link.generated_len, link.cum_len, link.is_closed) for link in links]
        spans = (*earlier, *own)
        if is_whole:
            self.last_spans = entry.model_call_id, spans
        return spans


@dataclass(slots=True)
class CachedCall:
    """The complete tokens of one call."""

    tokens: TokenText
    generation_log_probs: "array[float]"
    is_verified: bool = False
    """The digest was checked, or the call was stored by this process."""

    @classmethod
    def of(cls, tokens: Sequence[int], log_probs: Sequence[float]) -> "CachedCall":
        return cls(TokenText.of(tokens), array("d", log_probs))

    def __len__(self) -> int:
        return len(self.tokens)


def resolved_match(entry: LineageEntry, call: CachedCall, lineage: RolloutLineage) -> LineageResolution:
    """Return the resolution that names a call with its tokens; a lookup error if the tokens have another digest."""
    if not call.is_verified:
        if len(call) != entry.cum_len or (entry.digest and token_digest(call.tokens) != entry.digest):
            return unresolved_because(UnresolvedReason.LOOKUP_ERROR)
        call.is_verified = True
    match = LineageMatch(
        entry.model_call_id,
        call.tokens,
        entry.digest,
        prev_len=entry.cum_len,
        generation_log_probs=call.generation_log_probs,
        turns=lineage.turn_spans(entry),
    )
    return LineageResolution(ParentResolutionStatus.RESOLVED, match)


class InMemoryLineageStore:
    """Keeps the calls of recent rollouts in this process. The oldest rollouts are evicted, and their calls unresolved.

    The capture puts every stored record into it (`observe`).
    """

    def __init__(self, max_rollouts: int = MAX_ROLLOUTS, max_tokens: int = MAX_TOKENS) -> None:
        self._max_rollouts = max_rollouts
        self._max_tokens = max_tokens
        self._rollouts: OrderedDict[str, tuple[RolloutLineage, dict[str, CachedCall]]] = OrderedDict()
        self._tokens = 0

    def is_process_shared(self) -> bool:
        return False

    async def close(self) -> None:
        self._rollouts.clear()
        self._tokens = 0

    def observe(self, rollout_id: str, entry: LineageEntry, call: CachedCall) -> None:
        """Add a stored call with its tokens; evict the oldest rollouts if there are too many."""
        lineage, calls = self._rollouts.setdefault(rollout_id, (RolloutLineage(), {}))
        self._rollouts.move_to_end(rollout_id)
        if entry.model_call_id not in calls:
            calls[entry.model_call_id] = call
            self._tokens += len(call)
        lineage.distinguish(entry, calls.get)
        lineage.add(entry)
        while len(self._rollouts) > 1 and (len(self._rollouts) > self._max_rollouts or self._tokens > self._max_tokens):
            _, (_, evicted) = self._rollouts.popitem(last=False)
            self._tokens -= sum(map(len, evicted.values()))

    async def resolve(self, rollout_id: str, request_items: Sequence[Mapping[str, Any]]) -> LineageResolution:
        lineage, calls = self._rollouts.get(rollout_id, (RolloutLineage(), {}))
        resolution, entry = lineage.resolve(request_items)
        return resolution if entry is None else resolved_match(entry, calls[entry.model_call_id], lineage)


_resolutions: Counter[str] = Counter()
_failures: Counter[str] = Counter()


def count_resolution(status: ParentResolutionStatus) -> None:
    """Count a resolution of this process."""
    _resolutions[status] += 1


def count_capture_failure() -> None:
    """Count a call of this process that could not be captured."""
    _failures["capture"] += 1


def capture_health_snapshot() -> dict[str, Any]:
    """Return the numbers of resolutions and of failed captures in this process."""
    return {
        "resolutions": {str(status): _resolutions[status] for status in ParentResolutionStatus},
        "capture_failures": _failures["capture"],
    }


def __getattr__(name: str) -> Any:
    """Offer the stores of `lineage_files` here too, where other code imports them."""
    if name not in ("CursorReset", "FileLineageStore", "IncrementalLineageStore"):  # an import asks for `__path__`
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from nemo_gym.token_id_capture import lineage_files  # a module-level import would be a cycle

    return getattr(lineage_files, name)
