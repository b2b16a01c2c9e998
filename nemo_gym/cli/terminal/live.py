"""Show the progress of a collection on stderr: redrawn lines on a terminal, plain lines at growing intervals elsewhere.

Nothing is shown for runs of less than a second.
"""

import asyncio
import math
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from nemo_gym.cli.terminal import output
from nemo_gym.cli.terminal.progress import Progress
from nemo_gym.rollouts.collect import RolloutInFlight
from nemo_gym.rollouts.dispatch import NodeStatistics
from nemo_gym.wire.stored_rollout import RolloutId

QUIET_SECONDS = 1.0
REDRAW_SECONDS = 0.25
QUERY_SECONDS = REPLY_SECONDS = 3.0
SHOWN_ROLLOUTS, QUERIED_ROLLOUTS = 3, 16
SHOWN_NODES = 12
OLD_SECONDS = 5.0
"""Rollouts in flight for longer than this get a line."""
PLAIN_LINE_PAUSES = ((60.0, 5.0), (600.0, 15.0), (3600.0, 60.0), (math.inf, 300.0))
"""Pairs of (elapsed seconds, pause): until that time of a run, plain lines are that many seconds apart."""

WaitQuery = Callable[[Sequence[RolloutId]], Awaitable[Mapping[RolloutId, str]]]
"""Returns the call that each of these rollouts waits for."""


def is_terminal() -> bool:
    """Return whether lines on stderr can be redrawn."""
    return sys.stderr.isatty() and os.environ.get("TERM") not in (None, "", "dumb")


@asynccontextmanager
async def showing_progress(
    progress: Progress, *, quiet: bool = False, wait_query: WaitQuery | None = None
) -> AsyncIterator[None]:
    """Show `progress` while the block runs."""
    if quiet:
        yield
        return
    view = LiveView(progress, wait_query)
    drawing = asyncio.create_task(view.redraw() if is_terminal() else view.print_lines())
    try:
        yield
    finally:
        drawing.cancel()
        with suppress(asyncio.CancelledError):
            await drawing
        await view.end_query()


class LiveView:
    """Draws the progress and periodically queries the calls that the oldest rollouts wait for."""

    def __init__(self, progress: Progress, wait_query: WaitQuery | None = None) -> None:
        self._progress = progress
        self._wait_query = wait_query
        self._awaited_calls: Mapping[RolloutId, str] = {}
        self._queried_at = 0.0
        self._query: asyncio.Task[Mapping[RolloutId, str]] | None = None

    async def end_query(self) -> None:
        """Cancel a pending query and read its result: an exception that stays unread is logged with a traceback."""
        query, self._query = self._query, None
        if query is None:
            return
        query.cancel()
        await asyncio.wait({query})
        if not query.cancelled():
            query.exception()

    async def redraw(self) -> None:
        """Redraw the lines of the view until cancelled, then remove them."""
        await asyncio.sleep(QUIET_SECONDS)
        from rich.console import Console
        from rich.live import Live

        console = Console(file=sys.stderr, highlight=False, soft_wrap=False)
        with Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False) as live:
            while True:
                self._progress.take_sample()
                live.update(self.rendered_text(console.width), refresh=True)
                self._update_query()
                await asyncio.sleep(REDRAW_SECONDS)

    async def print_lines(self) -> None:
        """Print a line periodically until cancelled."""
        while True:
            elapsed = time.monotonic() - self._progress.start_time
            await asyncio.sleep(next(pause for until, pause in PLAIN_LINE_PAUSES if elapsed < until))
            self._progress.take_sample()
            self._update_query()
            if self._query is not None:
                await asyncio.wait({self._query})  # the query has a timeout
                self._update_query()
            oldest = [
                f"oldest {format_time(rollout.seconds)} ({rollout.key}){self._wait_text(rollout)}"
                for rollout in self._old_rollouts(1)
            ]
            output.notify(" · ".join([*headline(self._progress), *oldest]))

    def rendered_text(self, width: int) -> Any:
        """Return the lines of the view as a rich text."""
        from rich.text import Text

        first_line, *others = self.lines(width)
        return Text("\n", no_wrap=True, overflow="ellipsis").join([Text(first_line, style="bold"), *map(Text, others)])

    def lines(self, width: int) -> list[str]:
        """Return the lines of the view, each at most `width` characters long."""
        lines = join_pieces(headline(self._progress, bar_width=max(0, min(30, width - 50))), width)
        for rollout in self._old_rollouts():
            facts = f"{format_time(rollout.seconds):>7}  {rollout.key}  {rollout.agent}"
            lines.append(output.clip(f"  {facts} {self._wait_text(rollout)}".rstrip(), width))
        lines += [output.clip(f"  {describe_node(node)}", width) for node in self._progress.nodes()[:SHOWN_NODES]]
        return lines

    def _wait_text(self, rollout: RolloutInFlight) -> str:
        call = self._awaited_calls.get(rollout.key.rollout_id) or rollout.waiting_for
        return f" waits for {call}" if call else ""

    def _old_rollouts(self, count: int = SHOWN_ROLLOUTS) -> list[RolloutInFlight]:
        return [rollout for rollout in self._progress.in_flight.oldest(count) if rollout.seconds >= OLD_SECONDS]

    def _update_query(self) -> None:
        """Store the result of a finished query; start the next one if none is running and QUERY_SECONDS have passed."""
        if self._query is not None and self._query.done():
            query, self._query = self._query, None
            if not query.cancelled() and query.exception() is None:
                self._awaited_calls = query.result()
        now = time.monotonic()
        rollouts = self._old_rollouts(QUERIED_ROLLOUTS)  # more than are shown: some may end before the reply
        is_due = self._query is None and now - self._queried_at >= QUERY_SECONDS
        if rollouts and is_due and self._wait_query is not None:
            self._queried_at = now
            reply = self._wait_query([rollout.key.rollout_id for rollout in rollouts])
            self._query = asyncio.create_task(asyncio.wait_for(reply, REPLY_SECONDS))


