"""Run untrusted Python: programs, and sessions that keep their variables.

    async with PythonRunner() as runner:
        result = await runner.run("print(int(input()) ** 2)", stdin="12", timeout_s=2)

Every program runs in a separate box that is discarded afterwards. Its output is untrusted data: the caller compares it
with the expected answer, which is never passed into the box.
"""

import asyncio
import contextlib
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from nemo_gym.errors import ConfigError
from nemo_gym.sandbox.api import Provider
from nemo_gym.sandbox.providers.archive import path_inside
from nemo_gym.sandbox.providers.base import SandboxProvider
from nemo_gym.sandbox.providers.local.box import Box, sealed_file
from nemo_gym.sandbox.providers.local.bubblewrap import WORKDIR
from nemo_gym.sandbox.providers.local.cgroups import Usage
from nemo_gym.sandbox.providers.local.execution import (
    BoundedPipe,
    ExitEvent,
    box_usage,
    build_result,
    receive_event,
    send_command,
    start_program,
    stop_program,
    wait_for_end_or_limit,
)
from nemo_gym.sandbox.providers.local.isolation_probe import probe
from nemo_gym.sandbox.providers.local.limits import BoxLimits
from nemo_gym.sandbox.providers.local.provider import LocalProvider, UnsandboxedProvider
from nemo_gym.sandbox.providers.registry import create_provider
from nemo_gym.sandbox.spec import (
    SandboxError,
    SandboxErrorKind,
    SandboxExecResult,
    SandboxHandle,
    SandboxResources,
    SandboxSpec,
)

DEFAULT_TIMEOUT_S = 10.0
DEFAULT_MEMORY_MIB = 512
DEFAULT_MAX_OUTPUT_BYTES = 1 << 20
DEFAULT_WARM = 2
ALLOW_KEY = "allow_unsandboxed"

INTERRUPT_GRACE_S = 1.0
"""Maximum time for a snippet to react to an interrupt; then its process is killed and its variables are lost."""

_EXIT_STATUS_1 = 1 << 8
"""The exit status of a program that raised, as `waitpid` returns it."""

_MAX_SESSION_S = 24 * 3600.0


