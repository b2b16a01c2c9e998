"""Write files atomically: at any time a path has its previous content or the complete new content."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import BinaryIO, Self

from nemo_gym.errors import DISK_FULL

SUFFIX_LENGTH = 8
"""Number of hexadecimal digits at the end of the name of a temporary file."""


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open `path` for writing bytes; the file is created or replaced only if the block does not raise.

    Missing folders are created.
    """
    with StagedFiles() as staged:
        yield staged.create(path)
        staged.commit()


class StagedFiles:
    """Temporary files that `commit` moves to their final paths; without `commit` they are removed.

    A killed process leaves temporary files (`.<name>.<hex>`). A temporary file is locked while it is written, so the
    next writer of the same path recognises abandoned ones and removes them.
    """

    def __init__(self) -> None:
        self._targets: dict[Path, Path] = {}
        """Temporary file -> final path."""
        self._streams: list[BinaryIO] = []
        self._new_folders: list[Path] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        targets = list(self._targets.values())
        if targets and isinstance(error, OSError) and error.errno in DISK_FULL and error.filename is None:
            # The error of a write names no file; of several files, it may be any.
            error.filename = str(targets[0] if len(targets) == 1 else targets[0].parent)
        for temporary in self._targets:
            temporary.unlink(missing_ok=True)
        for stream in self._streams:
            with suppress(OSError):  # the disk is full; the file is already removed
                stream.close()
        for folder in reversed(self._new_folders):
            if folder.exists() and not any(folder.iterdir()):
                folder.rmdir()

    def create(self, path: Path) -> BinaryIO:
        """Open a temporary file that `commit` moves to `path`; create missing folders.

        Folders and file are recorded before they are created, because an interrupt can follow immediately.
        """
        self._new_folders += reversed([folder for folder in path.parents if not folder.exists()])
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path)
        temporary = path.with_name(f".{path.name}.{token_hex(SUFFIX_LENGTH // 2)}")
        self._targets[temporary] = path
        stream = temporary.open("xb")
        self._streams.append(stream)
        with suppress(OSError):  # without lock support, abandoned files are not removed
            fcntl.flock(stream, fcntl.LOCK_EX)
        return stream

    def write(self, path: Path, content: bytes) -> None:
        """Stage a file with this content."""
        self.create(path).write(content)

    def commit(self) -> None:
        """Move every file to its final path, replacing existing files."""
        for stream in self._streams:
            stream.flush()
        for temporary, path in list(self._targets.items()):
            temporary.replace(path)
            del self._targets[temporary]


def _remove_abandoned(path: Path) -> None:
    """Remove the unlocked temporary files of `path`."""
    for temporary in path.parent.glob(f".{escape(path.name)}.{'[0-9a-f]' * SUFFIX_LENGTH}"):
        with suppress(OSError), temporary.open("rb") as stream:  # another process writes to it, or another user owns it
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            temporary.unlink(missing_ok=True)
