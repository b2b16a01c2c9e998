"""Lineage stores that read what other processes wrote: a base class with two hooks, and the one over token files."""

import asyncio
import contextlib
import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from nemo_gym.capture.store import safe_file_name
from nemo_gym.token_id_capture.fingerprint import has_model_text
from nemo_gym.token_id_capture.ledger_files import LedgerFiles
from nemo_gym.token_id_capture.lineage import (
    ROOT,
    CachedCall,
    LineageEntry,
    LineageResolution,
    RolloutLineage,
    UnresolvedReason,
    resolved_match,
    unresolved_because,
)
from nemo_gym.token_id_capture.records import TokenEntry
from nemo_gym.token_id_capture.store import RecordPosition, file_head

MAX_INDEXED_ROLLOUTS = 65_536
MAX_CACHED_TOKENS = 8_000_000


class CursorReset(Exception):
    """Raised by `_fetch_new_entries` if its cursor is not valid any more: everything is read again."""


@dataclass
class _RolloutIndex:
    lineage: RolloutLineage = field(default_factory=RolloutLineage)
    cursor: Any = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class IncrementalLineageStore:
    """Index of a backend's calls, extended before each resolution by what is new. Subclasses implement the hooks.

    Only the tokens of the call that is continued are loaded, with those of its parents if it is a delta record, and
    their digest is verified.
    """

    def __init__(self) -> None:
        self._rollouts: OrderedDict[str, _RolloutIndex] = OrderedDict()
        self._tokens: OrderedDict[tuple[str, str], CachedCall] = OrderedDict()
        self._token_count = 0

    async def _fetch_new_entries(self, rollout_id: str, cursor: Any) -> tuple[Iterable[LineageEntry | TokenEntry], Any]:
        """Return the calls after `cursor` (None: all) and the new cursor; raise `CursorReset` to start again."""
        raise NotImplementedError

    async def _load_entry(self, rollout_id: str, ref: Any) -> TokenEntry:
        """Return the record at `ref`, the reference of its `LineageEntry`."""
        raise NotImplementedError

    async def _load_entries(self, rollout_id: str, refs: Sequence[Any]) -> list[TokenEntry]:
        return [await self._load_entry(rollout_id, ref) for ref in refs]

    def _read_locked(self, rollout_id: str) -> AbstractContextManager[Any]:  # noqa: ARG002 - for overrides
        """Return a context manager that keeps writers of the rollout out while new entries are read."""
        return contextlib.nullcontext()

    def is_process_shared(self) -> bool:
        return True

    async def close(self) -> None:
        self._rollouts.clear()
        self._tokens.clear()
        self._token_count = 0

    async def resolve(self, rollout_id: str, request_items: Sequence[Mapping[str, Any]]) -> LineageResolution:
        if not has_model_text(request_items):
            return ROOT  # without a look at the backend
        index = await self._updated_index(rollout_id)
        resolution, entry = index.lineage.resolve(request_items)
        if entry is None:
            return resolution
        call = await self._cumulative_tokens(rollout_id, entry, index.lineage)
        if call is None:
            return unresolved_because(UnresolvedReason.LOOKUP_ERROR)
        return resolved_match(entry, call, index.lineage)

    async def _updated_index(self, rollout_id: str) -> _RolloutIndex:
        """Return the index of a rollout with everything that the backend has stored so far."""
        index = self._index(rollout_id)
        if not index.lock.locked() and self._is_current(rollout_id, index.cursor):
            return index
        async with index.lock:
            for _ in range(2):  # once more from the start if the file was replaced
                try:
                    with self._read_locked(rollout_id):
                        entries, cursor = await self._fetch_new_entries(rollout_id, index.cursor)
                except CursorReset:
                    self._reset(rollout_id, index)
                    continue
                for entry in entries:
                    index.lineage.add(entry if isinstance(entry, LineageEntry) else LineageEntry.of(entry))
                index.cursor = cursor
                return index
        raise RuntimeError(f"the records of rollout {rollout_id} changed while they were read")

    def _is_current(self, rollout_id: str, cursor: Any) -> bool:  # noqa: ARG002 - for overrides
        """Return True if it is known, without reading anything, that nothing is new after `cursor`."""
        return False

    def _index(self, rollout_id: str) -> _RolloutIndex:
        index = self._rollouts.get(rollout_id)
        if index is not None:
            self._rollouts.move_to_end(rollout_id)
            return index
        self._rollouts[rollout_id] = index = _RolloutIndex()
        while len(self._rollouts) > MAX_INDEXED_ROLLOUTS:
            self._rollouts.popitem(last=False)
        return index

    async def _cumulative_tokens(
        self, rollout_id: str, entry: LineageEntry, lineage: RolloutLineage
    ) -> CachedCall | None:
        """Return the tokens of a call; None if a record of its chain is missing."""
        chain: list[LineageEntry] = []
        records: list[TokenEntry] = []
        link: LineageEntry | None = entry
        prefix: list[int] = []
        while link is not None:
            cached = self._tokens.get((rollout_id, link.model_call_id))
            if cached is not None:
                if not chain:
                    return cached
                prefix = cached.tokens.tolist()
                break
            record = (await self._load_entries(rollout_id, [link.ref]))[0]
            chain.append(link)
            records.append(record)
            if not record.prompt_is_delta:
                break
            if len(chain) > len(lineage.entries) or record.parent_call_id not in lineage.entries:
                return None
            link = lineage.entries[record.parent_call_id]
        for record in reversed(records):
            prefix = [*prefix, *record.prompt_token_ids, *record.generation_token_ids]
        call = CachedCall.of(prefix, records[0].generation_log_probs)
        self.remember_tokens(rollout_id, entry.model_call_id, call)
        return call

    def remember_tokens(self, rollout_id: str, model_call_id: str, call: CachedCall) -> None:
        """Keep the tokens of a call; the ones used longest ago are dropped."""
        self._tokens[rollout_id, model_call_id] = call
        self._token_count += len(call)
        while self._token_count > MAX_CACHED_TOKENS and len(self._tokens) > 1:
            self._token_count -= len(self._tokens.popitem(last=False)[1])

    def forget_call(self, rollout_id: str, model_call_id: str) -> None:
        """Drop the cached tokens of a call."""
        call = self._tokens.pop((rollout_id, model_call_id), None)
        self._token_count -= len(call) if call is not None else 0

    def _reset(self, rollout_id: str, index: _RolloutIndex) -> None:
        """Forget the calls of a rollout."""
        for call_id in index.lineage.entries:
            self.forget_call(rollout_id, call_id)
        index.lineage, index.cursor = RolloutLineage(), None


