"""Lineage: the captured call that a request continues, found by the fingerprint of its conversation.

A resolver answers for one rollout at a time. `InMemoryLineageStore` serves one process; the stores of `lineage_files`
read what other processes wrote.
"""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from nemo_gym.token_id_capture.fingerprint import (
    FINGERPRINT_VERSION,
    assistant_fingerprint,
    conversation_digest,
    is_model_authored,
)
from nemo_gym.token_id_capture.records import PackedTokens, TokenEntry, digest_of_packed, pack_ids

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


@dataclass(frozen=True, slots=True)
class LineageResolution:
    """The answer of a resolver."""

    status: ParentResolutionStatus
    match: LineageMatch | None = None
    reason: str = ""
    opens_context: bool = False
    """The request continues no call and contains no model text of unknown origin (`TokenEntry.opens_context`)."""


ROOT = LineageResolution(ParentResolutionStatus.ROOT)


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


@dataclass(frozen=True, slots=True)
class LineageEntry:
    """The part of a record that resolution needs, without its tokens."""

    model_call_id: str
    fingerprint: str
    context_len: int
    context_digest: str
    digest: str
    cum_len: int
    parent_call_id: str | None = None
    text_fingerprints: frozenset[str] = frozenset()
    """Fingerprint of each item that the model wrote in this call, or that came with a request that opens a context."""
    ref: Any = None
    """Where a store finds the tokens."""

    @classmethod
    def of(cls, entry: TokenEntry, ref: Any = None) -> "LineageEntry":
        return cls(
            model_call_id=entry.model_call_id,
            fingerprint=entry.continuation_fingerprint if entry.fingerprint_version == FINGERPRINT_VERSION else "",
            context_len=entry.continuation_context_len,
            context_digest=entry.continuation_context_digest,
            digest=entry.digest,
            cum_len=entry.cum_len,
            parent_call_id=entry.parent_call_id,
            text_fingerprints=frozenset([*map(_text_fingerprint, entry.output_items), *entry.opening_texts]),
            ref=ref,
        )

    @property
    def _identity(self) -> tuple[Any, ...]:
        return (self.fingerprint, self.context_digest, self.digest, self.cum_len, self.parent_call_id)


def opening_texts(request_items: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the fingerprints of the model's items in a request that opens a context."""
    return sorted({_text_fingerprint(item) for item in request_items if is_model_authored(item)})


def _text_fingerprint(item: Mapping[str, Any]) -> str:
    return assistant_fingerprint([item])


@dataclass
class RolloutLineage:
    """The calls of one rollout, by fingerprint."""

    entries: dict[str, LineageEntry] = field(default_factory=dict)
    by_fingerprint: dict[str, list[str]] = field(default_factory=dict)
    texts: set[str] = field(default_factory=set)

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

    def resolve(self, request_items: Sequence[Mapping[str, Any]]) -> tuple[LineageResolution, LineageEntry | None]:
        """Return the resolution of a request, without tokens, and the entry of the call that it continues."""
        fingerprint = assistant_fingerprint(request_items)
        if not fingerprint:
            return ROOT, None
        digests: dict[int, str] = {}
        candidates: list[LineageEntry] = []
        for call_id in self.by_fingerprint.get(fingerprint, ()):
            entry = self.entries[call_id]
            if entry.context_len > len(request_items):
                continue
            if entry.context_len not in digests:
                digests[entry.context_len] = conversation_digest(request_items, entry.context_len)
            if digests[entry.context_len] == entry.context_digest:
                candidates.append(entry)
        if not candidates:
            opens_context = not self.entries or self.texts.issuperset(opening_texts(request_items))
            return unresolved_because(UnresolvedReason.NO_MATCH, opens_context=opens_context), None
        longest = max(
            entry.context_len for entry in candidates
        )  # a call without text has the fingerprint of its parent
        candidates = [entry for entry in candidates if entry.context_len == longest]
        if len({(entry.digest, entry.cum_len) for entry in candidates}) > 1:
            return unresolved_because(UnresolvedReason.AMBIGUOUS), None
        match = min(candidates, key=lambda entry: entry.model_call_id)
        return LineageResolution(ParentResolutionStatus.RESOLVED), match


@dataclass
class CachedCall:
    """The complete tokens of one call."""

    tokens: PackedTokens
    generation_log_probs: "array[float]"
    is_verified: bool = False
    """The digest was checked, or the call was stored by this process."""

    @classmethod
    def of(cls, tokens: Sequence[int], log_probs: Sequence[float]) -> "CachedCall":
        return cls(PackedTokens(pack_ids(tokens)), array("d", log_probs))

    def __len__(self) -> int:
        return len(self.tokens)


def resolved_match(entry: LineageEntry, call: CachedCall) -> LineageResolution:
    """Return the resolution that names a call with its tokens; a lookup error if the tokens have another digest."""
    if not call.is_verified:
        if len(call) != entry.cum_len or digest_of_packed(call.tokens.data) != entry.digest:
            return unresolved_because(UnresolvedReason.LOOKUP_ERROR)
        call.is_verified = True
    match = LineageMatch(
        entry.model_call_id,
        call.tokens,
        entry.digest,
        prev_len=entry.cum_len,
        generation_log_probs=call.generation_log_probs,
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

    def observe(self, entry: TokenEntry, ref: Any = None, call: CachedCall | None = None) -> None:  # noqa: ARG002
        """Add a stored call with its tokens; evict the oldest rollouts if there are too many."""
        lineage, calls = self._rollouts.setdefault(entry.rollout_id, (RolloutLineage(), {}))
        self._rollouts.move_to_end(entry.rollout_id)
        if entry.model_call_id not in calls:
            parent = calls.get(entry.parent_call_id or "") if entry.prompt_is_delta else None
            prefix = parent.tokens.tolist() if parent is not None else []
            ids = [*prefix, *entry.prompt_token_ids, *entry.generation_token_ids]
            calls[entry.model_call_id] = CachedCall.of(ids, entry.generation_log_probs)
            self._tokens += len(ids)
        lineage.add(LineageEntry.of(entry))
        while len(self._rollouts) > 1 and (len(self._rollouts) > self._max_rollouts or self._tokens > self._max_tokens):
            _, (_, evicted) = self._rollouts.popitem(last=False)
            self._tokens -= sum(map(len, evicted.values()))

    async def resolve(self, rollout_id: str, request_items: Sequence[Mapping[str, Any]]) -> LineageResolution:
        lineage, calls = self._rollouts.get(rollout_id, (RolloutLineage(), {}))
        resolution, entry = lineage.resolve(request_items)
        return resolution if entry is None else resolved_match(entry, calls[entry.model_call_id])


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
    from nemo_gym.token_id_capture import lineage_files  # a module-level import would be a cycle

    if name in ("CursorReset", "FileLineageStore", "IncrementalLineageStore"):
        return getattr(lineage_files, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
