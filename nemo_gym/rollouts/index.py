"""Which rollouts a file of lines holds and where each line ends, without reading the lines.

The index of a file is a cache of fixed-size entries beside it, each with a checksum. Resuming reads it instead of the
payloads. It may be missing, torn, damaged, behind its file, or that of another file: what it does not know, or knows
wrongly, is read from the file.
"""

import logging
import struct
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple
from zlib import crc32

from nemo_gym.keys import NG_FAILURE_CLASS_KEY, NG_TERMINAL_KEY
from nemo_gym.rollouts.job import Row
from nemo_gym.rollouts.jsonl import StoreError, damaged, row_of
from nemo_gym.rollouts.key import RolloutKey
from nemo_gym.rollouts.outcome import LIMIT_CLASS
from nemo_gym.rollouts.usage import total_tokens

logger = logging.getLogger("nemo_gym.rollouts")

_FIELDS = struct.Struct("<QIIQQ")
_SUM = struct.Struct("<I")
_SIZE = _FIELDS.size + _SUM.size
_TERMINAL = 1
_LIMITED = 2
_BATCH = 128
"""Entries are written so many at a time; what a crash keeps from being written is read from the file."""
_BLOCK = _SIZE * 4096
_LOOKED_AT = 16
"""So many lines are compared with their entries before an index is believed."""

HIGHEST_TASK = 2**63 - 1
HIGHEST_ROLLOUT = 2**32 - 1


class Entry(NamedTuple):
    """One line: whose it is, where it ends, and what resuming wants to know of it."""

    task: int
    rollout: int
    mark: int
    end: int
    tokens: int

    @property
    def is_terminal(self) -> bool:
        return bool(self.mark & _TERMINAL)

    @property
    def is_limited(self) -> bool:
        """A limit ended it; with a higher one it might end otherwise."""
        return bool(self.mark & _LIMITED)


def entry_of(key: RolloutKey, record: Row, end: int) -> Entry:
    """The entry of a record whose line ends at `end`.

    Raises:
        ValueError: the key is too high to be written.
    """
    if key.task > HIGHEST_TASK or key.rollout > HIGHEST_ROLLOUT:
        raise ValueError(f"task and rollout may be {HIGHEST_TASK} and {HIGHEST_ROLLOUT} at most, not {key}")
    mark = _TERMINAL if record.get(NG_TERMINAL_KEY) else 0
    if record.get(NG_FAILURE_CLASS_KEY) == LIMIT_CLASS:
        mark |= _LIMITED
    return Entry(key.task, key.rollout, mark, end, total_tokens(record))


class IndexWriter:
    """Adds entries to an index. An index that cannot be written is given up, never the run."""

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
            self._give_up(error)

    def add(self, entry: Entry) -> None:
        if self._file is None:
            return
        fields = _FIELDS.pack(*entry)
        self._pending.append(fields + _SUM.pack(crc32(fields)))
        if len(self._pending) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        if self._file is not None and self._pending:
            try:
                self._file.write(b"".join(self._pending))
            except OSError as error:
                self._give_up(error)
        self._pending.clear()

    def close(self) -> None:
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _give_up(self, error: OSError) -> None:
        logger.debug("%s: no index: %s", self.path, error)
        if self._file is not None:
            self._file.close()
        self._file = None


