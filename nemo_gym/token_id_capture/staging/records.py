"""The wire models of external staging, and the protocols of its parts.

A worker keeps the tokens of its calls and returns coordinates; a ledger at the model server keeps a row for each call;
the framework verifies the staged calls against the rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, Self, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nemo_gym.token_id_capture.fingerprint import FINGERPRINT_VERSION
from nemo_gym.token_id_capture.lineage import LineageResolver
from nemo_gym.token_id_capture.staging import digests
from nemo_gym.wire.base import LogProbs, TokenIds

NG_CAPTURE_FIELD = "ng_capture"
NG_COMMIT_COORDS_FIELD = "ng_commit_coords"

UNRESOLVED_PARENT_REASON = "unresolved_parent"
UNCOMMITTED_CALL_REASON = "request_finished_without_staged_coordinates"
WORKER_MISSING_COMMIT_COORDS_REASON = "worker_response_missing_commit_coordinates"
WORKER_CAPTURE_FAILED_REASON = "worker_capture_failed"
INVALID_COMMIT_COORDS_REASON = "invalid_worker_commit_coordinates"
MISSING_RESPONSE_ID_REASON = "ledger_row_missing_response_id"
MISSING_CHAIN_HASH_REASON = "ledger_row_missing_chain_hash"

CaptureMode = Literal["token_in", "text"]
TerminalSelection = Literal["declared", "response_id", "content", "heuristic"]


def staging_key(rollout_id: str, model_call_id: str) -> str:
    """Return the default key under which a worker stores a call."""
    return f"{rollout_id}/{model_call_id}"


class StagingModel(BaseModel):
    """Base class of the wire models: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    schema_version: Literal[2] = 2


class CaptureAdmission(StagingModel):
    """The permission for one captured call, sent to the worker with its request."""

    rollout_id: str
    model_call_id: str
    parent_call_id: str | None = None
    prev_len: int = Field(default=0, ge=0)
    mode: CaptureMode
    required_prefix_token_ids: TokenIds = []
    staging_chain: list[str] = []
    parent_chain_hash: str | None = None

    @model_validator(mode="after")
    def _check_mode(self) -> Self:
        links = (self.parent_call_id, self.prev_len, self.parent_chain_hash)
        if self.mode == "text":
            if any(links) or self.required_prefix_token_ids or self.staging_chain:
                raise ValueError("a call in mode text has no parent, prefix or staging chain")
            return self
        if not all(links):
            raise ValueError("a call in mode token_in needs parent_call_id, prev_len and parent_chain_hash")
        if self.required_prefix_token_ids and len(self.required_prefix_token_ids) != self.prev_len:
            raise ValueError(f"the inline prefix has {len(self.required_prefix_token_ids)} tokens, not {self.prev_len}")
        if not self.staging_chain and not self.required_prefix_token_ids:
            raise ValueError("a call in mode token_in needs a staging chain or an inline prefix")
        return self


class StagedCallIdentity(StagingModel):
    """The fields with which every record of a staged call begins."""

    digest_version: Literal[2] = 2
    extras_digest_version: Literal[1] = 1
    rollout_id: str
    model_call_id: str
    parent_call_id: str | None = None


class StagedCallBaseSnapshot(StagedCallIdentity):
    """A staged call without its extras. The digest is computed again when it is read."""

    mode: CaptureMode
    prev_len: int = Field(ge=0)
    delta_len: int = Field(gt=0)
    cum_len: int
    weight_version: int = Field(ge=0)
    digest: str
    token_ids_delta: TokenIds
    token_mask_delta: LogProbs
    generation_log_probs_delta: LogProbs
    extras_digest: str
    chain_hash: str
    cumulative_hash: str

    @model_validator(mode="after")
    def _check(self) -> Self:
        lengths = {len(self.token_ids_delta), len(self.token_mask_delta), len(self.generation_log_probs_delta)}
        if lengths != {self.delta_len} or self.cum_len != self.prev_len + self.delta_len:
            raise ValueError("the lengths of the delta do not agree")
        if not {float(value) for value in self.token_mask_delta} <= {0.0, 1.0}:
            raise ValueError("a mask value is neither 0.0 nor 1.0")
        if self.recompute_digest() != self.digest:
            raise ValueError("corrupt_digest: the digest is not that of the call")
        return self

    def recompute_digest(self) -> str:
        """Return the digest of the fields."""
        fields = (
            "rollout_id", "model_call_id", "parent_call_id", "mode", "prev_len", "delta_len", "cum_len",
            "weight_version", "token_ids_delta", "token_mask_delta", "generation_log_probs_delta", "extras_digest",
            "chain_hash", "cumulative_hash",
        )  # fmt: skip
        return digests.call_digest(**{name: getattr(self, name) for name in fields})


