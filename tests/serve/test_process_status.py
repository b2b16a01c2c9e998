"""The running handler of a process can be read from outside, whatever the process does."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from nemo_gym.serve.process_status import (
    NO_LABEL,
    STACK_SIGNAL,
    RunningHandler,
    StatusReader,
    handler_label,
    handler_name,
    own_status,
    run_handler,
)
from tests.processes import eventually

BLOCKED = """
    import asyncio, itertools, sys
    from nemo_gym.serve.process_status import handler_label, handler_name, own_status, run_handler

    own_status.share(int(sys.argv[1]))
    own_status.beat()

    async def spin():
        print("spinning", flush=True)
        max(itertools.repeat(1))

    async def answer():
        await run_handler(spin(), handler_label(handler_name("weather", "POST", "/forecast"), (3, 2)))

    asyncio.run(answer())
"""


def label(name: str) -> bytes:
    return handler_label(handler_name(name, "POST", "/x"))


async def test_the_handler_that_executes_is_named_at_every_step() -> None:
    """A handler that resumes after another one started must not be mistaken for it."""
    seen: list[str | None] = []

    def note() -> None:
        handler = own_status.running_handler()
        seen.append(handler.server if handler else None)

    async def inner() -> None:
        note()
        await asyncio.sleep(0)
        note()

    async def outer() -> None:
        await run_handler(inner(), label("inner"))
        note()

    async def other() -> None:
        for _ in range(3):
            note()
            await asyncio.sleep(0)

    async def run_outer() -> None:
        await run_handler(outer(), label("outer"))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run_outer())
        tasks.create_task(other())

    assert [name for name in seen if name is not None] == ["inner", "inner", "outer"]
    assert bytes(own_status.label) == NO_LABEL


async def test_a_handler_that_raises_leaves_no_name_behind() -> None:
    """Else it would be blamed for a crash long after its end."""

    async def fail() -> None:
        await asyncio.sleep(0)
        raise KeyError("x")

    with pytest.raises(KeyError):
        await run_handler(fail(), label("failing"))

    assert own_status.running_handler() is None


def test_a_process_that_holds_its_interpreter_lock_can_be_read() -> None:
    """No thread of such a process runs; its launcher still learns the request and the line."""
    status = StatusReader()
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(BLOCKED), str(status.fd)],
        pass_fds=[status.fd],
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == b"spinning\n"
        status.check()
        assert eventually(lambda: status.check() > 0.0)
        os.kill(process.pid, STACK_SIGNAL)
        assert eventually(status.frames)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]

    assert status.handler() == RunningHandler("weather", "POST /forecast", (3, 2))
    assert "spin" in [frame.function for frame in status.frames()]
    status.close()


def test_names_of_any_length_fit() -> None:
    """A path of a stranger must not end the request."""
    name = handler_name("s" * 300, "POST", "/\ud83d")

    assert len(handler_label(name)) == len(NO_LABEL)
    assert own_status.running_handler() is None
