"""Verify the staged calls of a rollout against its receipt, and join them to one row of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from nemo_gym.errors import GymError
from nemo_gym.token_id_capture.staging import digests
from nemo_gym.token_id_capture.staging.records import CallRecord, RolloutReceipt, StagedCallBaseSnapshot

_SAME_FIELDS = (
    "rollout_id", "model_call_id", "parent_call_id", "mode", "prev_len", "delta_len", "cum_len", "weight_version",
    "extras_digest", "chain_hash", "cumulative_hash", "digest",
)  # fmt: skip


class ReceiptVerificationError(GymError, ValueError):
    """The staged calls of a rollout do not agree with its receipt; `code` names the first disagreement."""

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(f"{code}: {detail}" if detail else code)
        self.reason = code


class RebuildError(ReceiptVerificationError):
    """The staged calls agree with the receipt, but give no row to train on."""


@dataclass(frozen=True)
class LinearizedRow:
    """The tokens of the calls up to the terminal one."""

    rollout_id: str
    token_ids: list[int]
    token_mask: list[float]
    logprobs: list[float]
    model_call_ids: list[str]
    prompt_len: int
    weight_versions: list[int]
    """The version of each call."""
    weight_version_spans: list[tuple[int, int, int]]
    """Begin, end and version of each run of generated tokens."""
    link_spans: list[tuple[int, int]]
    """Begin and end of each call's delta."""
    extras_commitments: list[str] = field(default_factory=list)


def verify_and_linearize(receipt: RolloutReceipt, snapshots: Sequence[StagedCallBaseSnapshot]) -> LinearizedRow:
    """Return the row of a rollout; `snapshots` are in the order of the receipt's manifest.

    Raises:
        ReceiptVerificationError: a staged call does not agree with the receipt.
        RebuildError: the rollout has nothing to train on.
    """
    _check_receipt(receipt, snapshots)
    by_id: dict[str, StagedCallBaseSnapshot] = {}
    for record, snapshot in zip(receipt.manifest, snapshots, strict=True):
        _check_snapshot(record, snapshot)
        by_id[record.model_call_id] = snapshot
    chain = _terminal_chain(receipt, by_id)
    _check_hashes(chain)
    return _join(receipt.rollout_id, chain)


def _check_receipt(receipt: RolloutReceipt, snapshots: Sequence[StagedCallBaseSnapshot]) -> None:
    if receipt.failure_reason:
        raise ReceiptVerificationError("rollout_failed", receipt.failure_reason)
    if receipt.capture_poisoned:
        raise ReceiptVerificationError("capture_poisoned", receipt.terminal_attribution_reason or "")
    if not receipt.manifest:
        raise ReceiptVerificationError("empty_manifest")
    if len(receipt.manifest) != len(snapshots):
        raise ReceiptVerificationError(
            "row_count_mismatch", f"{len(receipt.manifest)} rows, {len(snapshots)} staged calls"
        )
    for name in ("model_call_id", "staging_key"):
        values = [getattr(record, name) for record in receipt.manifest]
        if len(set(values)) != len(values):
            raise ReceiptVerificationError(f"duplicate_{name}")


def _check_snapshot(record: CallRecord, snapshot: StagedCallBaseSnapshot) -> None:
    for name in ("schema_version", "digest_version", "extras_digest_version"):
        if getattr(snapshot, name) != getattr(record, name):
            raise ReceiptVerificationError(f"unsupported_{name}", snapshot.model_call_id)
    if snapshot.recompute_digest() != snapshot.digest:
        raise ReceiptVerificationError("corrupt_digest", record.model_call_id)
    for name in _SAME_FIELDS:
        if getattr(snapshot, name) != getattr(record, name):
            raise ReceiptVerificationError(f"snapshot_{name}_mismatch", record.model_call_id)


def _terminal_chain(receipt: RolloutReceipt, by_id: dict[str, StagedCallBaseSnapshot]) -> list[StagedCallBaseSnapshot]:
    """Return the calls from the root to the terminal one."""
    call = by_id.get(receipt.terminal_model_call_id or "")
    if call is None:
        raise ReceiptVerificationError("missing_terminal", str(receipt.terminal_model_call_id))
    chain = [call]
    while call.parent_call_id is not None:
        parent = by_id.get(call.parent_call_id)
        if parent is None:
            raise ReceiptVerificationError("missing_parent", call.parent_call_id)
        if parent in chain:
            raise ReceiptVerificationError("lineage_cycle", parent.model_call_id)
        if parent.cum_len != call.prev_len:
            raise ReceiptVerificationError("parent_length_mismatch", call.model_call_id)
        chain.append(parent)
        call = parent
    if call.prev_len:
        raise ReceiptVerificationError("parent_length_mismatch", call.model_call_id)
    return chain[::-1]


def _check_hashes(chain: list[StagedCallBaseSnapshot]) -> None:
    tokens: list[int] = []
    parent_hash: str | None = None
    for call in chain:
        tokens += call.token_ids_delta
        if digests.chain_hash(parent_hash, call.token_ids_delta) != call.chain_hash:
            raise ReceiptVerificationError("chain_hash_mismatch", call.model_call_id)
        if digests.cumulative_hash(tokens) != call.cumulative_hash:
            raise ReceiptVerificationError("cumulative_hash_mismatch", call.model_call_id)
        parent_hash = call.chain_hash


def _join(rollout_id: str, chain: list[StagedCallBaseSnapshot]) -> LinearizedRow:
    tokens: list[int] = []
    mask: list[float] = []
    logprobs: list[float] = []
    links: list[tuple[int, int]] = []
    versions: list[tuple[int, int, int]] = []
    for call in chain:
        generated = sum(value == 1.0 for value in call.token_mask_delta)
        if not generated:
            raise RebuildError("empty_generation", call.model_call_id)
        if list(call.token_mask_delta) != sorted(call.token_mask_delta):
            raise RebuildError("invalid_mask_order", call.model_call_id)
        begin = len(tokens)
        tokens += call.token_ids_delta
        mask += call.token_mask_delta
        logprobs += call.generation_log_probs_delta
        links.append((begin, len(tokens)))
        versions.append((len(tokens) - generated, len(tokens), call.weight_version))
    if not any(mask):
        raise RebuildError("empty_training_row", rollout_id)
    return LinearizedRow(
        rollout_id,
        tokens,
        mask,
        logprobs,
        [call.model_call_id for call in chain],
        versions[0][0],
        [call.weight_version for call in chain],
        versions,
        links,
        [call.extras_digest for call in chain],
    )
