"""Run untrusted Python: programs, function calls, and sessions that keep their variables.

    async with PythonRunner() as runner:
        result = await runner.run("print(int(input()) ** 2)", stdin="12", timeout_s=2)

Every program runs in a separate box that is discarded afterwards. Its output is untrusted data: the caller compares it
with the expected answer, which is never passed into the box.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from nemo_gym.errors import ConfigError
from nemo_gym.sandbox.api import Provider
from nemo_gym.sandbox.providers.archive import path_inside
from nemo_gym.sandbox.providers.base import SandboxProvider
from nemo_gym.sandbox.providers.local.bubblewrap import WORKDIR
from nemo_gym.sandbox.providers.local.execution import TaskResult
from nemo_gym.sandbox.providers.local.isolation_probe import probe
from nemo_gym.sandbox.providers.local.provider import LocalProvider, UnsandboxedProvider
from nemo_gym.sandbox.providers.local.python_session import LocalSession
from nemo_gym.sandbox.providers.registry import create_provider
from nemo_gym.sandbox.spec import (
    SandboxError,
    SandboxExecResult,
    SandboxResources,
    SandboxSpec,
    SandboxUnsupportedError,
)

DEFAULT_TIMEOUT_S = 10.0
DEFAULT_MEMORY_MIB = 512
DEFAULT_MAX_OUTPUT_BYTES = 1 << 20
DEFAULT_WARM = 2
ALLOW_KEY = "allow_unsandboxed"

_VALUES_BYTES = 16 << 20


@dataclass(frozen=True)
class PythonResult:
    """The result of a program.

    `kind` is None if the program exited by itself, with `exit_code` (1 for an uncaught exception). Otherwise `kind` is
    one of `SandboxErrorKind`: timeout, cpu_time, memory, output, processes, disk, forbidden, crashed, sandbox. The
    program causes all of them except `sandbox`.
    """

    stdout: str = ""
    stderr: str = ""
    kind: str | None = None
    exit_code: int = 0
    seconds: float = 0.0
    isolated: bool = True

    @property
    def ok(self) -> bool:
        """Return whether the program exited by itself with status 0. Not a verdict: `os._exit(0)` is also ok."""
        return self.kind is None and self.exit_code == 0


@dataclass(frozen=True)
class PythonCall:
    """The result of one call: its `value` in JSON types (tuples and sets as lists), or its `error` as text."""

    value: Any = None
    error: str | None = None
    done: bool = True
    """False if the program ended before this call returned."""


@dataclass(frozen=True)
class PythonCalls:
    """The results of several calls of one function, in call order, and the result of the whole program."""

    result: PythonResult
    calls: list[PythonCall] = field(default_factory=list)


class PythonRunner:
    """Runs programs, each in a fresh box. Safe to share between tasks of one event loop.

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
        """Return whether programs are isolated; False only if this machine cannot and `allow_unsandboxed` is set."""
        return not isinstance(self._running_engine(), UnsandboxedProvider)

    async def start(self) -> Self:
        """Start creating boxes in advance; optional, because the first `run` also does so.

        Raises:
            SandboxUnsupportedError: this machine cannot isolate programs and `allow_unsandboxed` is not set.
        """
        await self._running_engine().open()
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
        outcome = await self._run_once(
            {"task": "program", "code": code},
            files,
            memory_mib,
            stdin=_to_bytes(stdin),
            timeout_s=timeout_s,
            cpu_s=cpu_s,
        )
        return _python_result(outcome.result)

    async def call(
        self,
        code: str,
        function: str,
        arguments: Sequence[Sequence[Any]],
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        cpu_s: float | None = None,
        memory_mib: int = DEFAULT_MEMORY_MIB,
        files: Mapping[str, str | bytes] | None = None,
    ) -> PythonCalls:
        """Run `code`, then call `function` once per element of `arguments`, and return the values.

        `function` is a name in the program, a dotted name (`Solution.add` instantiates `Solution`), or a method of a
        class named `Solution`. All calls run in one process, and the limits apply to their sum.
        """
        request = {"task": "calls", "code": code, "function": function, "arguments": [list(item) for item in arguments]}
        outcome = await self._run_once(
            request, files, memory_mib, timeout_s=timeout_s, cpu_s=cpu_s, channel_limit=_VALUES_BYTES
        )
        return PythonCalls(_python_result(outcome.result), _parse_calls(outcome.channel, len(arguments)))

    def session(self, *, memory_mib: int = DEFAULT_MEMORY_MIB) -> "PythonSession":
        """Return a new session, which runs in a separate box until `aclose` or the end of `async with`."""
        spec = SandboxSpec(resources=SandboxResources(memory_mib=memory_mib))
        return PythonSession(self._running_engine(), spec, self._max_output_bytes)

    async def _run_once(
        self, request: dict[str, Any], files: Mapping[str, str | bytes] | None, memory_mib: int, **options: Any
    ) -> TaskResult:
        """Run one task in a fresh box, with `files` in its working directory."""
        contents = {
            path_inside(name, WORKDIR).removeprefix(f"{WORKDIR}/"): _to_bytes(content)
            for name, content in (files or {}).items()
        }
        spec = SandboxSpec(resources=SandboxResources(memory_mib=memory_mib))
        request = {**request, "files": contents}
        return await self._running_engine().run_once(spec, request, max_output_bytes=self._max_output_bytes, **options)

    def _running_engine(self) -> LocalProvider:
        if self._engine is None:
            self._engine = self._choose_engine()
        return self._engine

    def _choose_engine(self) -> LocalProvider:
        """Return the provider that runs the programs: given, created from its arguments, or without isolation."""
        if isinstance(self._provider, LocalProvider):
            return self._provider
        if self._provider is None or not isinstance(self._provider, SandboxProvider):
            if not probe().available and self._allow_unsandboxed:
                return UnsandboxedProvider()
            engine = create_provider(self._provider or {"local": {"warm": DEFAULT_WARM}})
            if isinstance(engine, LocalProvider):
                return engine
        raise ConfigError("PythonRunner needs the sandbox provider `local`", fix="{local: {}}")