@dataclass(frozen=True)
class LineIndex:
    """The index at `path` of the file `lines`, which must end with a whole line."""

    path: Path
    lines: Path

    def entries(self) -> Iterator[Entry]:
        """All lines in order: those the index knows, then those it does not, which are added to it.

        Raises:
            StoreError: a line does not say which rollout it is.
        """
        known = end = 0
        trusted = self._trusted()
        if trusted:
            with self.path.open("rb") as file:
                for entry in _read(file, trusted):
                    known, end = known + 1, entry.end
                    yield entry
        if self.lines.exists() and self.lines.stat().st_size > end:
            writer = IndexWriter(self.path, known * _SIZE)
            try:
                for entry in scan(self.lines, end):
                    writer.add(entry)
                    yield entry
            finally:
                writer.close()

    def writer(self) -> IndexWriter:
        """For lines added from now on; lines that are there already are in the index first."""
        deque(self.entries(), maxlen=0)
        return IndexWriter(self.path, self._trusted() * _SIZE)

    def _trusted(self) -> int:
        """How many of the first entries are about this very file, as far as looking at some of them tells."""
        try:
            size = self.lines.stat().st_size
            with self.path.open("rb") as file, self.lines.open("rb") as lines:
                count = file.seek(0, 2) // _SIZE
                while count and not _ends_within(_at(file, count - 1), size):  # torn, or the file was cut
                    count -= 1
                steps = {round(step * (count - 1) / _LOOKED_AT) for step in range(_LOOKED_AT + 1)} if count else set()
                return count if all(_agrees(file, lines, number) for number in steps) else 0
        except (FileNotFoundError, NotADirectoryError):
            return 0


def scan(path: Path, begin: int = 0) -> Iterator[Entry]:
    """The entries of a file's lines from an offset on, read from the lines themselves."""
    with path.open("rb") as file:
        file.seek(begin)
        end = begin
        for line in file:
            end += len(line)
            if line.isspace():
                continue
            record = row_of(line)
            if record is None:
                raise damaged(f"{path} (byte {end - len(line)})")
            try:
                yield entry_of(RolloutKey.of(record), record, end)
            except ValueError as error:
                raise StoreError(
                    f"this record does not say which rollout it is: {error}",
                    where=f"{path} (byte {end - len(line)})",
                    fix="start over without resuming, or remove the record",
                ) from error


def pick(path: Path, entries: Iterator[Entry], wanted: Callable[[Entry], bool]) -> Iterator[Row]:
    """The lines of a file that are wanted, in order; the others are skipped unread."""
    with path.open("rb") as file:
        begin = position = 0
        for entry in entries:
            if wanted(entry):
                if position != begin:
                    file.seek(begin)
                line = file.read(entry.end - begin)
                position = entry.end
                row = row_of(line)
                if row is None:
                    raise damaged(f"{path} (byte {begin})")
                yield row
            begin = entry.end


def _read(file: BinaryIO, count: int) -> Iterator[Entry]:
    """The first `count` entries, up to one that is damaged."""
    end = 0
    left = count * _SIZE
    while left > 0:
        block = file.read(min(left, _BLOCK))
        left -= len(block)
        for begin in range(0, len(block), _SIZE):
            entry = _entry(block[begin : begin + _SIZE])
            if entry is None or entry.end <= end:
                return
            end = entry.end
            yield entry


def _entry(stored: bytes) -> Entry | None:
    fields, checksum = stored[: _FIELDS.size], stored[_FIELDS.size :]
    if len(stored) != _SIZE or _SUM.unpack(checksum)[0] != crc32(fields):
        return None
    return Entry._make(_FIELDS.unpack(fields))


def _at(file: BinaryIO, number: int) -> Entry | None:
    file.seek(number * _SIZE)
    return _entry(file.read(_SIZE))


def _ends_within(entry: Entry | None, size: int) -> bool:
    return entry is not None and entry.end <= size


def _agrees(file: BinaryIO, lines: BinaryIO, number: int) -> bool:
    """Whether the line that an entry describes is there and is that rollout's."""
    entry = _at(file, number)
    before = _at(file, number - 1) if number else Entry(0, 0, 0, 0, 0)
    if entry is None or before is None or not before.end < entry.end:
        return False
    lines.seek(before.end)
    line = lines.read(entry.end - before.end)
    record = row_of(line) if line.endswith(b"\n") else None
    try:
        return record is not None and RolloutKey.of(record).place == (entry.task, entry.rollout)
    except ValueError:
        return False
