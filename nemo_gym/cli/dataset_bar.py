"""How far work on files is: a bar on a terminal, a line now and then elsewhere. All of it on stderr."""

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

from nemo_gym.cli import output

PLAIN_PAUSE = 5.0


class Bar:
    """Told what is under way and how many bytes are done."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._told = time.monotonic()
        self._drawn: Any = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def _draw(self) -> None:
        """Begin to draw. It takes a thread, and whoever wants to fork before the first word may."""
        if self._drawn is None and not self._quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
            from rich.progress import TransferSpeedColumn as Speed

            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), Speed(), TimeRemainingColumn())
            self._drawn = Progress(*columns, console=Console(file=sys.stderr), transient=True)
            self._drawn.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._drawn is not None:
            self._drawn.stop()

    def __call__(self, what: str, done: int, total: int | None) -> None:
        self._draw()
        if self._drawn is not None:
            if what not in self._tasks:
                self._tasks[what] = self._drawn.add_task(what, total=total)
            self._drawn.update(self._tasks[what], completed=done, total=total)
        elif not self._quiet and time.monotonic() - self._told >= PLAIN_PAUSE:
            self._told = time.monotonic()
            share = f" of {total / 1e6:.0f} MB ({100 * done / total:.0f} %)" if total else " MB"
            output.talk(f"{what}: {done / 1e6:.0f}{share}")


@contextmanager
def tidy_when_terminated() -> Iterator[None]:
    """SIGTERM ends the block like Ctrl-C does, so that unfinished files are removed."""

    def interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a handler
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
