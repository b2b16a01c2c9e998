"""A lock that keeps a second collector from the same output. The system releases it when its holder dies."""

import contextlib
import errno
import fcntl
import logging
import os
import socket
from pathlib import Path

import orjson

from nemo_gym.journal.lines import StoreError, unwritable_file

logger = logging.getLogger("nemo_gym.rollouts")

_HELD = frozenset({errno.EWOULDBLOCK, errno.EACCES})
_MAX_TRIES = 100
"""How often a lock file is opened again because its holder removed it in between."""


class OutputInUse(StoreError):
    """Another process collects into the same output."""


class RunLock:
    """Held from `acquire` to `release`, or until the process ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            OutputInUse: another process holds it; the message names that process.
            StoreError: the folder cannot be written.
        """
        for _ in range(_MAX_TRIES):
            descriptor = self._open()
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in _HELD:
                    holder = os.pread(descriptor, 4096, 0)
                    os.close(descriptor)
                    raise self._in_use(holder) from None
                # A file system without locks: better to collect unguarded than not at all.
                logger.warning("%s cannot be locked (%s): start no second collector", self.path, error.strerror)
            if _is_same_file(descriptor, self.path):
                self._descriptor = descriptor
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, orjson.dumps({"pid": os.getpid(), "host": socket.gethostname()}), 0)
                return
            os.close(descriptor)  # its holder removed it between our opening and our locking
        raise StoreError("the lock keeps disappearing", where=str(self.path), fix="try again")

    def release(self) -> None:
        """Release the lock and remove its file. Safe to repeat."""
        if self._descriptor is None:
            return
        try:
            with contextlib.suppress(OSError):
                self.path.unlink()  # while it is still held: no other process can have locked this file
        finally:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise unwritable_file(self.path, error) from error

    def _in_use(self, content: bytes) -> OutputInUse:
        try:
            holder = orjson.loads(content)
            process = f"process {holder['pid']} on {holder['host']}"
        except (orjson.JSONDecodeError, KeyError, TypeError):
            process = "another process"
        return OutputInUse(
            f"{process} is collecting into this output",
            where=str(self.path),
            fix="wait for it, or choose another output; the lock of a process that dies is released",
        )


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
