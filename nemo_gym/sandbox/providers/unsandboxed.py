"""Programs without a sandbox: what a server does that was allowed to, where there is no isolation. Results say so."""

import asyncio
import contextlib
import marshal
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_gym.sandbox.providers.local.bubblewrap import interpreter, search_path
from nemo_gym.sandbox.providers.local.cgroups import Usage
from nemo_gym.sandbox.providers.local.execution import Limits, Outcome, Stream, sealed_file
from nemo_gym.sandbox.providers.local.outcome import Ending, kind_of
from nemo_gym.sandbox.spec import SandboxErrorKind, SandboxExecDetail, SandboxExecResult, SandboxSpec

INTERRUPT_GRACE_S = 1.0

_OURS = Path(__file__).with_name("local") / "inside"

# The modules that run in a box, without the package around them: a program shall not find that loaded.
_BOOT = """
import fcntl, marshal, os, sys, types
order, channel = int(sys.argv[1]), int(sys.argv[2])
name = ""
for part in "nemo_gym.sandbox.providers.local.inside".split("."):
    name = f"{name}.{part}".strip(".")
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [sys.argv[3]] if part == "inside" else []
from nemo_gym.sandbox.providers.local.inside import confine, programs
with os.fdopen(order, "rb") as file:
    words = marshal.loads(file.read())
if channel >= 0:
    moved = fcntl.fcntl(channel, fcntl.F_DUPFD_CLOEXEC, 64)
    os.dup2(moved, 3, inheritable=False)
    os.close(moved)
    if channel != 3:
        os.close(channel)
confine.restrict_resources(words["limits"])
programs.do(words)
"""


class Unsandboxed:
    """Runs the programs of a runner as plain processes with rlimits and a folder that is deleted."""

    def __init__(self, max_running: int | None = None) -> None:
        self._slots = asyncio.Semaphore(max_running or max(2, os.cpu_count() or 1))

    async def open(self) -> None:
        """There is nothing to get ready."""

    async def aclose(self) -> None:
        """There is nothing to end: every process ends with its call."""

    async def run_once(
        self,
        spec: SandboxSpec,
        words: Mapping[str, Any],
        *,
        timeout_s: float,
        cpu_s: float | None = None,
        stdin: bytes = b"",
        max_output_bytes: int,
        channel_limit: int | None = None,
    ) -> Outcome:
        """As `LocalProvider.run_once`, without the walls."""
        limits = _limits(spec, timeout_s, cpu_s, max_output_bytes)
        full = asyncio.Event()
        async with self._slots:
            extra = None if channel_limit is None else Stream(channel_limit, full.set)
            process = _Process(words, limits, full, stdin, None if extra is None else extra.theirs)
            try:
                if extra is not None:
                    extra.close_theirs()
                stopped = await process.until_the_end(full, timeout_s)
                if extra is not None:
                    extra.read_rest()
                result = process.result(stopped, limits)
                return Outcome(result, b"" if extra is None else bytes(extra.data))
            finally:
                process.close()
                if extra is not None:
                    extra.close()

    def session(self, max_output_bytes: int) -> "UnsandboxedSession":
        """A process that runs cells."""
        return UnsandboxedSession(max_output_bytes)


