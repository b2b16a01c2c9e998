"""Token capture files: `<rollout id>.tokens.jsonl`, and a file of marks for calls that are missing.

Lines are in the kernel when `put` returns, so that the end of a process loses none. They are not synced to the disk: a
power cut ends the rollout as well, and its result is stored later.
"""

import asyncio
import contextlib
import errno
import hashlib
import io
import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from pydantic import BaseModel

from nemo_gym.capture.store import safe_file_name
from nemo_gym.token_id_capture.protocols import TokenCaptureSnapshot
from nemo_gym.token_id_capture.records import TokenEntry, token_digest

_INLINE_BYTES = 1_000_000
"""Files up to this size are read on the event loop, which is cheaper than a thread."""
_HEAD_BYTES = 256
"""Enough for the rollout id and the call id, with which every line begins. Inode numbers are used again."""
MAX_OPEN_FILES = 256
"""Files that a sink keeps open; the one used longest ago is closed."""


class RecordPosition(NamedTuple):
    """The place of a record in a token file; inode and head tell whether the file was replaced."""

    begin: int
    end: int
    inode: int
    head: bytes


class TokenCaptureStore:
    """Sink and source over the files in one folder.

    Marks are lines of `<rollout id>.tokens.marks`: `+<call>` a call begins, `-<call>` it failed or was cancelled,
    `!<call><tab><reason>` it is missing. A record is in the file before the answer leaves the model server, so a call
    that ends without one has given the agent nothing; `needs_intents` therefore is false.
    """

    needs_intents = False

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self._prefix = f"{self.root}{os.sep}"
        self._files: OrderedDict[str, _OpenFile] = OrderedDict()

    def path_for(self, rollout_id: str) -> Path:
        return Path(self._path(rollout_id))

    def _path(self, rollout_id: str) -> str:
        return f"{self._prefix}{safe_file_name(rollout_id)}.tokens.jsonl"

    def _marks_path(self, rollout_id: str) -> str:
        return f"{self._prefix}{safe_file_name(rollout_id)}.tokens.marks"

    def rollout_ids(self) -> set[str]:
        """Return the rollouts that have files."""
        names = os.listdir(self.root) if self.root.is_dir() else []  # noqa: PTH208 - only the names are needed
        return {name.rsplit(".tokens.", 1)[0] for name in names if ".tokens." in name}

    async def begin_call(self, rollout_id: str, model_call_id: str) -> None:
        """Record that a call begins. Without its record or `abandon_call`, the rollout is incomplete."""
        self._mark(rollout_id, f"+{model_call_id}\n")

    async def abandon_call(self, rollout_id: str, model_call_id: str) -> None:
        """Record that a call failed or was cancelled, so that the agent has nothing of its generation."""
        self._mark(rollout_id, f"-{model_call_id}\n")

    async def mark_incomplete(self, rollout_id: str, model_call_id: str = "", *, reason: str = "") -> None:
        """Record that a call of the rollout is missing."""
        self._mark(rollout_id, "!" + f"{model_call_id}\t{reason}".replace("\n", " ") + "\n")

    async def put(self, entry: TokenEntry) -> RecordPosition | None:
        """Store a record; return its position in the file, or None if it is stored already.

        Raises:
            ValueError: the call id is stored with another record.
            OSError: the record cannot be written.
        """
        fields = {**entry.__dict__, **(entry.model_extra or {})}
        chosen = {name: value for name, value in fields.items() if name not in _DEFAULTS or value != _DEFAULTS[name]}
        return self.put_fields(chosen)

    def put_fields(self, fields: Mapping[str, Any]) -> RecordPosition | None:
        """Store a record as `put` does, from the fields of a `TokenEntry` without those that have their defaults.

        `rollout_id` and `model_call_id` come first. A model call then does not build a `TokenEntry`, which costs as
        much as everything else here.
        """
        line = orjson.dumps(fields, default=_dump_model, option=orjson.OPT_APPEND_NEWLINE)
        return self._open_file(fields["rollout_id"]).put(line, fields["model_call_id"])

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        """Read the records of a rollout. Unreadable lines and calls that did not end make it incomplete."""
        try:
            is_small = self.path_for(rollout_id).stat().st_size <= _INLINE_BYTES
        except FileNotFoundError:
            is_small = True
        return self.read(rollout_id) if is_small else await asyncio.to_thread(self.read, rollout_id)

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        """Delete the files of a rollout unless they have changed since the snapshot."""
        if self.state(rollout_id) != (snapshot_id, version):
            return False
        self.clear([rollout_id])
        return True

    async def close(self) -> None:
        """Close the files that are open."""
        while self._files:
            self._files.popitem()[1].close()

    def clear(self, rollout_ids: Iterable[str]) -> None:
        """Delete the files of rollouts, whatever their state."""
        for rollout_id in rollout_ids:
            if rollout_id in self._files:
                self._files.pop(rollout_id).close()
            for path in (self._path(rollout_id), self._marks_path(rollout_id)):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)  # noqa: PTH108 - for every rollout, and faster

    def state(self, rollout_id: str) -> tuple[str, int]:
        """Return the id of a rollout's files, which their first call gives, and the number of bytes in them."""
        head, size = _head_and_size(self._path(rollout_id))
        return _snapshot_id(rollout_id, head), size + _size(self._marks_path(rollout_id))

    def state_if_complete(self, rollout_id: str, calls: int) -> tuple[str, int] | None:
        """Return snapshot id and version if the rollout has exactly `calls` records and no marks, otherwise None."""
        lines = _read(self._path(rollout_id))
        # A hundred times as fast as `lines.count`, which matters: the file has the tokens of a whole rollout.
        records = sum(line.endswith(b"\n") for line in io.BytesIO(lines))
        if records != calls or _size(self._marks_path(rollout_id)):
            return None
        return _snapshot_id(rollout_id, lines[:_HEAD_BYTES]), len(lines)

    def read(self, rollout_id: str) -> TokenCaptureSnapshot:
        """Read the records of a rollout. Blocks on disk I/O."""
        lines, marks_text = _read(self._path(rollout_id)), _read(self._marks_path(rollout_id))
        marks = marks_text.decode("utf-8", "replace").splitlines()
        reasons = [mark.split("\t", 1)[-1] or "a call is missing" for mark in marks if mark.startswith("!")]
        entries: list[TokenEntry] = []
        for number, line in enumerate(lines.split(b"\n"), start=1):
            if not line:
                continue
            try:
                entry = TokenEntry.model_validate(orjson.loads(line))
                if not entry.digest:
                    entry.digest = token_digest([*entry.prompt_token_ids, *entry.generation_token_ids])
                entries.append(entry)
            except ValueError:  # includes pydantic.ValidationError
                reasons.append(f"line {number} of {self.path_for(rollout_id).name} is not a record")
        ended = {entry.model_call_id for entry in entries} | {mark[1:] for mark in marks if mark.startswith("-")}
        open_calls = sorted({mark[1:] for mark in marks if mark.startswith("+")} - ended)
        reasons += [f"the call {call_id} began and has no record" for call_id in open_calls]
        return TokenCaptureSnapshot(
            rollout_id=rollout_id,
            entries=entries,
            incomplete=bool(reasons),
            snapshot_id=_snapshot_id(rollout_id, lines[:_HEAD_BYTES]),
            version=len(lines) + len(marks_text),
            reasons=reasons,
        )

    def _mark(self, rollout_id: str, line: str) -> None:
        """Append a short line; one write to a file opened for appending is atomic."""
        descriptor = self._open(self._marks_path(rollout_id), os.O_WRONLY)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def _open(self, path: str, access: int) -> int:
        try:
            return os.open(path, access | os.O_APPEND | os.O_CREAT, 0o644)
        except FileNotFoundError:
            self.root.mkdir(parents=True, exist_ok=True)
            return os.open(path, access | os.O_APPEND | os.O_CREAT, 0o644)

    def _open_file(self, rollout_id: str) -> "_OpenFile":
        """Return the open file of a rollout; a file that was deleted meanwhile is opened again."""
        file = self._files.pop(rollout_id, None)
        if file is not None and file.is_deleted():
            file.close()
            file = None
        self._files[rollout_id] = file = file or _OpenFile(self._open(self._path(rollout_id), os.O_RDWR))
        if len(self._files) > MAX_OPEN_FILES:
            self._files.popitem(last=False)[1].close()
        return file


