"""Start server processes: the zygote forks them; a server with a virtual environment then executes its interpreter."""

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from nemo_gym.errors import GymError
from nemo_gym.launch.prefork import start_zygote
from nemo_gym.launch.zygote import MAX_MESSAGE_BYTES, ZygoteSpec
from nemo_gym.processes import KILL_SECONDS, TERM_SECONDS, ForkedChild, json_descriptor, signal_group

logger = logging.getLogger(__name__)

MAX_ZYGOTES = 4
"""Maximum number of zygotes that one run starts."""

ZYGOTE_SECONDS = 60.0
"""Timeout for the imports of the zygote, for a fork and for its exit. Each takes a second or less."""

POLL_SECONDS = 0.005

ExitCallback = Callable[[int, int], None]
"""Called with a process id and its exit status (negative: the signal that ended it)."""


class ZygoteLost(GymError):
    """The zygote has ended, and with it every server that it forked."""

    exit_status = 3


class ZygoteSpawner:
    """Forks servers from one zygote. If the zygote ends, its servers end too; the next spawn starts a new zygote."""

    def __init__(self, on_exit: ExitCallback) -> None:
        self._on_exit = on_exit
        self._pending: dict[str, asyncio.Future[int]] = {}
        self._zygote_ready: asyncio.Future[None] | None = None
        self._process: subprocess.Popen[bytes] | ForkedChild | None = None
        self._control: socket.socket | None = None
        self._spec: ZygoteSpec | None = None
        self._children: set[int] = set()
        self._zygote_count = 0
        self._start_lock = asyncio.Lock()

    async def start(self, spec: ZygoteSpec) -> None:
        """Start the zygote and wait until it has imported its modules."""
        self._spec = spec
        await self._connected_zygote()

    async def _connected_zygote(self) -> socket.socket:
        """Return the socket to the zygote; start the zygote if it is not running.

        Raises:
            ZygoteLost: MAX_ZYGOTES zygotes have ended, or the spawner is closed.
        """
        async with self._start_lock:
            if self._control is None:
                if self._spec is None:
                    raise ZygoteLost("the run is closing; no server can be started", where="launch")
                if self._zygote_count >= MAX_ZYGOTES:
                    problem = f"the process that starts servers ended {self._zygote_count} times"
                    raise ZygoteLost(problem, where="launch")
                await self._wait_for_exit()
                self._zygote_count += 1
                handle = start_zygote(self._spec, ZYGOTE_SECONDS)
                self._process, control = handle.process, handle.control
                control.setblocking(False)
                loop = asyncio.get_running_loop()
                self._control, self._zygote_ready = control, loop.create_future()
                loop.add_reader(control, self._read_event)
                await self._wait_for_reply(self._zygote_ready, "was not ready")
                return control
            return self._control

    async def _wait_for_reply(self, future: "asyncio.Future[Any]", problem: str) -> Any:
        """Return the result of a future; raise GymError with `problem` after ZYGOTE_SECONDS."""
        try:
            async with asyncio.timeout(ZYGOTE_SECONDS):
                return await future
        except TimeoutError:
            raise GymError(
                f"the process that starts servers {problem} in {ZYGOTE_SECONDS:g} s", where="launch"
            ) from None

    def _read_event(self) -> None:
        """Read one message of the zygote: it is ready, a process was started or a process exited."""
        assert self._control is not None and self._zygote_ready is not None
        try:
            message = self._control.recv(MAX_MESSAGE_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            message = b""
        if not message:
            self._handle_loss()
            return
        event = json.loads(message)
        if event["event"] == "up" and not self._zygote_ready.done():
            self._zygote_ready.set_result(None)
        elif event["event"] == "spawned":
            self._children.add(event["pid"])
            future = self._pending.pop(event["id"], None)
            if future is not None and not future.done():
                future.set_result(event["pid"])
        elif event["event"] == "exited":
            self._children.discard(event["pid"])
            self._on_exit(event["pid"], event["status"])

    def _handle_loss(self) -> None:
        """Fail every pending request, and report every child as killed, because children end with the zygote."""
        self._disconnect()
        logger.error("the process that starts servers ended; the servers it had started end with it")
        problem = ZygoteLost("the process that starts servers ended", where="launch", fix="look at the output above")
        for future in [self._zygote_ready, *self._pending.values()]:
            if future is not None and not future.done():
                future.set_exception(problem)
        self._pending.clear()
        children, self._children = self._children, set()
        for pid in children:
            signal_group(pid, signal.SIGKILL)  # the server exits with its parent; this kills the processes it started
            self._on_exit(pid, -signal.SIGKILL)

    def _disconnect(self) -> None:
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
            self._control = None

    async def spawn(self, request: Mapping[str, Any], output: int, *passed: int) -> int:
        """Start the server of a request and return its process id; the caller closes the descriptors.

        The process prints to `output`. `passed` are the descriptors that `ServerBoot.run` receives.
        """
        control = await self._connected_zygote()
        future = asyncio.get_running_loop().create_future()
        self._pending[request["id"]] = future
        request_fd = json_descriptor(request)
        try:
            socket.send_fds(control, [json.dumps({"op": "spawn"}).encode()], [request_fd, output, *passed])
        except ConnectionError:
            self._pending.pop(request["id"], None)
            raise ZygoteLost("the process that starts servers ended", where=request["id"]) from None
        finally:
            os.close(request_fd)
        return int(await self._wait_for_reply(future, f"did not start {request['id']}"))

    def signal(self, pid: int, number: int) -> None:
        if self._control is not None:
            with suppress(ConnectionError):  # the zygote has ended; `_read_event` handles it
                self._control.send(json.dumps({"op": "signal", "pid": pid, "signal": int(number)}).encode())

    async def close(self) -> None:
        """End the zygote, which kills its remaining children."""
        self._spec = None
        self._disconnect()
        await self._wait_for_exit()

    async def _wait_for_exit(self) -> None:
        """Wait until the zygote has exited, which it does when its socket is closed; end it after ZYGOTE_SECONDS.

        `_process` is the guard of the zygote. On SIGTERM the guard ends the zygote with all its descendants.
        """
        if self._process is None:
            return
        # Polled instead of waited for on a thread: a run may be closed at interpreter exit, without thread pools.
        with suppress(TimeoutError):
            async with asyncio.timeout(ZYGOTE_SECONDS):
                while self._process.poll() is None:  # noqa: ASYNC110 - see above
                    await asyncio.sleep(POLL_SECONDS)
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(TERM_SECONDS + KILL_SECONDS)
        self._process.kill()
        self._process.wait()
        self._process = None
