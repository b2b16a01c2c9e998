"""A Python process in a box that runs snippets one after the other and is paused between them."""

import asyncio
import contextlib
import os
import secrets
import socket
import time
from typing import Any

from nemo_gym.sandbox.providers.local.box import Box
from nemo_gym.sandbox.providers.local.cgroups import Usage
from nemo_gym.sandbox.providers.local.execution import (
    BoundedPipe,
    ControlSocket,
    ExitEvent,
    box_usage,
    build_result,
    sealed_file,
    start_program,
    stop_program,
    wait_for_end_or_limit,
)
from nemo_gym.sandbox.providers.local.limits import BoxLimits
from nemo_gym.sandbox.providers.local.provider import LocalProvider
from nemo_gym.sandbox.spec import SandboxErrorKind, SandboxExecResult, SandboxHandle, SandboxSpec

INTERRUPT_GRACE_S = 1.0
"""Maximum time for a snippet to react to an interrupt; then its process is killed and its variables are lost."""

_EXIT_STATUS_1 = 1 << 8
"""The exit status of a program that raised, as `waitpid` returns it."""

_MAX_SESSION_S = 24 * 3600.0


class LocalSession:
    """One process in one box, started by the first snippet. `is_unusable`: the process cannot run another snippet."""

    def __init__(self, provider: LocalProvider, spec: SandboxSpec, max_output_bytes: int) -> None:
        self._provider = provider
        self._spec = spec
        self._max_output_bytes = max_output_bytes
        self._handle: SandboxHandle | None = None
        self._control: ControlSocket | None = None
        self._exit_task: asyncio.Task[ExitEvent | None] | None = None
        self._snippet_socket: socket.socket | None = None
        self._pipes: list[BoundedPipe] = []
        self._output_full = asyncio.Event()
        self.is_unusable = False

    async def execute(self, code: str, timeout_s: float) -> SandboxExecResult:
        """Run one snippet; set `is_unusable` if the process cannot run another one."""
        async with self._provider.slots:
            box, control = await self._start()
            limits = self._limits(timeout_s)
            usage_before = box_usage(box)
            control.send("resume")
            start = time.monotonic()
            try:
                exceeded, exit_event = await self._run_snippet(box, control, code, limits, usage_before)
            except asyncio.CancelledError:
                self.is_unusable = True
                box.kill()
                raise
            control.send("pause")
        seconds = time.monotonic() - start
        out, err = (pipe.take() for pipe in self._pipes)
        return build_result(box, out, err, exceeded, exit_event, usage_before, limits, seconds)

    async def aclose(self) -> None:
        """Stop the process and destroy its sandbox. Idempotent."""
        self.is_unusable = True
        for pipe in self._pipes:
            pipe.close()
        self._pipes.clear()
        if self._snippet_socket is not None:
            self._snippet_socket.close()
        if self._exit_task is not None:
            self._exit_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._exit_task
        handle, self._handle = self._handle, None
        if handle is not None:
            await self._provider.close(handle)

    async def _start(self) -> tuple[Box, ControlSocket]:
        """Return the box and its socket; start the process unless it is running."""
        if self._handle is not None and self._control is not None:
            return self._control.box, self._control
        self._handle = await self._provider.create(self._spec)
        box = self._provider.sandbox(self._handle).box
        control = self._control = ControlSocket(box)
        self._snippet_socket, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._snippet_socket.setblocking(False)
        self._pipes = [BoundedPipe(self._max_output_bytes, self._output_full.set) for _ in range(2)]
        stdin = sealed_file(b"")
        try:
            request = self._provider.complete_request(box, self._spec, {"task": "session"})
            descriptors = [stdin, *(pipe.write_end for pipe in self._pipes), remote.fileno()]
            self.is_unusable = True  # stays set if the start is cancelled
            self.is_unusable = not await start_program(box, control, request, descriptors, self._limits(_MAX_SESSION_S))
        finally:
            os.close(stdin)
            remote.close()
            for pipe in self._pipes:
                pipe.close_write_end()
        self._exit_task = asyncio.ensure_future(control.event("ended"))
        return box, control

    def _limits(self, timeout_s: float) -> BoxLimits:
        return self._provider.limits(self._spec, timeout_s, None, self._max_output_bytes)

    async def _run_snippet(
        self, box: Box, control: ControlSocket, code: str, limits: BoxLimits, usage_before: Usage
    ) -> tuple[SandboxErrorKind | None, ExitEvent | None]:
        """Return the limit that the snippet exceeded, and the exit event of the process or a synthetic one.

        The event is synthetic if the snippet ended and the process continues.
        """
        assert self._exit_task is not None
        reply = asyncio.ensure_future(self._exchange(code))
        end_tasks: set[asyncio.Task[Any]] = {self._exit_task, reply}
        try:
            exceeded = await wait_for_end_or_limit(end_tasks, box, self._output_full, limits, usage_before)
            if exceeded is SandboxErrorKind.TIMEOUT:
                control.send("interrupt")
                await asyncio.wait(end_tasks, timeout=INTERRUPT_GRACE_S, return_when=asyncio.FIRST_COMPLETED)
            if self._output_full.is_set():
                exceeded = SandboxErrorKind.OUTPUT
            is_reusable = exceeded in (None, SandboxErrorKind.TIMEOUT)
            if is_reusable and reply.done() and (answer := reply.result()) is not None:
                cpu_s = box_usage(box).since(usage_before).cpu_s or 0.0
                return exceeded, {"status": 0 if answer == b"done" else _EXIT_STATUS_1, "cpu_s": cpu_s, "peak_kib": 0}
            self.is_unusable = True
            return exceeded, await stop_program(box, control, self._exit_task)
        finally:
            reply.cancel()

    async def _exchange(self, code: str) -> bytes | None:
        """Send a snippet and return its result, `done` or `failed`; None if the process has exited."""
        assert self._snippet_socket is not None
        source = sealed_file(code.encode(errors="replace"))
        token = secrets.token_hex(8).encode()
        try:
            socket.send_fds(self._snippet_socket, [token], [source])
            while reply := await asyncio.get_running_loop().sock_recv(self._snippet_socket, 64):
                if reply.startswith(token):  # any other reply is forged by the program
                    return reply.removeprefix(token)
            return None
        except OSError:
            return None
        finally:
            os.close(source)
