"""Progress is a bar on a terminal, a line now and then elsewhere, and nothing when a script reads."""

import signal
import sys
import threading

import pytest

from nemo_gym.cli import dataset_bar
from nemo_gym.cli.dataset_bar import Bar, tidy_when_terminated


def test_elsewhere_a_line_now_and_then(monkeypatch, capsys):
    """Logs of a scheduler are not filled with bars."""
    monkeypatch.setattr(dataset_bar, "PLAIN_PAUSE", 0.0)

    with Bar() as bar:
        bar("collating", 50_000_000, 200_000_000)
        bar("downloading", 1_000_000, None)

    assert capsys.readouterr().err == "collating: 50 of 200 MB (25 %)\ndownloading: 1 MB\n"


def test_what_is_over_soon_says_nothing(capsys):
    """Most datasets take less than a second."""
    with Bar() as bar:
        bar("collating", 1, 2)

    assert capsys.readouterr().err == ""


def test_a_quiet_bar_says_nothing(monkeypatch, capsys):
    """`--json`."""
    monkeypatch.setattr(dataset_bar, "PLAIN_PAUSE", 0.0)
    with Bar(quiet=True) as bar:
        bar("collating", 1, 2)

    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar(monkeypatch, capsys):
    """With a share, a rate and what is left."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with Bar() as bar:
        bar("collating", 1_000_000, 2_000_000)

    assert "collating" in capsys.readouterr().err


def test_sigterm_ends_a_block_like_ctrl_c():
    """And only the block."""
    before = signal.getsignal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt), tidy_when_terminated():
        signal.raise_signal(signal.SIGTERM)

    assert signal.getsignal(signal.SIGTERM) is before


def test_a_thread_leaves_signals_alone():
    """Only the main thread may handle them."""
    seen = []

    def work():
        with tidy_when_terminated():
            seen.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert seen == [True]
