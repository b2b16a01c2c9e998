"""The content of the live view, and when it prints nothing."""

import asyncio
import gc
import io
import re
import sys
from collections.abc import Sequence

import pytest

from nemo_gym.cli.terminal import live
from nemo_gym.cli.terminal.live import (
    LiveView,
    format_bar,
    format_number,
    format_time,
    headline,
    join_pieces,
    showing_progress,
)
from nemo_gym.cli.terminal.output import clip
from nemo_gym.cli.terminal.progress import Progress, TimedInFlight
from nemo_gym.rollouts.outcome import FailedRollout, Failure, Job, LimitedRollout, ScoredRollout
from nemo_gym.rollouts.plan import PlanSummary
from nemo_gym.wire.stored_rollout import RolloutId, RolloutKey


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def job(task: int, agent: str = "math_agent") -> Job:
    row = {"_ng_task_index": task, "_ng_rollout_index": 0, "agent_ref": {"name": agent}}
    return Job(RolloutKey(task, 0), row)


def busy_progress(clock: Clock) -> Progress:
    """A run in the middle: 40 of 100 ended, some badly."""
    progress = Progress(TimedInFlight(clock), clock)
    progress.on_plan(PlanSummary(total=100, to_run=100))
    for task in range(36):
        with progress.in_flight.sending(job(task)):
            clock.now += 0.5
        progress(ScoredRollout(job(task), {"reward": task % 2, "response": {"usage": {"total_tokens": 1000}}}))
    for _ in range(3):
        progress(FailedRollout(job(40), Failure("timeout", "model", "too slow", "policy_model")))
    progress(LimitedRollout(job(41), "tokens", {}))
    progress.take_sample()
    return progress


def test_the_headline_has_all_numbers() -> None:
    """Users judge a run by these numbers while it is running."""
    text = " · ".join(headline(busy_progress(Clock())))

    assert text.startswith("40/100 40 % · 2.2/s · 0 running · ETA 0:28 · mean 0.500 [0.")
    assert "36.0k tokens (2.0k/s)" in text
    assert text.endswith("3 failed (timeout 3) · 1 limit (tokens 1)")


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_no_line_is_wider_than_the_screen(width: int) -> None:
    """A line that wraps cannot be redrawn."""
    clock = Clock()
    progress = busy_progress(clock)
    with progress.in_flight.sending(job(50, "an_agent_with_quite_a_long_name")):
        clock.now += 4000
        lines = LiveView(progress).lines(width)

    assert all(len(line) <= width for line in lines)
    assert lines[0].startswith("40/100")


def test_old_rollouts_are_listed_with_the_call_they_wait_for() -> None:
    """The question people have when nothing moves."""
    clock = Clock()
    progress = busy_progress(clock)
    view = LiveView(progress)
    with progress.in_flight.sending(job(50)):
        clock.now += 192
        view._awaited_calls = {(50, 0): "policy_model /v1/responses"}
        lines = view.lines(120)

    assert lines[-1] == f"     3:12  {RolloutKey(50, 0)}  math_agent  waits for policy_model /v1/responses"


def test_young_rollouts_are_not_worth_a_line() -> None:
    """A healthy run shows its numbers and nothing else."""
    clock = Clock()
    progress = busy_progress(clock)
    with progress.in_flight.sending(job(50)):
        clock.now += 1
        assert not any("math_agent" in line for line in LiveView(progress).lines(120))


async def test_servers_are_queried_only_about_old_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries cost the servers time; a quick run makes none."""
    monkeypatch.setattr(live, "QUERY_SECONDS", 0.0)
    clock = Clock()
    progress = busy_progress(clock)
    queries: list[Sequence[RolloutId]] = []

    async def query_servers(rollouts: Sequence[RolloutId]) -> dict[RolloutId, str]:
        queries.append(rollouts)
        return dict.fromkeys(rollouts, "arithmetic /verify")

    view = LiveView(progress, query_servers)
    with progress.in_flight.sending(job(50)):
        clock.now += 1
        view._update_query()
        assert view._query is None
        clock.now += 60
        view._update_query()
        assert view._query is not None
        await view._query
        view._update_query()
        assert "arithmetic /verify" in view.lines(120)[-1]

    assert queries[0] == [(50, 0)]


async def test_the_view_works_when_servers_do_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The view must work during the outage that it shows."""
    monkeypatch.setattr(live, "REPLY_SECONDS", 0.05)
    clock = Clock()
    progress = busy_progress(clock)

    async def query_servers(_: Sequence[RolloutId]) -> dict[RolloutId, str]:
        await asyncio.Event().wait()
        return {}

    view = LiveView(progress, query_servers)
    with progress.in_flight.sending(job(50)):
        clock.now += 60
        view._update_query()
        query = view._query
        assert query is not None
        await asyncio.wait({query})
        view._update_query()
        assert "waits for agent math_agent" in view.lines(120)[-1]