class StagedCallRecord(StagedCallBaseSnapshot):
    """A staged call as a worker gives it to its sink."""

    extras: dict[str, Any] = {}

    @model_validator(mode="after")
    def _check_extras(self) -> Self:
        if digests.extras_digest(self.extras) != self.extras_digest:
            raise ValueError("corrupt_digest: the extras digest is not that of the extras")
        return self


class StagedCallSnapshot(StagedCallRecord):
    """A staged call as a framework fetches it."""


class StageResult(StagingModel):
    """The answer of a staging sink."""

    ok: bool
    staging_key: str | None = None
    error: str | None = None


class CommitCoords(StagedCallIdentity):
    """Where a worker staged a call; returned with the answer of the model."""

    prev_len: int = Field(default=0, ge=0)
    delta_len: int = Field(default=0, ge=0)
    cum_len: int = Field(default=0, ge=0)
    weight_version: int = Field(default=0, ge=0)
    disposition: Literal["staged", "capture_failed"]
    digest: str | None = None
    extras_digest: str | None = None
    staging_key: str | None = None
    chain_hash: str | None = None
    cumulative_hash: str | None = None
    error: str | None = None

    @model_validator(mode="after")
    def _check_staged(self) -> Self:
        needed = (self.digest, self.extras_digest, self.staging_key, self.cumulative_hash)
        if self.disposition == "staged" and not (all(needed) and self.delta_len):
            raise ValueError("staged coordinates need digest, extras_digest, staging_key, cumulative_hash and a delta")
        return self


class CallRecord(StagedCallIdentity):
    """One row of the ledger."""

    mode: CaptureMode
    prev_len: int
    delta_len: int
    cum_len: int
    weight_version: int
    disposition: Literal["staged"] = "staged"
    digest: str
    extras_digest: str
    staging_key: str
    chain_hash: str
    cumulative_hash: str
    response_id: str
    admitted_at: float | None = None
    output_fingerprint: str | None = None
    continuation_fingerprint: str | None = None
    fingerprint_version: int = FINGERPRINT_VERSION


class CallFailure(StagingModel):
    """A call that is not in the ledger, and the reason."""

    model_call_id: str
    reason: str


class CaptureLedgerCommit(StagingModel):
    """A row for the ledger with what later requests are resolved by."""

    rollout_id: str
    record: CallRecord
    staging_chain: list[str]
    request_items: list[dict[str, Any]]
    response_items: list[dict[str, Any]]


class RolloutManifest(StagingModel):
    """All rows of a rollout."""

    rollout_id: str
    records: list[CallRecord] = []
    failures: list[CallFailure] = []


class RolloutReceipt(StagingModel):
    """What a framework needs to verify a rollout: its rows, the terminal call and the reward."""

    rollout_id: str
    reward: float | None = None
    terminal_model_call_id: str | None = None
    manifest: list[CallRecord] = []
    capture_poisoned: bool = False
    failure_reason: str | None = None
    terminal_selection: TerminalSelection | None = None
    terminal_attribution_reason: str | None = None

    @model_validator(mode="after")
    def _check_terminal(self) -> Self:
        is_named = self.terminal_model_call_id is not None and self.terminal_selection is not None
        if not self.capture_poisoned and (not is_named or self.terminal_attribution_reason):
            raise ValueError("a receipt that is not poisoned names a terminal call and how it was selected")
        return self


@runtime_checkable
class StagingSink(Protocol):
    """Stores staged calls at the worker. Called from several threads."""

    def stage(self, record: StagedCallRecord, *, attachments: Mapping[str, Any] | None = None) -> StageResult: ...


@runtime_checkable
class StagingSource(Protocol):
    """Reads staged calls for the framework."""

    def fetch(self, keys: Sequence[str]) -> Sequence[StagedCallSnapshot]: ...


class WeightVersionProvider(Protocol):
    """Returns the version of the weights that generate now."""

    def __call__(self) -> int: ...


@runtime_checkable
class CaptureLedger(LineageResolver, Protocol):
    """A lineage store that keeps the rows of staged calls; a row is written once."""

    async def record(self, commit: CaptureLedgerCommit) -> None: ...

    async def record_failure(self, rollout_id: str, model_call_id: str, reason: str) -> None: ...

    async def manifest(self, rollout_id: str) -> RolloutManifest: ...

    async def has_rows(self, rollout_id: str) -> bool: ...
