"""The progress of a collection on the screen: lines that update on a terminal, a plain line now and then elsewhere.

All of it goes to stderr. Nothing is shown of what is over in a second.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from nemo_gym.cli import output
from nemo_gym.cli.progress import Progress
from nemo_gym.metrics.intervals import Mean
from nemo_gym.rollouts.flight import Flight

QUIET_SECONDS = 1.0
REDRAW_SECONDS = 0.25
ASK_SECONDS = 3.0
SHOWN_FLIGHTS, ASKED_FLIGHTS = 3, 16
OLD_SECONDS = 5.0
"""Only rollouts under way for longer than this are worth a line."""
PLAIN_PAUSES = ((60.0, 5.0), (600.0, 15.0), (3600.0, 60.0))
"""How far into a run how often a plain line is written; later, every five minutes."""
LATE_PLAIN_PAUSE = 300.0

Waiting = Callable[[Sequence[Flight]], Awaitable[dict[str, str]]]
"""What each of these rollouts waits for, by the text of its key."""


async def nobody_knows(flights: Sequence[Flight]) -> dict[str, str]:  # noqa: ARG001 - the signature of `Waiting`
    """For servers that cannot be asked."""
    return {}


def is_terminal() -> bool:
    """Whether stderr is a place where lines can be rewritten."""
    return sys.stderr.isatty() and os.environ.get("TERM") not in (None, "", "dumb")


@asynccontextmanager
async def shown(progress: Progress, *, quiet: bool = False, waiting: Waiting = nobody_knows) -> AsyncIterator[None]:
    """Show `progress` while the block runs."""
    if quiet:
        yield
        return
    view = View(progress, waiting)
    drawing = asyncio.create_task(view.draw() if is_terminal() else view.tell())
    try:
        yield
    finally:
        drawing.cancel()
        with suppress(asyncio.CancelledError):
            await drawing


class View:
    """Draws, and now and then asks what the oldest rollouts wait for."""

    def __init__(self, progress: Progress, waiting: Waiting = nobody_knows) -> None:
        self._progress = progress
        self._waiting = waiting
        self._answers: dict[str, str] = {}
        self._asked_at = 0.0
        self._asking: asyncio.Task[dict[str, str]] | None = None

    async def draw(self) -> None:
        """Redraw a few lines until cancelled; then they are gone, for the report says it all."""
        await asyncio.sleep(QUIET_SECONDS)
        from rich.console import Console
        from rich.live import Live

        console = Console(file=sys.stderr, highlight=False, soft_wrap=False)
        with Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False) as live:
            while True:
                self._progress.look()
                live.update(self._rendered(console.width), refresh=True)
                self._ask()
                await asyncio.sleep(REDRAW_SECONDS)

    async def tell(self) -> None:
        """Write a line now and then until cancelled."""
        while True:
            await asyncio.sleep(self._plain_pause())
            self._progress.look()
            self._ask()
            if self._asking is not None:
                await asyncio.wait({self._asking})  # it has an end, and nobody waits for this line
                self._ask()
            output.talk(" · ".join([*headline(self._progress), *self._oldest_in_short()]))

    def _plain_pause(self) -> float:
        passed = time.monotonic() - self._progress.began
        return next((pause for until, pause in PLAIN_PAUSES if passed < until), LATE_PLAIN_PAUSE)

    def _rendered(self, width: int) -> Any:
        from rich.text import Text

        text = Text(no_wrap=True, overflow="ellipsis")
        for number, line in enumerate(self.lines(width)):
            text.append(("\n" if number else "") + line, style="bold" if not number else None)
        return text

    def lines(self, width: int) -> list[str]:
        """What the screen shows, no line wider than it."""
        lines = flowed(headline(self._progress, bar=max(0, min(30, width - 50))), width)
        for flight in self._old():
            awaited = self._answers.get(str(flight.key)) or flight.waiting_for
            told = f"  {short_time(flight.seconds):>7}  {flight.key}  {flight.agent}"
            lines.append(clipped(told + (f"  waits for {awaited}" if awaited else ""), width))
        return lines

    def _old(self, count: int = SHOWN_FLIGHTS) -> list[Flight]:
        return [flight for flight in self._progress.flights.oldest(count) if flight.seconds >= OLD_SECONDS]

    def _oldest_in_short(self) -> list[str]:
        oldest = self._old()[:1]
        told = [f"oldest {short_time(f.seconds)} ({f.key})" for f in oldest]
        awaited = [self._answers.get(str(f.key)) or f.waiting_for for f in oldest]
        return [f"{text} waits for {who}" if who else text for text, who in zip(told, awaited, strict=True)]

    def _ask(self) -> None:
        """Ask again every few seconds, never twice at once, and use what was answered last."""
        if self._asking is not None and self._asking.done():
            asked, self._asking = self._asking, None
            if not asked.cancelled() and asked.exception() is None:
                self._answers = asked.result()
        now = time.monotonic()
        old = self._old(ASKED_FLIGHTS)  # more than are shown: the oldest may have landed when the answer comes
        if old and self._asking is None and now - self._asked_at >= ASK_SECONDS:
            self._asked_at = now
            self._asking = asyncio.create_task(_answered(self._waiting, old))


async def _answered(waiting: Waiting, flights: Sequence[Flight]) -> dict[str, str]:
    return await asyncio.wait_for(waiting(flights), ASK_SECONDS)


def headline(progress: Progress, bar: int = 0) -> list[str]:
    """How it stands, as pieces that may be broken between."""
    if progress.planned is None and progress.reading is not None:
        rows, share = progress.reading
        return [f"reading rows {drawn_bar(share, bar)} · {rows:,} so far"]
    pieces = []
    total, done = progress.total, progress.done
    if total:
        pieces.append(f"{done}/{total} {drawn_bar(done / total, bar)}".rstrip())
    elif total is None:
        pieces.append(f"{done} done")
    pieces.append(f"{progress.per_second:.1f}/s")
    pieces.append(f"{len(progress.flights)} running")
    left = progress.seconds_left()
    if left is not None:
        pieces.append(f"ETA {short_time(left)}")
    mean = progress.mean()
    if mean is not None:
        pieces.append(f"mean {short_mean(mean)}")
    if progress.tokens:
        pieces.append(f"{short_number(progress.tokens)} tokens ({short_number(progress.tokens_per_second)}/s)")
    for name, counts in (("failed", progress.tally.failed), ("limit", progress.tally.limits)):
        if counts:
            kinds = ", ".join(f"{kind} {count}" for kind, count in counts.most_common(4))
            pieces.append(f"{counts.total()} {name} ({kinds}{', …' if len(counts) > 4 else ''})")
    return pieces


def short_mean(mean: Mean) -> str:
    """`0.612 ± 0.021`."""
    return f"{mean.value:.3f}" + (f" ± {mean.half_width:.3f}" if mean.half_width is not None else "")


def short_time(seconds: float) -> str:
    """`0:07`, `12:05`, `3:00:00`."""
    whole = max(0, round(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def short_number(value: float) -> str:
    """`950`, `12.3k`, `4.6M`, `1.2G`."""
    size = value
    for letter in ("", "k", "M"):
        if size < 1000:
            return f"{size:.0f}" if not letter else f"{size:.1f}{letter}"
        size /= 1000
    return f"{size:.1f}G"


def drawn_bar(share: float, width: int) -> str:
    """A bar of that many characters; none where there is no room for it."""
    if width < 10:
        return f"{100 * share:.0f} %"
    filled = round(min(1.0, share) * width)
    return "━" * filled + "─" * (width - filled)


def flowed(pieces: Sequence[str], width: int, between: str = " · ") -> list[str]:
    """The pieces in as few lines as they need, none wider than `width`."""
    lines: list[str] = []
    for piece in pieces:
        if lines and len(lines[-1]) + len(between) + len(piece) <= width:
            lines[-1] += between + piece
        else:
            lines.append(clipped(piece, width))
    return lines


def clipped(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"
