"""Ledger rows on disk, `<rollout id>.lineage.jsonl`: the staged calls of a rollout and those that have no row."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.capture.store import file_lock, safe_file_name
from nemo_gym.token_id_capture.fingerprint import conversation_digest
from nemo_gym.token_id_capture.lineage import (
    LineageEntry,
    LineageMatch,
    LineageResolution,
    ParentResolutionStatus,
    RolloutLineage,
)
from nemo_gym.token_id_capture.staging.records import CallFailure, CallRecord, CaptureLedgerCommit, RolloutManifest


class LedgerFiles:
    """A `CaptureLedger` over the files in one folder. Rows are small, so they are read again for each request."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def path_for(self, rollout_id: str) -> Path:
        return self.root / f"{safe_file_name(rollout_id)}.lineage.jsonl"

    async def record(self, commit: CaptureLedgerCommit) -> None:
        """Write the row of a call. Writing the same row again has no effect.

        Raises:
            ValueError: a different row is stored for the call.
        """
        row = {
            "record": commit.record.model_dump(mode="json"),
            "staging_chain": commit.staging_chain,
            "context_len": len(commit.request_items),
            "context_digest": conversation_digest(commit.request_items),
        }
        self._append(commit.rollout_id, row, commit.record.model_call_id)

    async def record_failure(self, rollout_id: str, model_call_id: str, reason: str) -> None:
        """Write that a call has no row."""
        self._append(rollout_id, {"failure": {"model_call_id": model_call_id, "reason": reason}})

    async def manifest(self, rollout_id: str) -> RolloutManifest:
        rows = self._rows(rollout_id)
        return RolloutManifest(
            rollout_id=rollout_id,
            records=[CallRecord.model_validate(row["record"]) for row in rows if "record" in row],
            failures=[CallFailure.model_validate(row["failure"]) for row in rows if "failure" in row],
        )

    async def has_rows(self, rollout_id: str) -> bool:
        return any("record" in row for row in self._rows(rollout_id))

    async def resolve(self, rollout_id: str, request_items: Sequence[Mapping[str, Any]]) -> LineageResolution:
        """Find the staged call that a request continues."""
        lineage = RolloutLineage()
        for row in self._rows(rollout_id):
            if "record" in row:
                lineage.add(_lineage_entry(row))
        resolution, entry = lineage.resolve(request_items)
        if entry is None:
            return resolution
        chain, chain_hash = entry.ref
        match = LineageMatch(
            entry.model_call_id, (), entry.digest, tuple(chain), prev_len=entry.cum_len, chain_hash=chain_hash
        )
        return LineageResolution(ParentResolutionStatus.RESOLVED, match)

    def _rows(self, rollout_id: str) -> list[dict[str, Any]]:
        try:
            lines = self.path_for(rollout_id).read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        return [orjson.loads(line) for line in lines[:-1] if line]

    def _append(self, rollout_id: str, row: dict[str, Any], model_call_id: str | None = None) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        with self.path_for(rollout_id).open("ab") as file, file_lock(file.fileno()):
            for stored in self._rows(rollout_id) if model_call_id is not None else ():
                if stored.get("record", {}).get("model_call_id") == model_call_id:
                    if stored == row:
                        return
                    raise ValueError(f"the model call id {model_call_id!r} has another row")
            file.write(orjson.dumps(row) + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _lineage_entry(row: Mapping[str, Any]) -> LineageEntry:
    record = CallRecord.model_validate(row["record"])
    return LineageEntry(
        model_call_id=record.model_call_id,
        fingerprint=record.continuation_fingerprint or "",
        context_len=row["context_len"],
        context_digest=row["context_digest"],
        digest=record.cumulative_hash,
        cum_len=record.cum_len,
        parent_call_id=record.parent_call_id,
        ref=(row["staging_chain"], record.chain_hash),
    )
