"""Files of one JSON object per line that survive being cut anywhere."""

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import orjson

from nemo_gym.errors import GymError
from nemo_gym.net.encode import encode_json
from nemo_gym.rollouts.foreign import foreign_row
from nemo_gym.rollouts.job import Row
from nemo_gym.rollouts.syncing import sync_folder

_BLOCK = 1 << 16


class StoreError(GymError, OSError):
    """Results could not be written or read back; what was written before is whole."""


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a file, one at a time; a file that is not there has none. A torn last line is left out.

    Raises:
        StoreError: a line that is not the last one is damaged.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            row = row_of(line)
            if row is not None:
                yield row
            elif line.endswith(b"\n") and not line.isspace():
                raise damaged(f"{path}:{number}")


def repair(path: Path) -> int:
    """Make a file end with a whole line and return its size: what a crash cut off is removed.

    A last line that lacks only its line break is whole and keeps its place.
    """
    if not path.exists():
        return 0
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        begin = _begin_of_last_line(file.fileno(), size)
        if begin == size:
            return size
        file.seek(begin)
        if row_of(file.read()) is None:
            file.truncate(begin)
            return begin
        file.write(b"\n")
        return size + 1


def write_rows(
    path: Path,
    rows: Iterable[Row],
    *,
    first: Callable[[], None] = lambda: None,
    written: Callable[[Row, int], None] = lambda _row, _end: None,
) -> int:
    """Write a whole file and return how many rows it has; it appears complete or, if `rows` raises, not at all.

    `first` is called when all rows are written, just before the file appears; `written` after each row, with the
    offset where its line ends.
    """
    partial = path.with_name(f"{path.name}.partial")
    count = end = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            for row in rows:
                line = encode_json(row) + b"\n"
                file.write(line)
                end += len(line)
                count += 1
                written(row, end)
            file.flush()
            os.fsync(file.fileno())  # a name must not appear before its content is safe
        first()
        partial.replace(path)
        sync_folder(path.parent)
    except StoreError:
        raise
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    return count


class LineWriter:
    """Appends rows to a file, each whole and handed to the system before `append` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._end = self._synced = repair(path)
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise unwritable(path, error) from error
        self._lost: OSError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def append(self, row: Row) -> int:
        """Add a row and return where its line ends.

        Raises:
            StoreError: it is not in the file, and no part of it is; or the disk lost what was written before.
        """
        if self._lost is not None:
            raise unwritable(self.path, self._lost)
        line = encode_json(row) + b"\n"
        try:
            written = 0
            while written < len(line):
                written += self._file.write(line[written:])
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(self._end)
            raise unwritable(self.path, error) from error
        self._end += len(line)
        return self._end

    def sync(self) -> None:
        """Force what was written so far onto the disk. On any thread; a disk that fails at it is told by `append`."""
        end = self._end
        if end == self._synced or self._file.closed:
            return
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EROFS):  # a pipe or the like has no disk
                self._lost = error
        self._synced = end

    def close(self) -> None:
        self.sync()
        self._file.close()


def damaged(where: str) -> StoreError:
    """The error for a line that cannot be read and is not the last one."""
    return StoreError(
        "this line is damaged and is not the last one",
        where=where,
        fix="remove the line; its rollout is run again on resume",
    )


def unwritable(path: Path, error: OSError) -> StoreError:
    """The error for a file that the system does not let us write."""
    return StoreError(
        f"cannot write: {error.strerror or error}",
        where=str(path),
        fix="make room or choose another output; what is stored is whole and can be resumed",
    )


def row_of(line: bytes) -> Row | None:
    """The row a line holds, or None when it holds none. One with NaN or Infinity is read as `foreign_row` says."""
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        return foreign_row(line)
    return row if isinstance(row, dict) else None


def _begin_of_last_line(descriptor: int, size: int) -> int:
    """The offset after the last line break, read backwards in blocks."""
    position = size
    while position > 0:
        begin = max(0, position - _BLOCK)
        found = os.pread(descriptor, position - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        position = begin
    return 0
