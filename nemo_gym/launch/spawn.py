"""Two ways to bring a process up — forked by the zygote, or executed by another interpreter — behind one face."""

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from nemo_gym.errors import GymError
from nemo_gym.forks import Child
from nemo_gym.launch import ahead
from nemo_gym.launch.boot import boot_file
from nemo_gym.launch.groups import signal_group

logger = logging.getLogger(__name__)

MOST_LOSSES = 3
"""How often a run survives the loss of the preloaded process."""

ZYGOTE_SECONDS = 60.0
"""How long the preloaded process may take over anything: imports, a fork, its own end. Each takes a second or less."""

Exited = Callable[[int, int], None]
"""Called with a process id and its exit status (negative: the signal that ended it)."""


class Spawner(Protocol):
    """Starts processes and tells when they end. The descriptors stay the caller's to close."""

    async def spawn(self, request: Mapping[str, Any], output: int, ready: int) -> int: ...

    def signal(self, pid: int, number: int) -> None: ...

    async def close(self) -> None: ...


async def _in_time(waiting: "asyncio.Future[Any]", problem: str) -> Any:
    """What the zygote answers, or an error when it stays silent."""
    try:
        async with asyncio.timeout(ZYGOTE_SECONDS):
            return await waiting
    except TimeoutError:
        raise GymError(f"the process that starts servers {problem} in {ZYGOTE_SECONDS:g} s", where="launch") from None


class ZygoteLost(GymError):
    """The process that forks servers is gone, and with it all it had forked."""

    exit_status = 3


@dataclass(frozen=True)
class Birth:
    """What it takes to start the zygote, and to start it again."""

    boot: Mapping[str, Any]
    inherited: Sequence[int]
    env: Mapping[str, str]


def _forked(birth: Birth) -> tuple[Child, socket.socket] | None:
    """The zygote that the command forked ahead, told what it is for; None if there is none that listens."""
    waiting = ahead.take()
    if waiting is None:
        return None
    try:
        waiting.boot(birth.boot, birth.inherited, birth.env, ZYGOTE_SECONDS)
    except OSError:
        waiting.end()
        return None
    return waiting.process, waiting.control


