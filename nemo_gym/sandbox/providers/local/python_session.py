"""A Python process in a box that runs one snippet after the other and is stopped in between."""

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
    EndEvent,
    box_usage,
    build_result,
    sealed_file,
    start_program,
    stop_program,
    wait_or_limit,
)
from nemo_gym.sandbox.providers.local.limits import BoxLimits
from nemo_gym.sandbox.providers.local.provider import LocalProvider
from nemo_gym.sandbox.spec import SandboxErrorKind, SandboxExecResult, SandboxHandle, SandboxSpec

INTERRUPT_GRACE_S = 1.0
"""Longest time a snippet may take to react to an interrupt; then its process is killed and its names are lost."""

_EXIT_STATUS_1 = 1 << 8
"""The exit status of a program that raised, as `waitpid` returns it."""

_WHOLE_LIFE_S = 24 * 3600.0


class LocalSession:
    """One process of one box, started with the first snippet; unusable after `lost` is set."""

    def __init__(self, provider: LocalProvider, spec: SandboxSpec, max_output_bytes: int) -> None:
        self._provider = provider
        self._spec = spec
        self._max_output_bytes = max_output_bytes
        self._handle: SandboxHandle | None = None
        self._control: ControlSocket | None = None
        self._end: asyncio.Task[EndEvent | None] | None = None
        self._snippets: socket.socket | None = None
        self._pipes: list[BoundedPipe] = []
        self._full = asyncio.Event()
        self.lost = False

    async def execute(self, code: str, timeout_s: float) -> SandboxExecResult:
        """Run one snippet; `lost` is set afterwards if the process cannot run another."""
        async with self._provider.slots:
            box, control = await self._start()
            limits = self._limits(timeout_s)
            before = box_usage(box)
            control.send("resume")
            start = time.monotonic()
            try:
                stopped, end = await self._run_snippet(box, control, code, limits, before)
            except asyncio.CancelledError:
                self.lost = True
                box.kill()
                raise
            control.send("pause")
        seconds = time.monotonic() - start
        out, err = (pipe.take() for pipe in self._pipes)
        return build_result(box, out, err, stopped, end, before, limits, seconds)

    async def aclose(self) -> None:
        """End the process and its box; a second call does nothing."""
        self.lost = True
        for pipe in self._pipes:
            pipe.close()
        self._pipes.clear()
        if self._snippets is not None:
            self._snippets.close()
        if self._end is not None:
            self._end.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._end
        handle, self._handle = self._handle, None
        if handle is not None:
            await self._provider.close(handle)

    async def _start(self) -> tuple[Box, ControlSocket]:
        if self._handle is not None and self._control is not None:
            return self._control.box, self._control
        self._handle = await self._provider.create(self._spec)
        box = self._provider.sandbox(self._handle).box
        control = self._control = ControlSocket(box)
        self._snippets, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._snippets.setblocking(False)
        self._pipes = [BoundedPipe(self._max_output_bytes, self._full.set) for _ in range(2)]
        stdin = sealed_file(b"")
        try:
            order = self._provider.complete(box, self._spec, {"task": "session"})
            descriptors = [stdin, *(pipe.write_end for pipe in self._pipes), remote.fileno()]
            self.lost = True  # a start that is cancelled leaves no usable process
            self.lost = not await start_program(box, control, order, descriptors, self._limits(_WHOLE_LIFE_S))
        finally:
            os.close(stdin)
            remote.close()
            for pipe in self._pipes:
                pipe.close_write_end()
        self._end = asyncio.ensure_future(control.event("ended"))
        return box, control

    def _limits(self, timeout_s: float) -> BoxLimits:
        return self._provider.limits(self._spec, timeout_s, None, self._max_output_bytes)

    async def _run_snippet(
        self, box: Box, control: ControlSocket, code: str, limits: BoxLimits, before: Usage
    ) -> tuple[SandboxErrorKind | None, EndEvent | None]:
        """Return the limit that stopped the snippet, and the end of the process or of the snippet in its place."""
        assert self._end is not None
        reply = asyncio.ensure_future(self._exchange(code))
        ends: set[asyncio.Task[Any]] = {self._end, reply}
        try:
            stopped = await wait_or_limit(ends, box, self._full, limits, before)
            if stopped is SandboxErrorKind.TIMEOUT:
                control.send("interrupt")
                await asyncio.wait(ends, timeout=INTERRUPT_GRACE_S, return_when=asyncio.FIRST_COMPLETED)
            if self._full.is_set():
                stopped = SandboxErrorKind.OUTPUT
            may_continue = stopped in (None, SandboxErrorKind.TIMEOUT)
            if may_continue and reply.done() and (answer := reply.result()) is not None:
                cpu_s = box_usage(box).since(before).cpu_s or 0.0
                return stopped, {"status": 0 if answer == b"done" else _EXIT_STATUS_1, "cpu_s": cpu_s, "peak_kib": 0}
            self.lost = True
            return stopped, await stop_program(box, control, self._end)
        finally:
            reply.cancel()

    async def _exchange(self, code: str) -> bytes | None:
        """Send a snippet and wait for its end; None if the process is gone."""
        assert self._snippets is not None
        source = sealed_file(code.encode(errors="replace"))
        name = secrets.token_hex(8).encode()
        try:
            socket.send_fds(self._snippets, [name], [source])
            while reply := await asyncio.get_running_loop().sock_recv(self._snippets, 64):
                if reply.startswith(name):  # the program forged any other reply
                    return reply.removeprefix(name)
            return None
        except OSError:
            return None
        finally:
            os.close(source)
