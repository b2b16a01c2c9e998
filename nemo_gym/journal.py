"""JSONL result files: read and append lines, index them, and repair a torn last line (JSONL repair: `repair`).

A file that was cut at any byte remains readable. The index is a side file with the key and byte offset of every line,
so that resume need not read the rows. It is a cache of fixed-size entries, each with a checksum: entries that are
missing, incomplete, damaged, outdated or of another file are computed again from the lines.
"""

import contextlib
import errno
import json
import logging
import os
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self
from zlib import crc32

import orjson

from nemo_gym.errors import GymError
from nemo_gym.keys import NG_FAILURE_DETAIL_KEY, NG_TERMINAL_KEY
from nemo_gym.wire.call_reply import parse_lenient_json
from nemo_gym.wire.stored_rollout import (
    REWARD_KEY,
    RolloutKey,
    Row,
    StoredRollout,
    finite_float,
    with_invalid_reward,
)

logger = logging.getLogger("nemo_gym.journal")

_BLOCK_BYTES = 1 << 16
_JOIN_SECONDS = 60.0
"""Longest wait for the current sync when the run ends."""

_FIELDS = struct.Struct("<QIIQQ")
_CHECKSUM = struct.Struct("<I")
_ENTRY_SIZE = _FIELDS.size + _CHECKSUM.size
_TERMINAL, _NOT_COUNTED = 1, 4
"""Bits of `Entry.flags`. Earlier releases also wrote 2, which nothing reads."""
_BATCH = 128
"""Index entries per write. A crash loses at most one batch, which is then computed again from the lines."""
_SAMPLES = 16
"""Lines that are compared with their entries before an index is trusted."""

HIGHEST_TASK = 2**63 - 1
HIGHEST_ROLLOUT = 2**32 - 1


class StoreError(GymError, OSError):
    """Results could not be written or read; results that were written earlier are intact."""


def scan_lines(path: Path, begin: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield the start offset and the bytes of every non-blank line, starting at the offset `begin`."""
    with path.open("rb") as file:
        file.seek(begin)
        for line in file:
            if not line.isspace():
                yield begin, line
            begin += len(line)


def scan_rows(path: Path, begin: int = 0) -> Iterator[tuple[int, int, Row]]:
    """Yield the start and end offset of every line with its row. A torn last line is skipped.

    Raises:
        StoreError: a line that is not the last one is damaged.
    """
    for start, line in scan_lines(path, begin):
        row = parse_line(line)
        if row is not None:
            yield start, start + len(line), row
        elif line.endswith(b"\n"):
            raise damaged_line(path, start)


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file; none if it is missing. Raises `StoreError` like `scan_rows`."""
    if path.exists():
        for _, _, row in scan_rows(path):
            yield row


def parse_line(line: bytes) -> Row | None:
    """Parse the row on a line, also with NaN or a lone surrogate; None if the line is not a JSON object."""
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        return parse_lenient(line)
    return row if isinstance(row, dict) else None


def parse_lenient(line: bytes) -> Row | None:
    """Parse a row that another tool wrote with numbers or text that strict parsers reject; None for any other line.

    A reward that is not finite turns the row into a failure of kind `invalid_reward`.
    """
    try:
        row = parse_lenient_json(line)
    except ValueError:
        return None
    if not isinstance(row, dict):
        return None
    reward = json.loads(line).get(REWARD_KEY)  # in `row`, a reward that is not finite is null
    is_invalid = isinstance(reward, int | float) and finite_float(reward) is None
    return with_invalid_reward(row, f"{reward:g}, which is not finite") if is_invalid else row


class RolloutReader:
    """Reads single rows by their byte offset. Each file is opened on first use and stays open until the end."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._paths = files
        self._files: dict[int, BinaryIO] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def line(self, begin: int, file: int = 0) -> bytes:
        """Read the line that begins at byte offset `begin` of file number `file`."""
        if file not in self._files:
            self._files[file] = self._paths[file].open("rb")
        self._files[file].seek(begin)
        return self._files[file].readline()

    def row(self, begin: int, file: int = 0) -> Row:
        """Read and parse the row on that line.

        Raises:
            StoreError: the line is not a row (the file changed).
        """
        row = parse_line(self.line(begin, file))
        if row is None:
            raise damaged_line(self._paths[file], begin)
        return row


def repair(path: Path) -> int:
    """Repair a JSONL file: remove an incomplete last line, which a crash may leave; return the size of the file.

    A last line that lacks only its line break gets one.
    """
    if not path.exists():
        return 0
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        begin = last_line_begin(file.fileno(), size)
        if begin == size:
            return size
        file.seek(begin)
        if parse_line(file.read()) is None:
            file.truncate(begin)
            return begin
        file.write(b"\n")
        return size + 1


def last_line_begin(descriptor: int, size: int) -> int:
    """Return the offset after the last line break in the first `size` bytes; the file is read backwards in blocks."""
    position = size
    while position > 0:
        begin = max(0, position - _BLOCK_BYTES)
        line_break = os.pread(descriptor, position - begin, begin).rfind(b"\n")
        if line_break >= 0:
            return begin + line_break + 1
        position = begin
    return 0


def write_lines(path: Path, lines: Iterable[bytes], *, before_replace: Callable[[], None] = lambda: None) -> int:
    """Write a complete file and return its number of lines; if `lines` raises, the earlier file stays.

    `before_replace` is called when all lines are on the disk, before the file gets its final name.
    """
    partial = path.with_name(f"{path.name}.partial")
    count = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            for line in lines:
                file.write(line)
                count += 1
            file.flush()
            os.fsync(file.fileno())  # the content must be on the disk before the file gets its name
        before_replace()
        partial.replace(path)
        sync_folder(path.parent)
    except StoreError:
        raise
    except OSError as error:
        raise unwritable_file(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    return count


class LineWriter:
    """Appends lines to a file. When `append` returns, the operating system has the complete line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._end = self._synced_end = repair(path)
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise unwritable_file(path, error) from error
        self._failure: StoreError | None = None
        """The error after which nothing more is written."""
        self._is_in_place = True

    def append(self, line: bytes) -> int:
        """Append a line, which ends with a line break, and return the offset where it ends.

        Raises:
            StoreError: no part of the line is in the file, or an earlier sync failed.
        """
        if self._failure is not None:
            raise self._failure
        status = os.fstat(self._file.fileno())
        if status.st_nlink == 0 or status.st_size < self._end or not self._is_in_place:
            self._recover(line)
        try:
            written = 0
            while written < len(line):
                written += self._file.write(line[written:])
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(self._end)
            raise unwritable_file(self.path, error) from error
        self._end += len(line)
        return self._end

    def sync(self) -> None:
        """Sync appended lines to the disk. Thread-safe. If this fails, the next `append` raises."""
        end = self._end
        if end == self._synced_end or self._file.closed:
            return
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EROFS):  # a pipe, for example, cannot be synced
                self._failure = unwritable_file(self.path, error)
        self._synced_end = end

    def _recover(self, line: bytes) -> None:
        """Restore a file that another program deleted, replaced or cut, before `line` is appended; for subclasses."""

    def close(self) -> None:
        self.sync()
        self._file.close()