class PythonSession:
    """A Python process that keeps its variables between snippets, like a notebook.

    The value of an expression at the end of a snippet is printed. The process is paused between snippets. Concurrent
    calls of `execute` are not supported.
    """

    def __init__(self, engine: LocalProvider, spec: SandboxSpec, max_output_bytes: int) -> None:
        self._engine = engine
        self._spec = spec
        self._max_output_bytes = max_output_bytes
        self._process: LocalSession | None = None
        self._generation = 0
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def generation(self) -> int:
        """Return how often the process was killed and its variables were lost."""
        return self._generation

    async def execute(self, code: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> PythonResult:
        """Run one snippet; `exit_code` is 1 if it raises.

        A snippet that exceeds `timeout_s` is interrupted and the variables stay. If the process must be killed, the
        variables are lost, `generation` increases and the next call starts a new process.

        Raises:
            SandboxError: the session is closed, or no box can be created.
        """
        if self._closed:
            raise SandboxError("the session is closed")
        if self._process is None:
            self._process = LocalSession(self._engine, self._spec, self._max_output_bytes)
        process = self._process
        try:
            return _python_result(await process.execute(code, timeout_s))
        finally:
            if process.is_unusable:
                self._process = None
                self._generation += 1
                await process.aclose()

    async def aclose(self) -> None:
        """Kill the processes of the session; later snippets raise. Idempotent."""
        self._closed = True
        process, self._process = self._process, None
        if process is not None:
            await process.aclose()


def require_isolation(config: Any) -> bool:
    """Check at start-up of a server that programs can be isolated; return whether they are.

    `config` is the server's config or a mapping. The result is False only if this machine cannot isolate programs and
    `config` sets `allow_unsandboxed: true`.

    Raises:
        SandboxUnsupportedError: this machine cannot isolate programs and `allow_unsandboxed` is not set.
    """
    allowed = config.get(ALLOW_KEY) if isinstance(config, Mapping) else getattr(config, ALLOW_KEY, None)
    isolation = probe()
    if not isolation.available and allowed is not True:
        raise SandboxUnsupportedError(
            f"this machine cannot isolate programs: {isolation.problem}",
            where="sandbox local",
            fix=f"{isolation.fix}; or set `{ALLOW_KEY}: true` in the server's config: no isolation, your permissions",
        )
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
    )


def _parse_calls(channel: bytes, count: int) -> list[PythonCall]:
    """Parse the JSON lines that the program wrote, one per call; calls without a line have `done=False`."""
    calls = [_parse_call(line) for line in channel.split(b"\n")[:-1][:count]]
    return calls + [PythonCall(done=False) for _ in range(count - len(calls))]


def _parse_call(line: bytes) -> PythonCall:
    """Parse one line, which is untrusted: the program may have written anything."""
    try:
        call = json.loads(line)
    except (ValueError, RecursionError):
        return PythonCall(error="the value is not valid JSON of a call")
    if not isinstance(call, dict) or call.keys() not in ({"value"}, {"error"}):
        return PythonCall(error="the value is not valid JSON of a call")
    error = call.get("error")
    return PythonCall(value=call.get("value"), error=None if error is None else str(error))
