"""Notices and bars: a bar on a terminal, periodic lines elsewhere, nothing for scripts."""

import sys
from typing import Any

import pytest

from nemo_gym.cli.terminal import output
from nemo_gym.cli.terminal.output import ThrottledNotice, TransferBar


def test_without_a_terminal_a_line_is_printed_periodically(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Logs of a scheduler are not filled with bars."""
    monkeypatch.setattr(output, "NOTICE_SECONDS", 0.0)

    with TransferBar() as bar:
        bar("collating", 50_000_000, 200_000_000)
        bar("downloading", 1_000_000, None)

    assert capsys.readouterr().err == "collating: 50 of 200 MB (25 %)\ndownloading: 1 MB\n"


def test_short_work_prints_nothing(capsys: Any) -> None:
    """Most datasets take less than a second."""
    with TransferBar() as bar:
        bar("collating", 1, 2)
    ThrottledNotice()("checking")

    assert capsys.readouterr().err == ""


def test_notices_are_printed_at_most_every_few_seconds(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million rows must not print a million lines."""
    now = 0.0
    monkeypatch.setattr(output.time, "monotonic", lambda: now)
    notice = ThrottledNotice()
    for second in range(12):
        now = float(second)
        notice.show_fraction("checking rows", second, 10)

    assert capsys.readouterr().err == "checking rows: 50 %\nchecking rows: 100 %\n"


def test_a_quiet_bar_prints_nothing(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """`--json` prints JSON only."""
    monkeypatch.setattr(output, "NOTICE_SECONDS", 0.0)
    with TransferBar(quiet=True) as bar:
        bar("collating", 1, 2)

    assert capsys.readouterr().err == ""


def test_a_terminal_shows_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """A long transfer shows its share, rate and remaining time."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with TransferBar() as bar:
        bar("collating", 1_000_000, 2_000_000)

    assert "collating" in capsys.readouterr().err


def test_a_line_replaces_the_status_and_a_pipe_gets_no_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning behind "starting 3 servers" cannot be read, and escape sequences in a log file neither."""
    output.show_status("starting")
    assert capsys.readouterr().err == ""

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    output.show_status("starting")
    output.notify("a warning")
    output.notify("another")
    output.show_status("")

    assert capsys.readouterr().err == "\r\x1b[Kstarting\r\x1b[Ka warning\nanother\n"