async def test_plain_lines_are_written_where_nothing_can_be_redrawn(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logs of batch jobs need lines without escape codes."""
    monkeypatch.setattr(live, "PLAIN_LINE_PAUSES", ((1e9, 0.01),))
    text = ""

    async with showing_progress(busy_progress(Clock())):
        while text.count("\n") < 2:
            await asyncio.sleep(0.005)
            text += capsys.readouterr().err

    assert text.startswith("40/100 40 %")
    assert "\x1b" not in text


async def test_a_query_that_fails_as_the_run_ends_prints_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cells are busy or gone when a run ends; a traceback above its scores looks like a broken run."""
    monkeypatch.setattr(live, "PLAIN_LINE_PAUSES", ((1e9, 0.0),))
    monkeypatch.setattr(live, "OLD_SECONDS", 0.0)
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    is_asked, may_fail = asyncio.Event(), asyncio.Event()

    async def fail_late(_: Sequence[RolloutId]) -> dict[RolloutId, str]:
        is_asked.set()
        await may_fail.wait()
        raise TimeoutError

    progress = busy_progress(Clock())
    with progress.in_flight.sending(job(99)):
        async with showing_progress(progress, wait_query=fail_late):
            await is_asked.wait()
    may_fail.set()
    for _ in range(4):
        await asyncio.sleep(0)
    gc.collect()

    assert complaints == []


async def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """--quiet is a promise."""
    monkeypatch.setattr(live, "PLAIN_LINE_PAUSES", ((1e9, 0.0),))

    async with showing_progress(busy_progress(Clock()), quiet=True):
        for _ in range(5):
            await asyncio.sleep(0)

    assert capsys.readouterr().err == ""


class Terminal(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.drawn_twice = asyncio.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        count = super().write(text)
        if self.getvalue().count("40/100") >= 2:
            self.drawn_twice.set()
        return count


@pytest.mark.parametrize("no_color", [False, True])
async def test_a_terminal_is_redrawn_and_left_clean(no_color: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last thing on the screen is the report, and NO_COLOR is honoured."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "60", "LINES": "20"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(live, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(live, "REDRAW_SECONDS", 0.0)

    async with showing_progress(busy_progress(Clock())):
        await screen.drawn_twice.wait()

    drawn = screen.getvalue()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn)
    assert "timeout 3" in plain
    assert drawn.endswith("\x1b[2K")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", drawn)


@pytest.mark.parametrize(("term", "expected"), [("xterm", True), ("dumb", False), ("", False)])
def test_dumb_terminals_get_plain_lines(term: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Editors and CI systems often pretend to be a terminal."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", term)

    assert live.is_terminal() is expected


def test_numbers_are_short() -> None:
    """There is little room."""
    assert [format_number(n) for n in (0, 950, 12_345, 4_600_000, 1.2e9)] == ["0", "950", "12.3k", "4.6M", "1.2G"]
    assert [format_time(s) for s in (0.4, 7, 725, 10800)] == ["0:00", "0:07", "12:05", "3:00:00"]
    assert format_bar(0.5, 10) == "━━━━━─────"
    assert format_bar(0.5, 5) == "50 %"
    assert join_pieces(["aaa", "bbb", "ccc"], 9) == ["aaa · bbb", "ccc"]
    assert clip("abcdef", 4) == "abc…"


def test_the_headline_shows_the_reading_of_rows() -> None:
    """A million rows take a while, and "0 done" would look like a hang."""
    progress = Progress()
    progress.on_reading(230_000, 0.25)

    assert headline(progress, bar_width=20) == ["reading rows ━━━━━─────────────── · 230,000 so far"]

    progress.on_plan(PlanSummary(total=100, to_run=100))
    assert headline(progress)[0].startswith("0/100")
