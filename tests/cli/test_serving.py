"""What servers print reaches the person at the terminal in a readable amount."""

import asyncio

import pytest

from nemo_gym.cli.serving import Echo, Interrupted, unless


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


async def test_an_interrupt_ends_a_start_that_takes_long() -> None:
    """Ctrl-C while an environment is being built must not wait for the build."""
    stop, cleaned = asyncio.Event(), asyncio.Event()

    async def starting() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    asyncio.get_running_loop().call_soon(stop.set)
    with pytest.raises(Interrupted) as raised:
        await unless(stop, starting())

    assert cleaned.is_set()
    assert raised.value.exit_status == 130


async def test_work_that_is_done_is_not_interrupted() -> None:
    """What came up before the signal is there to be used, or stopped in order."""

    async def done() -> int:
        return 7

    assert await unless(asyncio.Event(), done()) == 7