@dataclass(frozen=True)
class PythonResult:
    """The result of a program.

    `kind` is None if the program exited by itself, with `exit_code` (1 for an uncaught exception). Otherwise `kind` is
    one of `SandboxErrorKind`: timeout, cpu_time, memory, output, processes, disk, forbidden, crashed, sandbox. The
    program causes all of them except `sandbox`. `sampled_limits` are those of `SandboxExecDetail`.
    """

    stdout: str = ""
    stderr: str = ""
    kind: str | None = None
    exit_code: int = 0
    seconds: float = 0.0
    isolated: bool = True
    sampled_limits: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Return whether the program exited by itself with status 0. Not a verdict: `os._exit(0)` is also ok."""
        return self.kind is None and self.exit_code == 0


class PythonRunner:
    """Runs programs, each in a fresh box. Safe to share between the coroutines of one event loop.

    `provider` is `{"local": {…}}` (the default) or a shared `LocalProvider`, which `aclose` leaves open. On a machine
    without isolation, programs run as ordinary processes if `allow_unsandboxed` is set; their results have
    `isolated=False`.
    """

    def __init__(
        self,
        provider: Provider | None = None,
        *,
        allow_unsandboxed: bool = False,
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
    ) -> None:
        self._provider = provider
        self._allow_unsandboxed = allow_unsandboxed
        self._max_output_bytes = max_output_bytes
        self._engine: LocalProvider | None = None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def is_isolated(self) -> bool:
        """Return False only if this machine cannot isolate programs and `allow_unsandboxed` is set."""
        return not isinstance(self._ensure_engine(), UnsandboxedProvider)

    @property
    def provider(self) -> LocalProvider:
        """Return the provider that runs the programs, for sandboxes that share its boxes and limits."""
        return self._ensure_engine()

    async def start(self) -> Self:
        """Start creating boxes in advance. Optional: otherwise the first `run` starts it.

        Raises:
            SandboxUnsupportedError: this machine cannot isolate programs and `allow_unsandboxed` is not set.
        """
        await self._ensure_engine().open()
        return self

    async def aclose(self) -> None:
        """Kill all programs and boxes. Idempotent."""
        engine, self._engine = self._engine, None
        if engine is not None and engine is not self._provider:
            await engine.aclose()

    async def run(
        self,
        code: str,
        *,
        stdin: str | bytes = "",
        timeout_s: float = DEFAULT_TIMEOUT_S,
        cpu_s: float | None = None,
        memory_mib: int = DEFAULT_MEMORY_MIB,
        files: Mapping[str, str | bytes] | None = None,
    ) -> PythonResult:
        """Run `code` as the main program, with `files` (name: content) in its working directory."""
        contents = {
            path_inside(name, WORKDIR).removeprefix(f"{WORKDIR}/"): _to_bytes(content)
            for name, content in (files or {}).items()
        }
        program = await self._ensure_engine().run_once(
            SandboxSpec(resources=SandboxResources(memory_mib=memory_mib)),
            {"action": "program", "code": code, "files": contents},
            stdin=_to_bytes(stdin),
            timeout_s=timeout_s,
            cpu_s=cpu_s,
            max_output_bytes=self._max_output_bytes,
        )
        return _python_result(program.result)

    def session(self, *, memory_mib: int = DEFAULT_MEMORY_MIB) -> "PythonSession":
        """Return a new session, which runs in a separate box until `aclose` or the end of `async with`."""
        spec = SandboxSpec(resources=SandboxResources(memory_mib=memory_mib))
        return PythonSession(self._ensure_engine(), spec, self._max_output_bytes)

    def _ensure_engine(self) -> LocalProvider:
        """Return the provider that runs the programs; the first call creates it unless it was passed as an object."""
        if self._engine is None:
            engine = self._provider
            if not isinstance(engine, SandboxProvider):
                if not probe().available and self._allow_unsandboxed:
                    engine = UnsandboxedProvider()
                else:
                    engine = create_provider(engine or {"local": {"warm": DEFAULT_WARM}})
            if not isinstance(engine, LocalProvider):
                raise ConfigError("PythonRunner needs the sandbox provider `local`", fix="{local: {}}")
            self._engine = engine
        return self._engine


@dataclass
class _SessionProcess:
    """The process of a session: its box, and the socket and pipes to it."""

    handle: SandboxHandle
    box: Box
    pipes: list[BoundedPipe]
    output_full: asyncio.Event
    snippet_socket: socket.socket
    exit_task: "asyncio.Task[ExitEvent | None] | None" = None
    is_unusable: bool = True
    """The process cannot run another snippet: it has not started, or must be killed."""


class PythonSession:
    """A Python process that keeps its variables between snippets, like a notebook.

    The value of an expression at the end of a snippet is printed. The process is paused between snippets. Concurrent
    calls of `execute` are not supported. `generation` counts how often the process was killed and its variables lost.
    """

    def __init__(self, engine: LocalProvider, spec: SandboxSpec, max_output_bytes: int) -> None:
        self.generation = 0
        self._engine = engine
        self._spec = spec
        self._max_output_bytes = max_output_bytes
        self._process: _SessionProcess | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def execute(self, code: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> PythonResult:
        """Run one snippet; `exit_code` is 1 if it raises.

        A snippet that exceeds `timeout_s` is interrupted and the variables stay. If the process must be killed, the
        variables are lost, `generation` increases and the next call starts a new process.

        Raises:
            SandboxError: the session is closed, or no box can be created.
        """
        if self._closed:
            raise SandboxError("the session is closed")
        async with self._engine.slots:
            try:
                process = self._process or await self._start_process()
                return _python_result(await _run_snippet(process, code, self._limits(timeout_s)))
            finally:
                if self._process is not None and self._process.is_unusable:
                    self.generation += 1
                    await self._end_process()

    async def aclose(self) -> None:
        """Kill the processes of the session; later snippets raise. Idempotent."""
        self._closed = True
        await self._end_process()

    async def _start_process(self) -> _SessionProcess:
        """Start the process in a new box; it stays unusable if its start fails or is cancelled."""
        handle = await self._engine.create(self._spec)
        box = self._engine.sandbox(handle).box
        output_full = asyncio.Event()
        pipes = [BoundedPipe(self._max_output_bytes, output_full) for _ in range(2)]
        snippet_socket, box_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        snippet_socket.setblocking(False)
        process = self._process = _SessionProcess(handle, box, pipes, output_full, snippet_socket)
        with box_end:
            request = self._engine.complete_request(box, self._spec, {"action": "session"})
            limits = self._limits(_MAX_SESSION_S)
            process.is_unusable = not await start_program(box, request, limits, pipes, channel=box_end.fileno())
        process.exit_task = asyncio.ensure_future(receive_event(box, "ended"))
        return process

    async def _end_process(self) -> None:
        """Kill the process, if it exists, and destroy its box."""
        process, self._process = self._process, None
        if process is None:
            return
        process.snippet_socket.close()
        for pipe in process.pipes:
            pipe.close()
        if process.exit_task is not None:
            process.exit_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await process.exit_task
        await self._engine.close(process.handle)

    def _limits(self, timeout_s: float) -> BoxLimits:
        return self._engine.limits(self._spec, timeout_s, None, self._max_output_bytes)


async def _run_snippet(process: _SessionProcess, code: str, limits: BoxLimits) -> SandboxExecResult:
    """Resume the process, run one snippet and pause the process; if it had to be killed, mark it unusable."""
    box = process.box
    usage_before = box_usage(box)
    send_command(box, "resume")
    start = time.monotonic()
    try:
        exceeded, exit_event = await _wait_for_snippet(process, code, limits, usage_before)
    except asyncio.CancelledError:
        process.is_unusable = True
        box.kill()
        raise
    send_command(box, "pause")
    seconds = time.monotonic() - start
    stdout, stderr = (pipe.take() for pipe in process.pipes)
    return build_result(box, stdout, stderr, exceeded, exit_event, usage_before, limits, seconds)


async def _wait_for_snippet(
    process: _SessionProcess, code: str, limits: BoxLimits, usage_before: Usage
) -> tuple[SandboxErrorKind | None, ExitEvent | None]:
    """Run a snippet; return the limit that it exceeded (or None), and the exit event of the process.

    If the snippet ended and the process continues, the event describes the snippet as if it were a process.
    """
    assert process.exit_task is not None
    reply_task = asyncio.ensure_future(_send_snippet(process.snippet_socket, code))
    end_tasks: set[asyncio.Task[Any]] = {process.exit_task, reply_task}
    try:
        exceeded = await wait_for_end_or_limit(end_tasks, process.box, process.output_full, limits, usage_before)
        if exceeded is SandboxErrorKind.TIMEOUT:
            send_command(process.box, "interrupt")
            await asyncio.wait(end_tasks, timeout=INTERRUPT_GRACE_S, return_when=asyncio.FIRST_COMPLETED)
        if process.output_full.is_set():
            exceeded = SandboxErrorKind.OUTPUT
        can_continue = exceeded in (None, SandboxErrorKind.TIMEOUT)
        if can_continue and reply_task.done() and (reply := reply_task.result()) is not None:
            cpu_s = box_usage(process.box).since(usage_before).cpu_s or 0.0
            return exceeded, {"status": 0 if reply == b"done" else _EXIT_STATUS_1, "cpu_s": cpu_s, "peak_kib": 0}
        process.is_unusable = True
        return exceeded, await stop_program(process.box, process.exit_task)
    finally:
        reply_task.cancel()


async def _send_snippet(snippet_socket: socket.socket, code: str) -> bytes | None:
    """Send a snippet and wait for its reply, `done` or `failed`; None if the process has exited."""
    token = secrets.token_hex(8).encode()
    try:
        with sealed_file(code.encode(errors="replace")) as source:
            socket.send_fds(snippet_socket, [token], [source])
        while reply := await asyncio.get_running_loop().sock_recv(snippet_socket, 64):
            if reply.startswith(token):  # any other reply is forged by the program
                return reply.removeprefix(token)
        return None
    except OSError:
        return None


def require_isolation(config: Any) -> bool:
    """Check that programs can be isolated, when a server starts; return whether they can.

    `config` is the server's config or a mapping. If it sets `allow_unsandboxed: true`, a machine that cannot isolate
    programs is no error, and the result is False.

    Raises:
        SandboxUnsupportedError: this machine cannot isolate programs and `allow_unsandboxed` is not set.
    """
    allowed = config.get(ALLOW_KEY) if isinstance(config, Mapping) else getattr(config, ALLOW_KEY, None)
    isolation = probe()
    if allowed is not True:
        isolation.require(f"set `{ALLOW_KEY}: true` in the server's config to run them without isolation")
    return isolation.available


def _to_bytes(content: str | bytes) -> bytes:
    return content.encode(errors="replace") if isinstance(content, str) else content


def _python_result(result: SandboxExecResult) -> PythonResult:
    """Convert the result of a sandbox command to the result of a program."""
    detail = result.detail
    return PythonResult(
        stdout=result.stdout,
        stderr=result.stderr,
        kind=result.error_type,
        exit_code=result.return_code,
        seconds=0.0 if detail is None else detail.seconds or 0.0,
        isolated=detail is not None and detail.isolated,
        sampled_limits=() if detail is None else detail.sampled_limits,
    )
