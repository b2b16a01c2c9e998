"""A file lock that prevents two collectors from using the same output. It is released when its process exits."""

import contextlib
import errno
import fcntl
import logging
import os
import socket
from pathlib import Path

import orjson

from nemo_gym.journal import StoreError, unwritable_file

logger = logging.getLogger("nemo_gym.rollouts")

_HELD_ERRORS = frozenset({errno.EWOULDBLOCK, errno.EACCES})
_MAX_TRIES = 100
"""How often locking is tried; a try fails if the holder removes the file between opening and locking it."""


class OutputInUse(StoreError):
    """Another process collects into the same output."""


class RunLock:
    """The lock of one output, held from `acquire` to `release` or until the process exits.

    `subject` is what the lock protects, as the error names it.
    """

    def __init__(self, path: Path, subject: str = "output") -> None:
        self.path = path
        self._subject = subject
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            OutputInUse: another process holds the lock; the message names that process.
            StoreError: the folder cannot be written.
        """
        for _ in range(_MAX_TRIES):
            descriptor = self._open()
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in _HELD_ERRORS:
                    holder = os.pread(descriptor, 4096, 0)
                    os.close(descriptor)
                    raise self._in_use(holder) from None
                # The file system does not support locks: continue without one.
                logger.warning("%s cannot be locked (%s): start no second collector", self.path, error.strerror)
            if _is_same_file(descriptor, self.path):
                self._descriptor = descriptor
                self._write_holder(descriptor)
                return
            os.close(descriptor)  # the holder removed the file between opening and locking it here
        raise StoreError("the lock keeps disappearing", where=str(self.path), fix="try again")

    def release(self) -> None:
        """Release the lock and remove its file; do nothing if it is not held."""
        if self._descriptor is None:
            return
        try:
            with contextlib.suppress(OSError):
                self.path.unlink()  # before the lock is released, so that no other process has locked this file
        finally:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise unwritable_file(self.path, error) from error

    def _write_holder(self, descriptor: int) -> None:
        """Write which process holds the lock; release it if the disk is full."""
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, orjson.dumps({"pid": os.getpid(), "host": socket.gethostname()}), 0)
        except OSError as error:
            self.release()
            raise unwritable_file(self.path, error) from error

    def _in_use(self, content: bytes) -> OutputInUse:
        """Build the error for a held lock; `content` is the lock file's content, which names the holder."""
        try:
            holder = orjson.loads(content)
            process = f"process {holder['pid']} on {holder['host']}"
        except (orjson.JSONDecodeError, KeyError, TypeError):
            process = "another process"
        return OutputInUse(
            f"{process} is collecting into this {self._subject}",
            where=str(self.path),
            fix=f"wait until it ends, or choose another {self._subject}",
        )


def _is_same_file(descriptor: int, path: Path) -> bool:
    """Return whether the path still names the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
