"""What our modules log is told in a readable amount."""

import logging

import pytest

from nemo_gym.cli.heard import MOST, heard

LOGGER = logging.getLogger("nemo_gym.rollouts.test_heard")


def test_warnings_are_told_without_their_tracebacks(capsys: pytest.CaptureFixture[str]) -> None:
    """A thousand identical tracebacks bury the one line that says what is wrong."""
    with heard(everything=False):
        LOGGER.info("not told")
        for number in range(MOST + 5):
            try:
                raise ValueError("inside")
            except ValueError:
                LOGGER.error("problem %d", number, exc_info=True)
    LOGGER.handle(LOGGER.makeRecord(LOGGER.name, logging.INFO, "", 0, "later", (), None))

    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Error: problem 0"
    assert lines[-1] == "further warnings are not shown; --verbose shows all"
    assert len(lines) == MOST + 1


def test_everything_is_told_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    """--verbose is for finding out."""
    with heard(everything=True):
        LOGGER.debug("details")

    assert capsys.readouterr().err == "DEBUG nemo_gym.rollouts.test_heard: details\n"
