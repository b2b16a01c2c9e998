"""Forcing what was written onto the disk now and then, beside the work: what a power cut can cost has a bound.

A line is handed to the system the moment it is known, which every crash of a program survives. Only a machine that
loses power forgets what its system has not written yet.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

LAST_SECONDS = 60.0
"""How long the end of a run waits for a disk that is still busy."""


class Syncing:
    """A thread that calls `syncs` every `seconds` until it is stopped. Nobody else is held up by a slow disk."""

    def __init__(self, syncs: Sequence[Callable[[], None]], seconds: float) -> None:
        self._syncs = syncs
        self._seconds = seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="sync", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends after what it is doing; safe to repeat."""
        self._stopped.set()
        self._thread.join(LAST_SECONDS)

    def _work(self) -> None:
        while not self._stopped.wait(self._seconds):
            for sync in self._syncs:
                sync()


def sync_folder(folder: Path) -> None:
    """Force the names in a folder onto the disk, where the system knows how."""
    with contextlib.suppress(OSError):  # some file systems do not
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
