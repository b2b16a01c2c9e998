"""The index of a JSONL file: the key and byte offset of every line, cached in a side file.

Resume reads the index instead of the rows. The index is a cache of fixed-size entries, each with a checksum. Entries
that are missing, incomplete, damaged, outdated or of another file are computed again from the JSONL file.
"""

import logging
import struct
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple
from zlib import crc32

from nemo_gym.journal.lines import StoreError, damaged_line, line_location, parse_line, scan_rows
from nemo_gym.wire.stored_rollout import LIMIT_CLASS, RolloutKey, Row, StoredRollout

logger = logging.getLogger("nemo_gym.journal")

_FIELDS = struct.Struct("<QIIQQ")
_CHECKSUM = struct.Struct("<I")
_SIZE = _FIELDS.size + _CHECKSUM.size
_TERMINAL = 1
_LIMITED = 2
_BATCH = 128
"""Entries per write. A crash loses at most one batch, which is then computed again from the JSONL file."""
_BLOCK = _SIZE * 4096
_SAMPLES = 16
"""Lines that are compared with their entries before an index is trusted."""

HIGHEST_TASK = 2**63 - 1
HIGHEST_ROLLOUT = 2**32 - 1


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
    def is_limited(self) -> bool:
        """True if a limit ended the rollout; a higher limit may change its outcome."""
        return bool(self.flags & _LIMITED)


_BEFORE_FIRST = Entry(0, 0, 0, 0, 0)


def index_entry(key: RolloutKey, record: Row, end: int) -> Entry:
    """Build the entry of a record whose line ends at `end`.

    Raises:
        ValueError: the key is too high for the index.
    """
    if key.task > HIGHEST_TASK or key.rollout > HIGHEST_ROLLOUT:
        raise ValueError(f"task and rollout may be {HIGHEST_TASK} and {HIGHEST_ROLLOUT} at most, not {key}")
    stored = StoredRollout(record)
    flags = _TERMINAL if stored.is_terminal else 0
    if stored.failure_class == LIMIT_CLASS:
        flags |= _LIMITED
    return Entry(key.task, key.rollout, flags, end, stored.total_tokens)


class IndexWriter:
    """Append entries to an index file, after its first `size` bytes. A write error disables the writer silently."""

    def __init__(self, path: Path, size: int = 0) -> None:
        self.path = path
        self._pending: list[bytes] = []
        self._file: BinaryIO | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("r+b" if size else "wb", buffering=0)
            self._file.truncate(size)
            self._file.seek(size)
        except OSError as error:
            self._disable(error)

    def add(self, entry: Entry) -> None:
        if self._file is None:
            return
        fields = _FIELDS.pack(*entry)
        self._pending.append(fields + _CHECKSUM.pack(crc32(fields)))
        if len(self._pending) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        if self._file is not None and self._pending:
            try:
                self._file.write(b"".join(self._pending))
            except OSError as error:
                self._disable(error)
        self._pending.clear()

    def close(self) -> None:
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _disable(self, error: OSError) -> None:
        logger.debug("%s: no index: %s", self.path, error)
        if self._file is not None:
            self._file.close()
        self._file = None


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
        trusted = self._trusted_count()
        if trusted:
            with self.path.open("rb") as file:
                for entry in _read_entries(file, trusted):
                    count, end = count + 1, entry.end
                    yield entry
        if self.lines.exists() and self.lines.stat().st_size > end:
            writer = IndexWriter(self.path, count * _SIZE)
            try:
                for entry in scan_entries(self.lines, end):
                    writer.add(entry)
                    yield entry
            finally:
                writer.close()

    def writer(self) -> IndexWriter:
        """Index the existing lines and return a writer for the entries of new lines."""
        deque(self.entries(), maxlen=0)
        return IndexWriter(self.path, self._trusted_count() * _SIZE)

    def _trusted_count(self) -> int:
        """Count the leading entries that can be trusted: all that are complete, if a sample matches the lines."""
        try:
            size = self.lines.stat().st_size
            with self.path.open("rb") as file, self.lines.open("rb") as lines:
                count = file.seek(0, 2) // _SIZE
                while count and not _ends_within(_entry_at(file, count - 1), size):  # damaged, or the lines were cut
                    count -= 1
                steps = {round(step * (count - 1) / _SAMPLES) for step in range(_SAMPLES + 1)} if count else set()
                return count if all(_matches_line(file, lines, number) for number in steps) else 0
        except (FileNotFoundError, NotADirectoryError):
            return 0


def scan_entries(path: Path, begin: int = 0) -> Iterator[Entry]:
    """Compute and yield the entries of a file's lines, starting at a byte offset."""
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


def _read_entries(file: BinaryIO, count: int) -> Iterator[Entry]:
    """Yield the first `count` entries; stop at the first damaged one."""
    end = 0
    left = count * _SIZE
    while left > 0:
        block = file.read(min(left, _BLOCK))
        left -= len(block)
        for begin in range(0, len(block), _SIZE):
            entry = _unpack_entry(block[begin : begin + _SIZE])
            if entry is None or entry.end <= end:
                return
            end = entry.end
            yield entry


def _unpack_entry(data: bytes) -> Entry | None:
    """Unpack one entry; None if it is incomplete or its checksum is wrong."""
    fields, checksum = data[: _FIELDS.size], data[_FIELDS.size :]
    if len(data) != _SIZE or _CHECKSUM.unpack(checksum)[0] != crc32(fields):
        return None
    return Entry._make(_FIELDS.unpack(fields))


def _entry_at(file: BinaryIO, number: int) -> Entry | None:
    file.seek(number * _SIZE)
    return _unpack_entry(file.read(_SIZE))


def _ends_within(entry: Entry | None, size: int) -> bool:
    return entry is not None and entry.end <= size


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
