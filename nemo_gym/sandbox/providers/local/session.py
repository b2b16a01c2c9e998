"""A Python process in a box that runs one cell after the other and stands still in between."""

import asyncio
import contextlib
import os
import secrets
import socket
import time

from nemo_gym.sandbox.providers.local.cgroups import Usage
from nemo_gym.sandbox.providers.local.execution import (
    Control,
    Limits,
    Stream,
    bound_is_passed,
    explain,
    sealed_file,
    start,
    stop,
    usage_of,
)
from nemo_gym.sandbox.providers.local.provider import LocalProvider
from nemo_gym.sandbox.spec import SandboxErrorKind, SandboxExecResult, SandboxHandle, SandboxSpec

INTERRUPT_GRACE_S = 1.0
"""How long a cell may take to notice that its time is over; after that its process is killed and its names are lost."""

_RAISED = 1 << 8
"""The exit status 1 as `waitpid` has it: what a program that raised ends with."""

_WHOLE_LIFE_S = 24 * 3600.0


class LocalSession:
    """One process of one box, started with the first cell. After an end that was not its own it cannot be used."""

    def __init__(self, provider: LocalProvider, spec: SandboxSpec, max_output_bytes: int) -> None:
        self._provider = provider
        self._spec = spec
        self._max_output_bytes = max_output_bytes
        self._handle: SandboxHandle | None = None
        self._control: Control | None = None
        self._ended: asyncio.Task[dict[str, float] | None] | None = None
        self._cells: socket.socket | None = None
        self._streams: list[Stream] = []
        self._full = asyncio.Event()
        self.lost = False

    async def execute(self, code: str, timeout_s: float) -> SandboxExecResult:
        """Run one cell; `lost` is true afterwards if there can be no other in this process."""
        async with self._provider.slot():
            await self._start()
            assert self._handle is not None
            assert self._control is not None
            box = self._provider.sandbox(self._handle).box
            limits = self._limits(timeout_s)
            before = usage_of(box)
            self._control.send("resume")
            begun = time.monotonic()
            try:
                result = await self._cell(code, limits, before)
            except asyncio.CancelledError:
                self.lost = True
                box.kill()
                raise
            self._control.send("pause")
        seconds = time.monotonic() - begun
        stopped, ended = result
        out, err = (stream.take() for stream in self._streams)
        return explain(box, out, err, stopped, ended, before, limits, seconds)

    async def aclose(self) -> None:
        """End the process and its box; a second call does nothing."""
        self.lost = True
        for stream in self._streams:
            stream.close()
        self._streams.clear()
        if self._cells is not None:
            self._cells.close()
        if self._ended is not None:
            self._ended.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ended
        handle, self._handle = self._handle, None
        if handle is not None:
            await self._provider.close(handle)

    async def _start(self) -> None:
        if self._handle is not None:
            return
        self._handle = await self._provider.create(self._spec)
        box = self._provider.sandbox(self._handle).box
        self._control = Control(box)
        self._cells, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._cells.setblocking(False)
        self._streams = [Stream(self._max_output_bytes, self._full.set) for _ in range(2)]
        nothing = sealed_file(b"")
        try:
            words = self._provider.complete(box, self._spec, {"task": "session"})
            theirs = [nothing, *(stream.theirs for stream in self._streams), far.fileno()]
            self.lost = True  # whoever cancels the start must not find a process that never began
            self.lost = await start(box, self._control, words, theirs, self._limits(_WHOLE_LIFE_S)) is None
        finally:
            os.close(nothing)
            far.close()
            for stream in self._streams:
                stream.close_theirs()
        self._ended = asyncio.ensure_future(self._control.event("ended"))

    def _limits(self, timeout_s: float) -> Limits:
        return self._provider.limits(self._spec, timeout_s, None, self._max_output_bytes)

    async def _cell(
        self, code: str, limits: Limits, before: Usage
    ) -> tuple[SandboxErrorKind | None, dict[str, float] | None]:
        """Why the cell was stopped, if it was, and the process's end or what stands for the cell's."""
        assert self._ended is not None
        assert self._control is not None
        assert self._handle is not None
        box = self._provider.sandbox(self._handle).box
        answer = asyncio.ensure_future(self._answer(code))
        too_much = asyncio.ensure_future(self._full.wait())
        too_far = asyncio.ensure_future(bound_is_passed(box, before, limits))
        waiting = {self._ended, answer, too_much, too_far}
        try:
            await asyncio.wait(waiting, timeout=limits.timeout_s, return_when=asyncio.FIRST_COMPLETED)
            stopped = None if self._ended.done() or answer.done() else SandboxErrorKind.TIMEOUT
            if too_much.done() or too_far.done():
                stopped = SandboxErrorKind.OUTPUT if too_much.done() else too_far.result()
            elif stopped is not None:
                self._control.send("interrupt")
                await asyncio.wait(
                    {self._ended, answer}, timeout=INTERRUPT_GRACE_S, return_when=asyncio.FIRST_COMPLETED
                )
            if answer.done() and answer.result() is not None and not too_much.done() and not too_far.done():
                used = usage_of(box).since(before)
                status = 0 if answer.result() == b"done" else _RAISED
                return stopped, {"status": status, "cpu_s": used.cpu_s or 0.0, "peak_kib": 0}
            self.lost = True
            return stopped, await stop(box, self._control, self._ended)
        finally:
            for task in (answer, too_much, too_far):
                task.cancel()

    async def _answer(self, code: str) -> bytes | None:
        """Hand the cell over and wait for its end; None if nobody is there."""
        assert self._cells is not None
        written = sealed_file(code.encode(errors="replace"))
        name = secrets.token_hex(8).encode()
        try:
            socket.send_fds(self._cells, [name], [written])
            while said := await asyncio.get_running_loop().sock_recv(self._cells, 64):
                if said.startswith(name):  # an answer to another cell was the program's own idea
                    return said.removeprefix(name)
            return None
        except OSError:
            return None
        finally:
            os.close(written)
