"""Write to the terminal: results to stdout, notices, errors and progress to stderr. No other module prints."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from typing import Any, Self

from nemo_gym.config.secret_text import mask_text
from nemo_gym.errors import GymError

NOTICE_SECONDS = 5.0
BAR_SECONDS = 0.1
"""Shortest time between two updates of a bar: callers may report millions of them."""


def write(text: str) -> None:
    """Write a result to stdout."""
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
    sys.stdout.flush()


def write_json(value: Any) -> None:
    """Write a result to stdout as one JSON document."""
    import orjson  # not needed by --help

    write(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def write_result(facts: Any, print_text: Callable[[], None], *, as_json: bool) -> None:
    """Write a result to stdout: `facts` as JSON, or the text that `print_text` prints."""
    if as_json:
        write_json(facts)
    else:
        print_text()


def write_table(rows: Sequence[Sequence[str]]) -> None:
    """Write rows to stdout with aligned columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    for row in rows:
        write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


CLEAR_LINE = "\r\x1b[K"


class StatusLine:
    """The line of `show_status`: whether it is on the terminal, so that the next line replaces it."""

    is_shown = False


def notify(text: str) -> None:
    """Write a line to stderr, without secrets."""
    start = CLEAR_LINE if StatusLine.is_shown else ""
    StatusLine.is_shown = False
    sys.stderr.write(f"{start}{mask_text(text)}\n")
    sys.stderr.flush()


def warn(text: str) -> None:
    notify(f"Warning: {text}")


def report_error(text: str) -> None:
    notify(f"Error: {text}")


def report_gym_error(error: GymError) -> None:
    """Report an error; on a terminal also print the command that explains it."""
    report_error(str(error))
    if sys.stderr.isatty():
        notify(f"  more: gym explain {error.code}")


def did_you_mean(word: str, names: Iterable[str], otherwise: str = "") -> str:
    """Return a sentence with the name most similar to `word`, or `otherwise` if no name is similar."""
    close = get_close_matches(word, list(names), n=1)
    return f" Did you mean `{close[0]}`?" if close else otherwise


def show_status(text: str) -> None:
    """Show a line that the next call replaces, on a terminal only. An empty text clears it."""
    is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    if is_terminal and (text or StatusLine.is_shown):
        sys.stderr.write(f"{CLEAR_LINE}{text}")
        sys.stderr.flush()
        StatusLine.is_shown = bool(text)


def clip(text: str, width: int) -> str:
    """Shorten a text to `width` characters."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


class ThrottledNotice:
    """Prints notices at least NOTICE_SECONDS apart, the first one that long after the start; drops the others."""

    def __init__(self) -> None:
        self._printed_at = time.monotonic()

    def __call__(self, text: str) -> None:
        if time.monotonic() - self._printed_at >= NOTICE_SECONDS:
            self._printed_at = time.monotonic()
            notify(text)

    def show_fraction(self, label: str, done: int, total: int | None) -> None:
        """Print `done` bytes as a percentage of `total`, or in MB if the total is unknown."""
        self(f"{label}: {100 * done / total:.0f} %" if total else f"{label}: {done / 1e6:.0f} MB")


class TransferBar:
    """Shows how many bytes are done: as a bar on a terminal, as a line every few seconds elsewhere."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._notice = ThrottledNotice()
        self._bars: Any = None
        self._task_ids: dict[str, Any] = {}
        self._updated_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, label: str, done: int, total: int | None) -> None:
        """Show the bytes of the transfer `label`; a later call with the same label updates its bar."""
        if self._quiet:
            return
        if not sys.stderr.isatty():
            suffix = f" of {total / 1e6:.0f} MB ({100 * done / total:.0f} %)" if total else " MB"
            self._notice(f"{label}: {done / 1e6:.0f}{suffix}")
            return
        if self._bars is None:
            self._start_bars()  # starts a thread: not before the first call, because the caller may fork
        now = time.monotonic()
        if label not in self._task_ids:
            self._task_ids[label] = self._bars.add_task(label, total=total)
        elif now - self._updated_at < BAR_SECONDS and done != total:
            return
        self._updated_at = now
        self._bars.update(self._task_ids[label], completed=done, total=total)

    def _start_bars(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.progress import TransferSpeedColumn as SpeedColumn

        label = TextColumn("{task.description}")
        columns = (label, BarColumn(), DownloadColumn(), SpeedColumn(), TimeRemainingColumn())
        self._bars = Progress(*columns, console=Console(file=sys.stderr), transient=True)
        self._bars.start()


@contextmanager
def transfer_meter(label: str) -> Iterator[Callable[[int, int | None], None]]:
    """Yield a function of (bytes done, total bytes) that updates a bar on a terminal and does nothing elsewhere."""
    with TransferBar(quiet=not sys.stderr.isatty()) as bar:
        yield partial(bar, label)