def headline(progress: Progress, bar_width: int = 0) -> list[str]:
    """Return the counts, rates and mean of a run as short texts; a line may break between two of them."""
    if progress.plan is None and progress.reading is not None:
        rows, fraction = progress.reading
        return [f"reading rows {format_bar(fraction, bar_width)} · {rows:,} so far"]
    pieces = []
    total, done = progress.total, progress.ended_count
    if total:
        pieces.append(f"{done}/{total} {format_bar(done / total, bar_width)}".rstrip())
    elif total is None:
        pieces.append(f"{done} done")
    pieces.append(f"{progress.rate.per_second():.1f}/s")
    pieces.append(f"{len(progress.in_flight)} running")
    if (seconds_left := progress.seconds_left()) is not None:
        pieces.append(f"ETA {format_time(seconds_left)}")
    if (mean := progress.mean()) is not None:
        interval = "" if mean.low is None else f" [{mean.low:.3f}, {mean.high:.3f}]"
        pieces.append(f"mean {mean.value:.3f}{interval}")
    if progress.tokens:
        rate = format_number(progress.token_rate.per_second())
        pieces.append(f"{format_number(progress.tokens)} tokens ({rate}/s)")
    for name, counts in (("failed", progress.tally.failed), ("limit", progress.tally.limits)):
        if counts:
            kinds = ", ".join(f"{kind} {count}" for kind, count in counts.most_common(4))
            pieces.append(f"{counts.total()} {name} ({kinds}{', …' if len(counts) > 4 else ''})")
    return pieces


def describe_node(node: NodeStatistics) -> str:
    """Format as `node-1  1,204 done, 33 running, p95 2.1 s`, or with the reason of a loss."""
    if node.loss is not None:
        return f"{node.name}  {node.outcomes:,} done, lost with {node.lost_rollouts} running: {node.loss}"
    latency = node.latency.quantile(0.95)
    seconds = f", p95 {latency:.2g} s" if latency is not None else ""
    return f"{node.name}  {node.outcomes:,} done, {node.in_flight} running{seconds}"


def format_time(seconds: float) -> str:
    """Format as `0:07`, `12:05`, `3:00:00`."""
    whole = max(0, round(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def format_number(value: float) -> str:
    """Format as `950`, `12.3k`, `4.6M`, `1.2G`."""
    size = value
    for letter in ("", "k", "M"):
        if size < 1000:
            return f"{size:.0f}" if not letter else f"{size:.1f}{letter}"
        size /= 1000
    return f"{size:.1f}G"


def format_bar(fraction: float, width: int) -> str:
    """Return a bar of `width` characters, or a percentage if `width` is below 10."""
    if width < 10:
        return f"{100 * fraction:.0f} %"
    full = round(min(1.0, fraction) * width)
    return "━" * full + "─" * (width - full)


def join_pieces(pieces: Sequence[str], width: int) -> list[str]:
    """Join short texts with ` · ` into as few lines as possible, each at most `width` characters long."""
    lines: list[str] = []
    for piece in pieces:
        if lines and len(lines[-1]) + len(f" · {piece}") <= width:
            lines[-1] += f" · {piece}"
        else:
            lines.append(output.clip(piece, width))
    return lines