class UnsandboxedSession:
    """As `LocalSession`, without the walls."""

    def __init__(self, max_output_bytes: int) -> None:
        self._max_output_bytes = max_output_bytes
        self._limits = _limits(SandboxSpec(), 24 * 3600.0, None, max_output_bytes)
        self._process: _Process | None = None
        self._cells: socket.socket | None = None
        self._full = asyncio.Event()
        self.lost = False

    async def execute(self, code: str, timeout_s: float) -> SandboxExecResult:
        """Run one cell."""
        if self._process is None:
            self._cells, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._cells.setblocking(False)
            with far:
                self._process = _Process({"task": "session"}, self._limits, self._full, b"", far.fileno())
        process = self._process
        process.begun = time.monotonic()
        answer = asyncio.ensure_future(self._answer(code))
        too_much = asyncio.ensure_future(self._full.wait())
        try:
            await asyncio.wait({answer, too_much}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            stopped = None if answer.done() else SandboxErrorKind.TIMEOUT
            if too_much.done():
                stopped = SandboxErrorKind.OUTPUT
            elif stopped is not None:
                process.signal(signal.SIGINT)
                await asyncio.wait({answer}, timeout=INTERRUPT_GRACE_S)
            said = answer.result() if answer.done() and not too_much.done() else None
            if said is None:
                self.lost = True
                process.signal(signal.SIGKILL)
                await process.until_the_end(asyncio.Event(), INTERRUPT_GRACE_S)
                return process.result(stopped, self._limits)
            return process.result(stopped, self._limits, status=0 if said == b"done" else 1 << 8)
        except asyncio.CancelledError:
            self.lost = True
            raise
        finally:
            answer.cancel()
            too_much.cancel()

    async def aclose(self) -> None:
        """End the process."""
        self.lost = True
        if self._cells is not None:
            self._cells.close()
        if self._process is not None:
            self._process.close()

    async def _answer(self, code: str) -> bytes | None:
        assert self._cells is not None
        written = sealed_file(code.encode(errors="replace"))
        name = os.urandom(8).hex().encode()
        try:
            socket.send_fds(self._cells, [name], [written])
            while said := await asyncio.get_running_loop().sock_recv(self._cells, 64):
                if said.startswith(name):
                    return said.removeprefix(name)
        except OSError:
            pass  # as if it had ended
        finally:
            os.close(written)
        return None


class _Process:
    """One process, the group it leads, and its folder."""

    def __init__(
        self, words: Mapping[str, Any], limits: Limits, full: asyncio.Event, stdin: bytes, channel: int | None
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="nemo-gym-unsandboxed-")
        folder = self._folder.name
        self._out, self._err = (Stream(limits.output_bytes, full.set) for _ in range(2))
        env = {"PATH": search_path(), "HOME": folder, "LANG": "C.UTF-8", "TMPDIR": folder}
        rlimits = limits.rlimits(memory_counted=False, processes_own=False)
        order = sealed_file(marshal.dumps({**words, "cwd": folder, "env": env, "limits": rlimits}))
        given = sealed_file(stdin)
        passed = [order] if channel is None else [order, channel]
        argv = [interpreter(), "-I", "-S", "-B", "-X", "utf8", "-c", _BOOT]
        try:
            self._child = subprocess.Popen(
                [*argv, str(order), str(-1 if channel is None else channel), str(_OURS)],
                pass_fds=passed,
                stdin=given,
                stdout=self._out.theirs,
                stderr=self._err.theirs,
                env=env,
                cwd=folder,
                start_new_session=True,
            )
        finally:
            os.close(order)
            os.close(given)
            self._out.close_theirs()
            self._err.close_theirs()
        self._ended = os.pidfd_open(self._child.pid)
        self.begun = time.monotonic()

    async def until_the_end(self, full: asyncio.Event, timeout_s: float) -> SandboxErrorKind | None:
        """Wait for the end, or end it; says what for."""
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()
        loop.add_reader(self._ended, gone.set)
        waits = [asyncio.ensure_future(gone.wait()), asyncio.ensure_future(full.wait())]
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            loop.remove_reader(self._ended)
            for task in waits:
                task.cancel()
            self.signal(signal.SIGKILL)
        if full.is_set():
            return SandboxErrorKind.OUTPUT
        return None if gone.is_set() else SandboxErrorKind.TIMEOUT

    def result(self, stopped: SandboxErrorKind | None, limits: Limits, status: int | None = None) -> SandboxExecResult:
        """What it left; `status` if it still runs."""
        seconds = time.monotonic() - self.begun
        if status is None:
            code = self._child.wait()
            status = -code if code < 0 else code << 8
        out, err = self._out.take().decode(errors="replace"), self._err.take().decode(errors="replace")
        ending = Ending(stopped, status, Usage(), seconds, limits.cpu_s, err)
        detail = SandboxExecDetail(isolated=False, signal=ending.signal, seconds=seconds)
        return SandboxExecResult(out, err, ending.exit_code, kind_of(ending), detail)

    def signal(self, number: signal.Signals) -> None:
        """Signal the whole group."""
        if self._child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, number)

    def close(self) -> None:
        """End the process and delete its folder."""
        self.signal(signal.SIGKILL)
        self._child.wait()
        os.close(self._ended)
        self._out.close()
        self._err.close()
        with contextlib.suppress(OSError):
            self._folder.cleanup()


def _limits(spec: SandboxSpec, timeout_s: float, cpu_s: float | None, output_bytes: int) -> Limits:
    memory_mib = spec.resources.memory_mib or 1024
    return Limits(timeout_s, cpu_s, memory_mib << 20, 256 << 20, output_bytes, 64)
