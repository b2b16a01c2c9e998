"""Token records on disk: `<rollout id>.tokens.jsonl`, with markers for calls that are missing or have not ended.

Lines are written under the lock of their file and are in the kernel when `put` returns, so that the end of a process
loses none. They are not synced to the disk: a power cut ends the rollout as well, and its result is stored later.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import orjson

from nemo_gym.capture.store import file_lock, safe_file_name
from nemo_gym.token_id_capture.protocols import TokenCaptureSnapshot
from nemo_gym.token_id_capture.records import TokenEntry

Result = TypeVar("Result")

_HEAD_BYTES = 256
"""Enough for the rollout id and the call id, with which every line begins. Inode numbers are used again."""
MAX_KNOWN_ROLLOUTS = 4096
"""Rollouts whose stored calls a sink remembers; those of other rollouts are read from their files."""


class TokenCaptureStore:
    """Sink and source over the files in one folder."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self._known: OrderedDict[str, _KnownCalls] = OrderedDict()

    def path_for(self, rollout_id: str) -> Path:
        return self.root / f"{safe_file_name(rollout_id)}.tokens.jsonl"

    def incomplete_path_for(self, rollout_id: str) -> Path:
        """Return the marker file: one line for each reason why the rollout is incomplete."""
        return self.root / f"{safe_file_name(rollout_id)}.tokens.incomplete"

    def intents_path_for(self, rollout_id: str) -> Path:
        """Return the file of the calls that began (`+<call id>`) or ended without a generation (`-<call id>`)."""
        return self.root / f"{safe_file_name(rollout_id)}.tokens.intents"

    async def begin_call(self, rollout_id: str, model_call_id: str) -> None:
        """Record that a call begins. Without its record or `abandon_call`, the rollout is incomplete."""
        self._append(self.intents_path_for(rollout_id), f"+{model_call_id}\n".encode())

    async def abandon_call(self, rollout_id: str, model_call_id: str) -> None:
        """Record that a call failed or was cancelled, so that the agent has nothing of its generation."""
        self._append(self.intents_path_for(rollout_id), f"-{model_call_id}\n".encode())

    async def put(self, entry: TokenEntry) -> tuple[int, int] | None:
        """Store a record; return its position in the file, or None if it is stored already.

        Raises:
            ValueError: the call id is stored with another record.
            OSError: the record cannot be written.
        """
        line = orjson.dumps(entry.model_dump(exclude_defaults=True) | {"schema_version": entry.schema_version}) + b"\n"
        path = self.path_for(entry.rollout_id)
        return await self._run_locked(
            path, lambda file: self._known_calls(entry.rollout_id, file).put(file, line, entry.model_call_id)
        )

    async def mark_incomplete(self, rollout_id: str, model_call_id: str = "", *, reason: str = "") -> None:
        """Record that a call of the rollout is missing."""
        text = f"{model_call_id}\t{reason}".replace("\n", " ")
        self._append(self.incomplete_path_for(rollout_id), f"{text}\n".encode())

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        """Read the records of a rollout. Unreadable lines and calls that did not end make it incomplete."""
        return await asyncio.to_thread(self.read, rollout_id)

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        """Delete the files of a rollout unless they have changed since the snapshot."""

        def delete() -> bool:
            _, current_id, current_version = self._contents(rollout_id)
            if (current_id, current_version) != (snapshot_id, version):
                return False
            self.clear([rollout_id])
            return True

        return await asyncio.to_thread(delete)

    async def close(self) -> None:
        """Release nothing: files are open during a call only."""

    def clear(self, rollout_ids: Iterable[str]) -> None:
        """Delete the files of rollouts, whatever their state."""
        for rollout_id in rollout_ids:
            for path in self._files(rollout_id):
                path.unlink(missing_ok=True)

    def read(self, rollout_id: str) -> TokenCaptureSnapshot:
        """Read the records of a rollout. Blocks on disk I/O."""
        (lines, marker, intents), snapshot_id, version = self._contents(rollout_id)
        reasons = [
            line.split("\t", 1)[-1] or "a call is missing" for line in marker.decode("utf-8", "replace").splitlines()
        ]
        entries: list[TokenEntry] = []
        for number, line in enumerate(lines.split(b"\n"), start=1):
            if not line:
                continue
            try:
                entries.append(TokenEntry.model_validate(orjson.loads(line)))
            except ValueError:  # includes pydantic.ValidationError
                reasons.append(f"line {number} of {self.path_for(rollout_id).name} is not a record")
        stored = {entry.model_call_id for entry in entries}
        marks = intents.decode("utf-8", "replace").splitlines()
        ended = stored | {mark[1:] for mark in marks if mark.startswith("-")}
        open_calls = sorted({mark[1:] for mark in marks if mark.startswith("+")} - ended)
        reasons += [f"the call {call_id} began and has no record" for call_id in open_calls]
        return TokenCaptureSnapshot(
            rollout_id=rollout_id,
            entries=entries,
            incomplete=bool(reasons),
            snapshot_id=snapshot_id,
            version=version,
            reasons=reasons,
        )

    def _known_calls(self, rollout_id: str, descriptor: int) -> "_KnownCalls":
        """Return the calls in a rollout's file that are known; none if the file was replaced."""
        calls = self._known.pop(rollout_id, None)
        if calls is None or (calls.size and calls.head != file_head(descriptor)):
            calls = _KnownCalls()
        self._known[rollout_id] = calls
        if len(self._known) > MAX_KNOWN_ROLLOUTS:
            self._known.popitem(last=False)
        return calls

    def _files(self, rollout_id: str) -> tuple[Path, Path, Path]:
        return self.path_for(rollout_id), self.incomplete_path_for(rollout_id), self.intents_path_for(rollout_id)

    def _contents(self, rollout_id: str) -> tuple[tuple[bytes, bytes, bytes], str, int]:
        """Return the three files, the id of their state, and its version: the number of bytes ever written."""
        texts = [path.read_bytes() if path.exists() else b"" for path in self._files(rollout_id)]
        digest = hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]
        return (texts[0], texts[1], texts[2]), f"{rollout_id}@{digest}", sum(map(len, texts))

    def _append(self, path: Path, line: bytes) -> None:
        """Append a short line; one write to a file opened for appending is atomic."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except FileNotFoundError:
            self.root.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    async def _run_locked(self, path: Path, work: Callable[[int], Result]) -> Result:
        """Run `work` with the locked file: here if the lock is free, else in a thread that waits for it."""
        self.root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return await asyncio.to_thread(_with_lock, descriptor, work)
            return work(descriptor)
        finally:
            os.close(descriptor)  # releases the lock


def file_head(descriptor: int) -> bytes:
    """Return the begin of a token file, which names its first call: a new file of a rollout has another one."""
    return os.pread(descriptor, _HEAD_BYTES, 0)


def _with_lock(descriptor: int, work: Callable[[int], Result]) -> Result:
    with file_lock(descriptor):
        return work(descriptor)


@dataclass
class _KnownCalls:
    """The calls in one file up to `size`, each with the digest of its line."""

    size: int = 0
    head: bytes = b""
    calls: dict[str, bytes] = field(default_factory=dict)

    def read_new(self, descriptor: int, size: int) -> None:
        """Add the lines that were written since, also by other processes."""
        for line in os.pread(descriptor, size - self.size, self.size).split(b"\n"):
            if line:
                with contextlib.suppress(ValueError, AttributeError):  # an unreadable line is reported by `read`
                    self.calls[str(orjson.loads(line).get("model_call_id"))] = hashlib.sha256(line + b"\n").digest()
        self.size = size
        self.head = file_head(descriptor)

    def put(self, descriptor: int, line: bytes, model_call_id: str) -> tuple[int, int] | None:
        """Append a line unless its call is stored. A last line without an end, left by a crash, is ended first."""
        size = os.fstat(descriptor).st_size
        if size != self.size:
            self.read_new(descriptor, size)
        digest = hashlib.sha256(line).digest()
        if model_call_id in self.calls:
            if self.calls[model_call_id] == digest:
                return None
            raise ValueError(f"the model call id {model_call_id!r} is stored with another record")
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            size += os.write(descriptor, b"\n")
        remaining = memoryview(line)
        while remaining:
            remaining = remaining[os.write(descriptor, remaining) :]
        self.size = size + len(line)
        self.head = self.head or file_head(descriptor)
        self.calls[model_call_id] = digest
        return size, self.size