def _started(birth: Birth) -> tuple["subprocess.Popen[bytes]", socket.socket]:
    """A zygote as a program of its own."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    boot_fd = boot_file(birth.boot)
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "nemo_gym.launch.zygote", str(theirs.fileno()), str(boot_fd)],
            pass_fds=[theirs.fileno(), boot_fd, *birth.inherited],
            env=dict(birth.env),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    finally:
        theirs.close()
        os.close(boot_fd)
    return process, ours


class ZygoteSpawner:
    """Forks from one preloaded process. When that one is lost, its servers are too: the next spawn starts another."""

    def __init__(self, exited: Exited) -> None:
        self._exited = exited
        self._waiting: dict[str, asyncio.Future[int]] = {}
        self._up: asyncio.Future[None] | None = None
        self._process: subprocess.Popen[bytes] | Child | None = None
        self._control: socket.socket | None = None
        self._birth: Birth | None = None
        self._forked: set[int] = set()
        self._losses = 0
        self._reviving = asyncio.Lock()

    async def start(self, boot: Mapping[str, Any], inherited: Sequence[int], env: Mapping[str, str]) -> None:
        """Start the preloaded process and wait until it has imported everything."""
        self._birth = Birth(boot, inherited, env)
        await self._begin(self._birth)

    async def _begin(self, birth: Birth) -> None:
        loop = asyncio.get_running_loop()
        self._process, control = _forked(birth) or _started(birth)
        control.setblocking(False)
        self._control, self._up = control, loop.create_future()
        loop.add_reader(control, self._hear)
        await _in_time(self._up, "did not come up")

    def _hear(self) -> None:
        assert self._control is not None
        try:
            message = self._control.recv(64 * 1024)
        except BlockingIOError:
            return
        except ConnectionError:
            message = b""
        if not message:
            self._lost()
            return
        event = json.loads(message)
        if event["event"] == "up" and self._up is not None and not self._up.done():
            self._up.set_result(None)
        elif event["event"] == "spawned":
            self._forked.add(event["pid"])
            waiting = self._waiting.pop(event["id"], None)
            if waiting is not None and not waiting.done():
                waiting.set_result(event["pid"])
        elif event["event"] == "exited":
            self._forked.discard(event["pid"])
            self._exited(event["pid"], event["status"])

    def _lost(self) -> None:
        """The zygote is gone and its children with it: nobody waits for its answer any longer."""
        self._hang_up()
        self._losses += 1
        logger.error("the process that starts servers ended; the servers it had started end with it")
        problem = ZygoteLost("the process that starts servers ended", where="launch", fix="look at the output above")
        for waiting in [self._up, *self._waiting.values()]:
            if waiting is not None and not waiting.done():
                waiting.set_exception(problem)
        self._waiting.clear()
        forked, self._forked = self._forked, set()
        for pid in forked:
            signal_group(pid, signal.SIGKILL)  # the kernel ends a server with its parent; this ends what it started
            self._exited(pid, -signal.SIGKILL)

    def _hang_up(self) -> None:
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
            self._control = None

    async def _revived(self) -> socket.socket:
        """The line to the zygote; another one is started if it is gone."""
        async with self._reviving:
            if self._control is None:
                if self._losses > MOST_LOSSES or self._birth is None:
                    raise ZygoteLost(f"the process that starts servers ended {self._losses} times", where="launch")
                await self._bury()
                await self._begin(self._birth)
            assert self._control is not None
            return self._control

    async def spawn(self, request: Mapping[str, Any], output: int, ready: int) -> int:
        control = await self._revived()
        waiting = asyncio.get_running_loop().create_future()
        self._waiting[request["id"]] = waiting
        try:
            socket.send_fds(control, [json.dumps({**request, "op": "spawn"}).encode()], [output, ready])
        except ConnectionError:
            self._waiting.pop(request["id"], None)
            raise ZygoteLost("the process that starts servers ended", where=request["id"]) from None
        return int(await _in_time(waiting, f"did not start {request['id']}"))

    def signal(self, pid: int, number: int) -> None:
        if self._control is not None:
            with suppress(ConnectionError):  # it is gone; that it is will be heard in a moment
                self._control.send(json.dumps({"op": "signal", "pid": pid, "signal": int(number)}).encode())

    async def close(self) -> None:
        """Let the zygote go; whatever it still has is killed."""
        self._birth = None
        self._hang_up()
        await self._bury()

    async def _bury(self) -> None:
        """Wait until the process has ended; one whose line is closed leaves at once, a stopped one cannot."""
        if self._process is not None:
            try:
                await asyncio.to_thread(self._process.wait, ZYGOTE_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                await asyncio.to_thread(self._process.wait)
            self._process = None


class ExecSpawner:
    """Runs one instance in an interpreter of its own."""

    def __init__(self, python: Path, boot: Mapping[str, Any], inherited: Sequence[int], env: Mapping[str, str],
                 exited: Exited) -> None:  # fmt: skip
        self._python = python
        self._boot = boot
        self._inherited = inherited
        self._env = env
        self._exited = exited
        self._watching: set[asyncio.Task[None]] = set()
        self._processes: dict[int, asyncio.subprocess.Process] = {}

    async def spawn(self, request: Mapping[str, Any], output: int, ready: int) -> int:
        boot_fd = boot_file(self._boot)
        asked = {**request, "parent": os.getpid()}
        try:
            process = await asyncio.create_subprocess_exec(
                str(self._python), "-m", "nemo_gym.launch.hosting", str(boot_fd), str(ready), json.dumps(asked),
                pass_fds=[boot_fd, ready, *self._inherited],
                env=dict(self._env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(boot_fd)
        self._processes[process.pid] = process
        task = asyncio.create_task(self._watch(process))
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)
        return process.pid

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        status = await process.wait()
        signal_group(process.pid, signal.SIGKILL)
        self._processes.pop(process.pid, None)
        self._exited(process.pid, status)

    def signal(self, pid: int, number: int) -> None:
        if pid in self._processes:
            signal_group(pid, number)

    async def close(self) -> None:
        for pid in self._processes:
            signal_group(pid, signal.SIGKILL)
        await asyncio.gather(*self._watching)