class PeriodicSync:
    """Calls `syncs` every `seconds` on a thread: a power cut loses the lines of that time, and writers do not wait."""

    def __init__(self, syncs: Sequence[Callable[[], None]], seconds: float) -> None:
        self._syncs = syncs
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sync", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the current sync. Idempotent."""
        self._stop.set()
        self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            for sync in self._syncs:
                sync()


def sync_folder(folder: Path) -> None:
    """Sync a folder's file names to the disk, if the file system supports it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def line_location(path: Path, begin: int) -> str:
    """Return `path:number` of the line that begins at an offset."""
    with path.open("rb") as file:
        number = 1 + sum(file.read(min(_BLOCK_BYTES, begin - at)).count(b"\n") for at in range(0, begin, _BLOCK_BYTES))
    return f"{path}:{number}"


def damaged_line(path: Path, begin: int) -> StoreError:
    """Build the error for an unreadable line that is not the last one."""
    return StoreError(
        "this line is damaged and is not the last one",
        where=line_location(path, begin),
        fix="remove the line; its rollout is run again on resume",
    )


def unwritable_file(path: Path, error: OSError) -> StoreError:
    """Build the error for a file that cannot be written."""
    return StoreError(
        f"cannot write: {error.strerror or error}",
        where=str(path),
        fix="free disk space or choose another output; the stored results are complete and can be resumed",
    )


class Entry(NamedTuple):
    """One line: its rollout, the byte offset of its end, its tokens, and flags for resume."""

    task: int
    rollout: int
    flags: int
    end: int
    tokens: int

    @property
    def is_terminal(self) -> bool:
        return bool(self.flags & _TERMINAL)

    @property
    def is_counted(self) -> bool:
        """False if the line is a failure that does not count as an attempt."""
        return not self.flags & _NOT_COUNTED


_BEFORE_FIRST = Entry(0, 0, 0, 0, 0)


def index_entry(key: RolloutKey, record: Row, end: int) -> Entry:
    """Build the entry of a record whose line ends at `end`.

    Raises:
        ValueError: the key is too high for the index.
    """
    if key.task > HIGHEST_TASK or key.rollout > HIGHEST_ROLLOUT:
        raise ValueError(f"task and rollout may be {HIGHEST_TASK} and {HIGHEST_ROLLOUT} at most, not {key}")
    stored, flags = StoredRollout(record), 0
    if NG_FAILURE_DETAIL_KEY in record or NG_TERMINAL_KEY in record:
        flags = (_TERMINAL if stored.is_terminal else 0) | (0 if stored.is_counted else _NOT_COUNTED)
    return Entry(key.task, key.rollout, flags, end, stored.total_tokens)


class IndexWriter:
    """Appends entries to an index file, after its first `size` bytes, in batches.

    The index is a cache, so a write error is not raised: it only ends the writing.
    """

    def __init__(self, path: Path, size: int = 0) -> None:
        self._path = path
        self._pending: list[bytes] = []
        self._is_writable = True
        with self._stopping_on_error():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                file.truncate(size)

    def add(self, entry: Entry) -> None:
        fields = _FIELDS.pack(*entry)
        self._pending.append(fields + _CHECKSUM.pack(crc32(fields)))
        if len(self._pending) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        """Write the entries that were added since the last batch."""
        if self._is_writable and self._pending:
            with self._stopping_on_error(), self._path.open("ab") as file:
                file.write(b"".join(self._pending))
        self._pending.clear()

    @contextlib.contextmanager
    def _stopping_on_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            logger.debug("%s: no index: %s", self._path, error)
            self._is_writable = False  # for good: a later entry must not take the position of a lost one


@dataclass(frozen=True)
class LineIndex:
    """The index file `path` of the JSONL file `lines`, whose last line must be complete."""

    path: Path
    lines: Path

    def entries(self) -> Iterator[Entry]:
        """Yield the entry of every line in order; missing entries are computed from the lines and added to the index.

        Raises:
            StoreError: a line is damaged or has no key.
        """
        count = end = 0
        if trusted := self._trusted_count():
            with self.path.open("rb") as file:
                while count < trusted and (entry := _entry_at(file, count)) is not None and entry.end > end:
                    count, end = count + 1, entry.end
                    yield entry
        if self.lines.exists() and self.lines.stat().st_size > end:
            writer = IndexWriter(self.path, count * _ENTRY_SIZE)
            try:
                for entry in scan_entries(self.lines, end):
                    writer.add(entry)
                    yield entry
            finally:
                writer.flush()

    def writer(self) -> IndexWriter:
        """Index the existing lines and return a writer for the entries of new lines."""
        deque(self.entries(), maxlen=0)  # reading all entries adds the missing ones to the index
        return IndexWriter(self.path, self._trusted_count() * _ENTRY_SIZE)

    def _trusted_count(self) -> int:
        """Count the entries to trust: all up to the last valid one if a sample of them matches the lines, else none."""
        try:
            size = self.lines.stat().st_size
            with self.path.open("rb") as file, self.lines.open("rb") as lines:
                count = file.seek(0, os.SEEK_END) // _ENTRY_SIZE
                while count and ((last := _entry_at(file, count - 1)) is None or last.end > size):
                    count -= 1  # the entry is damaged, or the lines were cut
                sample = {round(step * (count - 1) / _SAMPLES) for step in range(_SAMPLES + 1)} if count else set()
                return count if all(_matches_line(file, lines, number) for number in sample) else 0
        except (FileNotFoundError, NotADirectoryError):
            return 0


def scan_entries(path: Path, begin: int = 0) -> Iterator[Entry]:
    """Compute and yield the entries of a file's lines, starting at the offset `begin`. Raises like `entries`."""
    for start, end, record in scan_rows(path, begin):
        try:
            yield index_entry(RolloutKey.of(record), record, end)
        except ValueError as error:
            raise StoreError(
                f"this record has no rollout key: {error}",
                where=line_location(path, start),
                fix="start over without resuming, or remove the record",
            ) from error


