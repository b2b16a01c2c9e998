"""Read, repair and append files of one JSON object per line. A file that was cut at any byte remains readable."""

import contextlib
import errno
import json
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Self

import orjson

from nemo_gym.errors import GymError
from nemo_gym.keys import NG_FAILURE_CLASS_KEY, NG_FAILURE_DETAIL_KEY
from nemo_gym.wire.stored_rollout import REWARD_KEY, Row

_BLOCK = 1 << 16
_NOT_JSON = (b"NaN", b"Infinity")
_JOIN_SECONDS = 60.0
"""Longest wait for the current sync when the run ends."""


class StoreError(GymError, OSError):
    """Results could not be written or read; results that were written earlier are intact."""


def scan_lines(path: Path, begin: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield the begin offset and the bytes of every non-blank line, starting at the offset `begin`."""
    with path.open("rb") as file:
        file.seek(begin)
        for line in file:
            if not line.isspace():
                yield begin, line
            begin += len(line)


def scan_rows(path: Path, begin: int = 0) -> Iterator[tuple[int, int, Row]]:
    """Yield the begin and end offset of every line with its row. A torn last line is skipped.

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
    """Parse the row on a line, also with NaN and Infinity; None if the line is not a JSON object."""
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        return parse_lenient(line)
    return row if isinstance(row, dict) else None


def parse_lenient(line: bytes) -> Row | None:
    """Parse a row that another tool wrote with NaN or Infinity; None for any other line.

    Such numbers become null. A reward that is not finite turns the row into a failure of kind `invalid_reward`.
    """
    if not any(word in line for word in _NOT_JSON):
        return None
    try:
        row = json.loads(line)
    except ValueError:
        return None
    if not isinstance(row, dict):
        return None
    reward = row.get(REWARD_KEY)
    row = {name: _null_if_not_finite(value) for name, value in row.items()}
    if isinstance(reward, float) and not math.isfinite(reward) and row.get(NG_FAILURE_CLASS_KEY) is None:
        del row[REWARD_KEY]
        kind, message = "invalid_reward", f"the reward is {reward}, which is not finite"
        detail = {"kind": kind, "phase": "verify", "retryable": False, "message": message}
        row |= {NG_FAILURE_CLASS_KEY: kind, NG_FAILURE_DETAIL_KEY: detail}
    return row


def _null_if_not_finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _null_if_not_finite(part) for name, part in value.items()}
    return [_null_if_not_finite(part) for part in value] if isinstance(value, list) else value


class RolloutReader:
    """Read single rows again by their byte offset. Each file is opened on first use and stays open."""

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
    """Remove an incomplete last line, which a crash may leave, and return the size of the file.

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
    """Return the offset after the last line break, reading backwards in blocks."""
    position = size
    while position > 0:
        begin = max(0, position - _BLOCK)
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
    """Append lines to a file. When `append` returns, the operating system has the complete line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._end = self._synced_end = repair(path)
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise unwritable_file(path, error) from error
        self._sync_error: OSError | None = None

    def append(self, line: bytes) -> int:
        """Append a line, which ends with a line break, and return the offset where it ends.

        Raises:
            StoreError: no part of the line is in the file, or an earlier sync failed.
        """
        if self._sync_error is not None:
            raise unwritable_file(self.path, self._sync_error)
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
                self._sync_error = error
        self._synced_end = end

    def close(self) -> None:
        self.sync()
        self._file.close()


class PeriodicSync:
    """Call `syncs` every `seconds` on a thread: a power cut loses at most that much, and writers do not wait."""

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
        number = 1 + sum(file.read(min(_BLOCK, begin - at)).count(b"\n") for at in range(0, begin, _BLOCK))
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