_DEFAULTS = {
    name: field_info.get_default(call_default_factory=True)
    for name, field_info in TokenEntry.model_fields.items()
    if not field_info.is_required() and name != "schema_version"
}


def _dump_model(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True)
    raise TypeError(f"a record cannot hold a value of type {type(value).__name__}")


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - for every rollout, and faster
            return file.read()
    except FileNotFoundError:
        return b""


def _head_and_size(path: str) -> tuple[bytes, int]:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return b"", 0
    try:
        return file_head(descriptor), os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - for every rollout, and faster
    except FileNotFoundError:
        return 0


def _snapshot_id(rollout_id: str, head: bytes) -> str:
    return f"{rollout_id}@{hashlib.sha256(head).hexdigest()[:16]}"


def file_head(descriptor: int) -> bytes:
    """Return the first bytes of a token file. They name its first call, so they differ if the file was replaced."""
    return os.pread(descriptor, _HEAD_BYTES, 0)


@dataclass
class _OpenFile:
    """The file of one rollout, and the calls in it up to `size`, each with the position of its line."""

    descriptor: int
    size: int = 0
    calls: dict[str, tuple[int, int]] = field(default_factory=dict)
    size_now: int | None = None
    inode: int = 0
    head: bytes = b""

    def close(self) -> None:
        os.close(self.descriptor)

    def is_deleted(self) -> bool:
        """Return whether the file has no name any more; also note its size."""
        status = os.fstat(self.descriptor)
        self.size_now, self.inode = status.st_size, status.st_ino
        return status.st_nlink == 0

    def put(self, line: bytes, model_call_id: str) -> RecordPosition | None:
        """Append a line unless its call is stored. A last line without an end, left by a crash, is ended first."""
        if self.size_now is None:
            self.is_deleted()
        size, self.size_now = self.size_now or 0, None
        if size != self.size:
            self._read_new(size)
        if model_call_id in self.calls:
            begin, end = self.calls[model_call_id]
            if os.pread(self.descriptor, end - begin, begin) == line:
                return None
            raise ValueError(f"the model call id {model_call_id!r} is stored with another record")
        # One write to a file opened for appending is atomic: other workers write before or after it.
        if os.write(self.descriptor, line) != len(line):
            raise OSError(errno.ENOSPC, "the record was not written completely")
        end = os.lseek(self.descriptor, 0, os.SEEK_CUR)
        begin = end - len(line)
        if begin == self.size:
            self.size = end
        self.calls[model_call_id] = begin, end
        if len(self.head) < _HEAD_BYTES:
            self.head = line[:_HEAD_BYTES] if begin == 0 else file_head(self.descriptor)
        return RecordPosition(begin, end, self.inode, self.head)

    def _read_new(self, size: int) -> None:
        """Add the lines that others wrote since."""
        text = os.pread(self.descriptor, size - self.size, self.size)
        begin = self.size
        for line in text.splitlines(keepends=True):
            with contextlib.suppress(ValueError, AttributeError):  # an unreadable line is reported by `read`
                self.calls[str(orjson.loads(line).get("model_call_id"))] = begin, begin + len(line)
            begin += len(line)
        self.size = size
        if text and not text.endswith(b"\n"):
            self.size += os.write(self.descriptor, b"\n")