def select_rows(path: Path, entries: Iterator[Entry], is_selected: Callable[[Entry], bool]) -> Iterator[Row]:
    """Yield the rows whose entries are selected, in order; other rows are not read."""
    with path.open("rb") as file:
        begin = position = 0
        for entry in entries:
            if is_selected(entry):
                if position != begin:
                    file.seek(begin)
                line = file.read(entry.end - begin)
                position = entry.end
                row = parse_line(line)
                if row is None:
                    raise damaged_line(path, begin)
                yield row
            begin = entry.end


def _entry_at(file: BinaryIO, number: int) -> Entry | None:
    """Read the entry at a position of an index file; None if it is incomplete or its checksum is wrong."""
    file.seek(number * _ENTRY_SIZE)
    data = file.read(_ENTRY_SIZE)
    fields, checksum = data[: _FIELDS.size], data[_FIELDS.size :]
    if len(data) != _ENTRY_SIZE or _CHECKSUM.unpack(checksum)[0] != crc32(fields):
        return None
    return Entry._make(_FIELDS.unpack(fields))


def _matches_line(file: BinaryIO, lines: BinaryIO, number: int) -> bool:
    """Return whether entry `number` describes a line that exists and has the same rollout key."""
    entry = _entry_at(file, number)
    previous = _entry_at(file, number - 1) if number else _BEFORE_FIRST
    if entry is None or previous is None or not previous.end < entry.end:
        return False
    lines.seek(previous.end)
    line = lines.read(entry.end - previous.end)
    record = parse_line(line) if line.endswith(b"\n") else None
    try:
        return record is not None and RolloutKey.of(record).rollout_id == (entry.task, entry.rollout)
    except ValueError:
        return False
