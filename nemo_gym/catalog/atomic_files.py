"""Write files atomically: a reader sees the earlier file or the complete new one, never a part."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import BinaryIO, Self

SUFFIX_LENGTH = 8
"""Hexadecimal digits at the end of the name of an unfinished file."""


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open `path` for writing bytes: it appears, or replaces the earlier one, only when the block ends normally.

    Missing folders are created. When the block raises, the file at `path` is unchanged and no other file remains.
    """
    with StagedFiles() as staged:
        yield staged.create(path)
        staged.commit()


class StagedFiles:
    """Several files that appear together on `commit`; leaving the block without it removes them.

    A killed process leaves the earlier files, and unfinished ones (`.<name>.<hex>`). An unfinished file is locked
    while it is written, so the next writer of the same file recognises and removes abandoned ones.
    """

    def __init__(self) -> None:
        self._targets: dict[Path, Path] = {}
        """Unfinished file -> its final path."""
        self._streams: list[BinaryIO] = []
        self._new_folders: list[Path] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for unfinished in self._targets:
            unfinished.unlink(missing_ok=True)
        for stream in self._streams:
            with suppress(OSError):  # the disk was full; the file is already removed
                stream.close()
        for folder in reversed(self._new_folders):
            if folder.exists() and not any(folder.iterdir()):
                folder.rmdir()

    def create(self, path: Path) -> BinaryIO:
        """Open a stream whose content becomes the file `path`. Missing folders are created at once.

        Folder and file are recorded before they are created: an interrupt can arrive right after.
        """
        self._new_folders += reversed([folder for folder in path.parents if not folder.exists()])
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path)
        unfinished = path.with_name(f".{path.name}.{token_hex(SUFFIX_LENGTH // 2)}")
        self._targets[unfinished] = path
        stream = unfinished.open("xb")
        self._streams.append(stream)
        with suppress(OSError):  # a file system without locks keeps abandoned files
            fcntl.flock(stream, fcntl.LOCK_EX)
        return stream

    def write(self, path: Path, content: bytes) -> None:
        """Stage a file with this content."""
        self.create(path).write(content)

    def commit(self) -> None:
        """Move every file to its final path, replacing existing files."""
        for stream in self._streams:
            stream.flush()
        for unfinished, path in list(self._targets.items()):
            unfinished.replace(path)
            del self._targets[unfinished]


def _remove_abandoned(path: Path) -> None:
    for unfinished in path.parent.glob(f".{escape(path.name)}.{'[0-9a-f]' * SUFFIX_LENGTH}"):
        with suppress(OSError), unfinished.open("rb") as stream:  # another process writes it, or owns it
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            unfinished.unlink(missing_ok=True)
