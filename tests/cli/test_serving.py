"""What servers print reaches the person at the terminal in a readable amount."""

import pytest

from nemo_gym.cli.serving import Echo


def test_warnings_are_shown_up_to_a_point(capsys: pytest.CaptureFixture[str]) -> None:
    """The first failure must be seen at once; the thousandth must not bury it."""
    echo = Echo(everything=False)

    echo("cell 0", "INFO all is well")
    for number in range(100):
        echo("cell 0", f"WARNING number {number}")

    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "(cell 0) WARNING number 0"
    assert len(lines) == Echo.MOST_WARNINGS + 1
    assert lines[-1] == "further warnings are not shown; --verbose shows all"


def test_everything_is_shown_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    """`env start` and `--verbose` are for watching."""
    Echo(everything=True)("sums", "anything")

    assert capsys.readouterr().err == "(sums) anything\n"
