"""Run Python that nobody vouches for: programs, function calls, and sessions that remember.

    async with PythonRunner() as runner:
        result = await runner.run("print(int(input()) ** 2)", stdin="12", timeout_s=2)

Every program has a box of its own that is thrown away afterwards. What it prints is data and nothing more: whether it
was right is decided outside, by whoever holds the expected answer, which never enters the box.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self

from nemo_gym.errors import ConfigError
from nemo_gym.sandbox.api import Provider
from nemo_gym.sandbox.providers.base import SandboxProvider
from nemo_gym.sandbox.providers.engine import inside
from nemo_gym.sandbox.providers.local.bubblewrap import WORKDIR
from nemo_gym.sandbox.providers.local.execution import Outcome
from nemo_gym.sandbox.providers.local.isolation import probe
from nemo_gym.sandbox.providers.local.provider import LocalProvider, contents
from nemo_gym.sandbox.providers.local.session import LocalSession
from nemo_gym.sandbox.providers.registry import create_provider
from nemo_gym.sandbox.providers.unsandboxed import Unsandboxed
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
    """What a program left.

    `kind` is None when it ran to its own end (then `exit_code` says how: an uncaught exception is 1); otherwise what
    ended it, one of `SandboxErrorKind`: timeout, cpu_time, memory, output, processes, disk, forbidden, crashed,
    sandbox. Only `sandbox` is not the program's doing.
    """

    stdout: str = ""
    stderr: str = ""
    kind: str | None = None
    exit_code: int = 0
    seconds: float = 0.0
    isolated: bool = True

    @property
    def ok(self) -> bool:
        """It ended by itself with status 0. Not a verdict: `os._exit(0)` is this, too."""
        return self.kind is None and self.exit_code == 0


@dataclass(frozen=True)
class PythonCall:
    """How one call ended: `value` as JSON can carry it (tuples and sets are lists), or the `error` it raised."""

    value: Any = None
    error: str | None = None
    done: bool = True
    """False: the program ended before this call did."""


@dataclass(frozen=True)
class PythonCalls:
    """How several calls of one function ended, in the order asked for, and what the program left."""

    result: PythonResult
    calls: list[PythonCall] = field(default_factory=list)


class PythonRunner:
    """Runs programs, each in a fresh box. Safe to share between tasks of one event loop.

    `provider` is that of an `AsyncSandbox`: `{"local": {…}}` (the default), an own one that others use, too. With
    `allow_unsandboxed` a machine without isolation runs programs as they are and every result says so.
    """

    def __init__(
        self,
        provider: Provider | None = None,
        *,
        allow_unsandboxed: bool = False,
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
    ) -> None:
        self._given = provider
        self._allow_unsandboxed = allow_unsandboxed
        self._max_output_bytes = max_output_bytes
        self._engine: LocalProvider | Unsandboxed | None = None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def isolated(self) -> bool:
        """Whether programs are shut in. False only where there is no isolation and that was allowed."""
        return not isinstance(self._ready(), Unsandboxed)

    async def start(self) -> Self:
        """Begin to make boxes ahead of need. `run` does it, too; a server that calls it early is warm early.

        Raises:
            SandboxUnsupportedError: programs cannot be isolated here and nobody allowed to go without.
        """
        await self._ready().open()
        return self

    async def aclose(self) -> None:
        """End what is still running and every box that waits; a second call does nothing."""
        engine, self._engine = self._engine, None
        if engine is not None and engine is not self._given:
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
        outcome = await self._once(
            {"task": "program", "code": code},
            files,
            memory_mib,
            stdin=stdin.encode(errors="replace") if isinstance(stdin, str) else stdin,
            timeout_s=timeout_s,
            cpu_s=cpu_s,
        )
        return _result(outcome.result)

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
        """Run `code`, then call `function` once per element of `arguments`; compare the values out here.

        `function` is a name in the program, a dotted one (`Solution.add` makes a `Solution()`), or a method of a class
        named `Solution`. The calls share one process and one clock.
        """
        words = {"task": "calls", "code": code, "function": function, "arguments": [list(one) for one in arguments]}
        outcome = await self._once(
            words, files, memory_mib, timeout_s=timeout_s, cpu_s=cpu_s, channel_limit=_VALUES_BYTES
        )
        return PythonCalls(_result(outcome.result), _calls(outcome.channel, len(arguments)))

    def session(self, *, memory_mib: int = DEFAULT_MEMORY_MIB) -> "PythonSession":
        """A session in a box of its own; `async with` or `aclose` ends it."""
        spec = SandboxSpec(resources=SandboxResources(memory_mib=memory_mib))
        return PythonSession(self._ready(), spec, self._max_output_bytes)

    async def _once(
        self, words: dict[str, Any], files: Mapping[str, str | bytes] | None, memory_mib: int, **options: Any
    ) -> Outcome:
        names = {inside(name, WORKDIR).removeprefix(f"{WORKDIR}/"): content for name, content in (files or {}).items()}
        spec = SandboxSpec(resources=SandboxResources(memory_mib=memory_mib))
        order = {**words, "files": contents(names)}
        return await self._ready().run_once(spec, order, max_output_bytes=self._max_output_bytes, **options)

    def _ready(self) -> LocalProvider | Unsandboxed:
        if self._engine is None:
            self._engine = self._chosen()
        return self._engine

    def _chosen(self) -> LocalProvider | Unsandboxed:
        if isinstance(self._given, LocalProvider):
            return self._given
        if self._given is None or not isinstance(self._given, SandboxProvider):
            if not probe().available and self._allow_unsandboxed:
                return Unsandboxed()
            made = create_provider(self._given or {"local": {"warm": DEFAULT_WARM}})
            if isinstance(made, LocalProvider):
                return made
        raise ConfigError("PythonRunner needs the sandbox provider `local`", fix="{local: {}}")


class PythonSession:
    """Python that keeps its names between calls, as in a notebook; the value of a last expression is printed.

    Between calls the process stands still. One call at a time.
    """

    def __init__(self, engine: LocalProvider | Unsandboxed, spec: SandboxSpec, max_output_bytes: int) -> None:
        self._engine = engine
        self._spec = spec
        self._max_output_bytes = max_output_bytes
        self._process: Process | None = None
        self._generation = 0
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def generation(self) -> int:
        """How often the names were lost: 0 until the program had to be killed."""
        return self._generation

    async def execute(self, code: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> PythonResult:
        """Run one piece of code; one that raises has `exit_code` 1.

        A piece that takes too long is interrupted and the names stay. One that has to be killed takes them along: then
        `generation` goes up and the next call starts anew.

        Raises:
            SandboxError: the session is closed, or no box can be made.
        """
        if self._closed:
            raise SandboxError("the session is closed")
        if self._process is None:
            self._process = self._new_process()
        process = self._process
        try:
            return _result(await process.execute(code, timeout_s))
        finally:
            if process.lost:
                self._process = None
                self._generation += 1
                await process.aclose()

    async def aclose(self) -> None:
        """End the session and all it started; a second call does nothing."""
        self._closed = True
        process, self._process = self._process, None
        if process is not None:
            await process.aclose()

    def _new_process(self) -> "Process":
        if isinstance(self._engine, Unsandboxed):
            return self._engine.session(self._max_output_bytes)
        return LocalSession(self._engine, self._spec, self._max_output_bytes)


class Process(Protocol):
    """A process that runs cells."""

    lost: bool

    async def execute(self, code: str, timeout_s: float) -> SandboxExecResult: ...

    async def aclose(self) -> None: ...


def require_isolation(config: Any) -> bool:
    """Call at start-up of a server that runs code: True when programs are isolated here.

    `config` is the server's config (or a mapping). Without isolation this is False if `allow_unsandboxed: true` is
    written there.

    Raises:
        SandboxUnsupportedError: no isolation, and nobody allowed to go without.
    """
    allowed = config.get(ALLOW_KEY) if isinstance(config, Mapping) else getattr(config, ALLOW_KEY, None)
    found = probe()
    if not found.available and allowed is not True:
        raise SandboxUnsupportedError(
            f"programs cannot be isolated here: {found.problem}",
            where="sandbox local",
            fix=f"{found.fix}; or write `{ALLOW_KEY}: true` in this server's config: programs can then do what you can",
        )
    return found.available


def _result(result: SandboxExecResult) -> PythonResult:
    detail = result.detail
    return PythonResult(
        stdout=result.stdout,
        stderr=result.stderr,
        kind=result.error_type,
        exit_code=result.return_code,
        seconds=0.0 if detail is None else detail.seconds or 0.0,
        isolated=detail is not None and detail.isolated,
    )


def _calls(said: bytes, count: int) -> list[PythonCall]:
    """What the program says its calls returned: claims, read with care, none of them trusted."""
    lines = said.split(b"\n")[:-1][:count]
    read = [_call(line) for line in lines]
    return read + [PythonCall(done=False) for _ in range(count - len(read))]


def _call(line: bytes) -> PythonCall:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return PythonCall(error="the value cannot be read")
    if not isinstance(found, dict) or found.keys() not in ({"value"}, {"error"}):
        return PythonCall(error="the value cannot be read")
    error = found.get("error")
    return PythonCall(value=found.get("value"), error=None if error is None else str(error))
