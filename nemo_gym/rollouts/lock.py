"""One collector per output: a lock that ends with its holder, however that ends."""

import contextlib
import errno
import fcntl
import logging
import os
import socket
from pathlib import Path

import orjson

from nemo_gym.rollouts.jsonl import StoreError, unwritable

logger = logging.getLogger("nemo_gym.rollouts")

_HELD = frozenset({errno.EWOULDBLOCK, errno.EACCES})
_TRIES = 100
"""A file that its holder removes while it is being opened is opened again, so often at most."""


class OutputInUse(StoreError):
    """Somebody else collects into the same output."""


class RunLock:
    """Held from `acquire` to `release`, or until the process is gone: the system lets go of it, not we."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            OutputInUse: somebody has it; the message says who.
            StoreError: the folder cannot be written.
        """
        for _ in range(_TRIES):
            descriptor = self._opened()
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in _HELD:
                    holder = os.pread(descriptor, 4096, 0)
                    os.close(descriptor)
                    raise self._in_use(holder) from None
                # A file system without locks: better to collect unguarded than not at all.
                logger.warning("%s cannot be locked (%s): start no second collector", self.path, error.strerror)
            if _is_still_there(descriptor, self.path):
                self._descriptor = descriptor
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, orjson.dumps({"pid": os.getpid(), "host": socket.gethostname()}), 0)
                return
            os.close(descriptor)  # its holder removed it between our opening and our locking
        raise StoreError("the lock keeps disappearing", where=str(self.path), fix="try again")

    def release(self) -> None:
        """Let go of the lock and remove its file. Doing it twice changes nothing."""
        if self._descriptor is None:
            return
        try:
            with contextlib.suppress(OSError):
                self.path.unlink()  # while it is still held: nobody can have locked this very file
        finally:
            os.close(self._descriptor)
            self._descriptor = None

    def _opened(self) -> int:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise unwritable(self.path, error) from error

    def _in_use(self, holder: bytes) -> OutputInUse:
        try:
            said = orjson.loads(holder)
            who = f"process {said['pid']} on {said['host']}"
        except (orjson.JSONDecodeError, KeyError, TypeError):
            who = "another process"
        return OutputInUse(
            f"{who} is collecting into this output",
            where=str(self.path),
            fix="wait for it, or choose another output; a holder that dies lets go by itself",
        )


def _is_still_there(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