class _Cursor(NamedTuple):
    """How far a token file was read; a changed head means that the file was replaced."""

    inode: int
    head: bytes
    position: int = 0


class FileLineageStore(IncrementalLineageStore):
    """Resolves from the files of `TokenCaptureStore`, or from ledger files if a worker keeps the tokens.

    The workers of one machine share the files.
    """

    def __init__(self, root: str | Path) -> None:
        super().__init__()
        self.root = Path(root)
        self._prefix = f"{self.root}{os.sep}"
        ledger = LedgerFiles(root)
        self.record, self.record_failure = ledger.record, ledger.record_failure
        self.manifest, self.has_rows = ledger.manifest, ledger.has_rows
        self._ledger = ledger

    def path_for(self, rollout_id: str) -> Path:
        return self.root / f"{safe_file_name(rollout_id)}.tokens.jsonl"

    async def resolve(self, rollout_id: str, request_items: Sequence[Mapping[str, Any]]) -> LineageResolution:
        resolution = await super().resolve(rollout_id, request_items)
        if resolution is ROOT or self._rollouts[rollout_id].cursor is not None:
            return resolution
        has_rows = await self._ledger.has_rows(rollout_id)
        return await self._ledger.resolve(rollout_id, request_items) if has_rows else resolution

    def observe(self, rollout_id: str, entry: LineageEntry, call: CachedCall) -> None:
        """Index a record that this process stored, so that it is not read back from the file.

        `entry.ref` is its `RecordPosition`.
        """
        index, ref = self._index(rollout_id), entry.ref
        if not isinstance(ref, RecordPosition) or index.lock.locked():
            return
        if ref.begin == 0 and index.cursor is not None:
            self._reset(rollout_id, index)  # an earlier rollout with this id, whose file was deleted
        if (index.cursor.position if index.cursor is not None else 0) != ref.begin:
            return
        self.remember_tokens(rollout_id, entry.model_call_id, call)
        index.lineage.distinguish(entry, lambda call_id: self._tokens.get((rollout_id, call_id)))
        index.lineage.add(entry)
        index.cursor = _Cursor(ref.inode, ref.head, ref.end)

    def _is_current(self, rollout_id: str, cursor: Any) -> bool:
        if cursor is None:
            return False
        try:
            status = os.stat(f"{self._prefix}{safe_file_name(rollout_id)}.tokens.jsonl")  # noqa: PTH116 - faster
        except FileNotFoundError:
            return False
        return bool(status.st_size == cursor.position and status.st_ino == cursor.inode)

    async def _fetch_new_entries(self, rollout_id: str, cursor: Any) -> tuple[Iterable[LineageEntry | TokenEntry], Any]:
        """Read the complete lines after the cursor."""
        try:
            descriptor = os.open(self.path_for(rollout_id), os.O_RDONLY)
        except FileNotFoundError:
            if cursor is not None:
                raise CursorReset from None
            return [], None
        try:
            status, head = os.fstat(descriptor), file_head(descriptor)
            position = cursor.position if cursor is not None else 0
            if position > status.st_size or (position and not head.startswith(cursor.head)):
                raise CursorReset
            tail = os.pread(descriptor, status.st_size - position, position)
        finally:
            os.close(descriptor)
        entries: list[LineageEntry | TokenEntry] = []
        for line in tail.splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break
            with contextlib.suppress(ValueError):  # an unreadable line makes the snapshot incomplete
                record = TokenEntry.model_validate(orjson.loads(line))
                ref = RecordPosition(position, position + len(line), status.st_ino, head)
                entries.append(LineageEntry.of(record, ref))
            position += len(line)
        return entries, _Cursor(status.st_ino, head, position)

    async def _load_entry(self, rollout_id: str, ref: Any) -> TokenEntry:
        def read() -> bytes:
            with self.path_for(rollout_id).open("rb") as file:
                return os.pread(file.fileno(), ref.end - ref.begin, ref.begin)

        return TokenEntry.model_validate(orjson.loads(await asyncio.to_thread(read)))
