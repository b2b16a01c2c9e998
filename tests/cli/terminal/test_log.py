"""Log records and server output are shown in a readable amount."""

import logging

import pytest

from nemo_gym.cli.terminal.log import LIMIT_NOTICE, MAX_WARNINGS, ServerLogPrinter, logging_to_stderr, was_shown

LOGGER = logging.getLogger("nemo_gym.rollouts.test_log")


def test_warnings_are_shown_without_tracebacks(capsys: pytest.CaptureFixture[str]) -> None:
    """A thousand identical tracebacks bury the one line that names the problem."""
    with logging_to_stderr(verbose=False):
        LOGGER.info("not shown")
        for number in range(MAX_WARNINGS + 5):
            try:
                raise ValueError("inside")
            except ValueError:
                LOGGER.error("problem %d", number, exc_info=True)
    LOGGER.handle(LOGGER.makeRecord(LOGGER.name, logging.INFO, "", 0, "later", (), None))

    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Error: problem 0"
    assert lines[-1] == LIMIT_NOTICE
    assert len(lines) == MAX_WARNINGS + 1


def test_verbose_shows_every_record(capsys: pytest.CaptureFixture[str]) -> None:
    """--verbose is for debugging."""
    with logging_to_stderr(verbose=True):
        LOGGER.debug("details")

    assert capsys.readouterr().err == "DEBUG nemo_gym.rollouts.test_log: details\n"


def test_warnings_of_servers_are_shown_up_to_a_limit(capsys: pytest.CaptureFixture[str]) -> None:
    """The first failure must be visible at once; the thousandth must not bury it."""
    printer = ServerLogPrinter(verbose=False)

    printer("cell 0", "INFO all is well")
    for number in range(100):
        printer("cell 0", f"WARNING number {number}")

    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Warning: number 0"
    assert len(lines) == MAX_WARNINGS + 1
    assert lines[-1] == LIMIT_NOTICE


def test_a_warning_is_shown_once_whichever_cell_reports_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Every rollout of a run meets the same endless refusal; the user needs to read it once."""
    printer = ServerLogPrinter(verbose=False)

    for cell in (0, 1, 0):
        printer(f"cell {cell}", "ERROR nemo_gym.serve: policy_model: POST /v1/responses failed: no")
    printer("mine", "ERROR nemo_gym.serve: mine: POST /verify failed: no")

    assert capsys.readouterr().err.splitlines() == [
        "Error: policy_model: POST /v1/responses failed: no",
        "(mine) Error: mine: POST /verify failed: no",
    ]


def test_verbose_shows_every_line_of_servers(capsys: pytest.CaptureFixture[str]) -> None:
    """`env start` and `--verbose` are for watching."""
    ServerLogPrinter(verbose=True)("sums", "anything")

    assert capsys.readouterr().err == "(sums) anything\n"


def test_what_the_log_has_shown_is_known_until_the_command_ends(capsys: pytest.CaptureFixture[str]) -> None:
    """The first failure is printed once, although the log of the server names it, too."""
    with logging_to_stderr(verbose=False):
        printer = ServerLogPrinter(verbose=False)
        printer("cell 0", "ERROR nemo_gym.serve: sums: POST /verify failed: ZeroDivisionError: division (app.py:3)")

        assert was_shown("ZeroDivisionError: division")
        assert not was_shown("KeyError: division")
        assert not was_shown("sums"), "a short text is part of too many warnings"
    with logging_to_stderr(verbose=False):
        assert not was_shown("ZeroDivisionError: division")
    assert capsys.readouterr().err.count("ZeroDivisionError") == 1
