"""Several files that appear together when all is well, or not at all."""

import fcntl
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import BinaryIO, Self

ENDING = 8
"""Hexadecimal digits at the end of the name of an unfinished file."""


class StagedFiles:
    """Files written under other names until `commit`; leaving the block without it removes them.

    A process that is killed leaves what was there before, and unfinished files (`.<name>.<hex>`). Each is locked while
    somebody works on it, so the next one to write the same file can tell that it was left behind, and removes it.
    """

    def __init__(self) -> None:
        self._unfinished: dict[Path, Path] = {}
        """Where each is to appear."""
        self._streams: list[BinaryIO] = []
        self._new_folders: list[Path] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for unfinished in self._unfinished:
            unfinished.unlink(missing_ok=True)
        for stream in self._streams:
            _close(stream)
        for folder in reversed(self._new_folders):
            if folder.exists() and not any(folder.iterdir()):
                folder.rmdir()

    def create(self, path: Path) -> BinaryIO:
        """A stream whose content becomes the file `path`. Missing folders are made at once.

        What is about to be made is noted before it is: an interrupt can come the moment it is there.
        """
        self._new_folders += reversed([folder for folder in path.parents if not folder.exists()])
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(path)
        unfinished = path.with_name(f".{path.name}.{token_hex(ENDING // 2)}")
        self._unfinished[unfinished] = path
        stream = unfinished.open("xb")
        self._streams.append(stream)
        fcntl.flock(stream, fcntl.LOCK_EX)
        return stream

    def write(self, path: Path, content: bytes) -> None:
        """A whole file at once."""
        self.create(path).write(content)

    def commit(self) -> None:
        """Put every file in its place, over what is there."""
        for stream in self._streams:
            stream.flush()
        for unfinished, path in list(self._unfinished.items()):
            unfinished.replace(path)
            del self._unfinished[unfinished]


def _remove_leftovers(path: Path) -> None:
    for found in path.parent.glob(f".{path.name}.{'[0-9a-f]' * ENDING}"):
        try:
            with found.open("rb") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                found.unlink(missing_ok=True)
        except OSError:  # somebody is writing it, or we may not touch it
            continue


def _close(stream: BinaryIO) -> None:
    try:
        stream.close()
    except OSError:  # the disk was full; the file is gone already
        return
