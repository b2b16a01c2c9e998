"""Servers are restarted, and their output arrives in whole lines."""

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_gym.launch.supervisor import MAX_LINE_BYTES, TAIL_LINES, ProcessLog, ServerUnit, Supervisor


class FailingSpawner:
    """Stands for the zygote: the first process is ready and then crashes, the next ones end while they start."""

    def __init__(self, ends_while_starting: int) -> None:
        self.supervisor: Supervisor | None = None
        self.starts = 0
        self._last_failing_start = 1 + ends_while_starting

    async def spawn(self, request: Mapping[str, Any], output: int, ready: int, *passed: int) -> int:
        self.starts += 1
        if self.starts == 1 or self.starts > self._last_failing_start:
            os.write(ready, json.dumps({"ready": True}).encode() + b"\n")
        if self.starts <= self._last_failing_start:
            assert self.supervisor is not None
            asyncio.get_running_loop().call_later(0.05, self.supervisor.handle_exit, self.starts, -9)
        return self.starts

    def signal(self, pid: int, number: int) -> None:
        assert self.supervisor is not None
        asyncio.get_running_loop().call_soon(self.supervisor.handle_exit, pid, -number)

    async def close(self) -> None: ...


async def test_a_process_that_ends_while_it_restarts_is_restarted_again() -> None:
    """A second kill in the moment of a restart is a crash like any other, not the end of the server."""
    spawner = FailingSpawner(ends_while_starting=2)
    supervisor = spawner.supervisor = Supervisor()
    unit = ServerUnit("sums", {"id": "sums"}, spawner)  # type: ignore[arg-type]

    async with asyncio.timeout(20):
        await supervisor.start([unit])
        while spawner.starts < 4 or unit.ready is None or not unit.ready.done():  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(0.01)

    assert not unit.is_lost
    await supervisor.stop(grace=1.0)


async def test_a_server_that_names_itself_in_its_error_is_named_once() -> None:
    """`policy_model: policy_model: vllm is not installed` reads like a mistake of the tool."""
    unit = ServerUnit("policy_model", {"id": "policy_model"}, FailingSpawner(0))  # type: ignore[arg-type]
    unit.ready = asyncio.get_running_loop().create_future()

    unit.fail("policy_model: vllm is not installed")

    assert str(unit.ready.exception()) == "policy_model: vllm is not installed"


def test_lines_are_passed_on_whole_however_the_bytes_arrive(tmp_path: Path) -> None:
    """Half lines of two servers must never mix on one terminal line."""
    lines: list[tuple[str, str]] = []
    log = ProcessLog("sums", tmp_path / "sums.log", lambda name, line: lines.append((name, line)))

    for chunk in (b"one\ntw", b"o\r\n", b"\xff\n", b"rest"):
        log.data_received(chunk)
    log.connection_lost()

    assert lines == [("sums", "one"), ("sums", "two"), ("sums", "\ufffd"), ("sums", "rest")]
    assert (tmp_path / "sums.log").read_bytes() == b"one\ntwo\r\n\xff\nrest"


def test_a_line_without_end_is_cut() -> None:
    """A server that prints no newline must not fill our memory."""
    lines: list[str] = []
    log = ProcessLog("sums", None, lambda _, line: lines.append(line))

    log.data_received(b"x" * (MAX_LINE_BYTES + 1))

    assert len(lines) == 1


def test_the_last_lines_are_kept_for_error_messages() -> None:
    """When a server does not start, its last lines are the explanation."""
    log = ProcessLog("sums", None)

    log.data_received("".join(f"line {n}\n" for n in range(100)).encode())

    assert log.tail().splitlines()[-2:] == ["line 98", "line 99"]
    assert len(log.tail().splitlines()) == TAIL_LINES
