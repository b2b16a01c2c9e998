"""The state of a server process in shared memory: the heartbeat of its event loop and the handler that is running.

The launcher reads it while the process hangs, even if a thread never releases the interpreter lock, and after its end.
`run_handler` writes the handler at every step of a request, so the memory always names the request that executes. On
`STACK_SIGNAL` the process appends the stacks of its threads, without needing the interpreter lock.
"""

import asyncio
import faulthandler
import mmap
import os
import re
import signal
import struct
import time
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from nemo_gym.transport.call_timing import format_rollout
from nemo_gym.wire.stored_rollout import RolloutId

STACK_SIGNAL = signal.SIGRTMIN + 5
PAGE_BYTES = 4096
NAME_BYTES = 192
_WORD = 8
_ROLLOUT = struct.Struct("qq")
LABEL_BYTES = NAME_BYTES + _ROLLOUT.size
NO_ROLLOUT = _ROLLOUT.pack(-1, -1)
MAX_STACK_BYTES = 64 * 1024
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')

Result = TypeVar("Result")


@dataclass(frozen=True)
class RunningHandler:
    """A server and its endpoint, such as `POST /verify`, and the rollout of the request, if it is known."""

    server: str
    endpoint: str
    rollout: RolloutId | None = None

    def __str__(self) -> str:
        rollout = f" of rollout {format_rollout(self.rollout)}" if self.rollout else ""
        return f"{self.server}: {self.endpoint}{rollout}"


@dataclass(frozen=True)
class Frame:
    """A position in the stack of a thread."""

    path: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} in {self.function}"


@dataclass(frozen=True)
class Crash:
    """The unexpected end of a process and the handler that was running, which is its likely cause."""

    cause: str
    handler: RunningHandler | None = None
    frames: Sequence[Frame] = ()
    """The stacks of a process that was ended because it was blocked."""

    def __str__(self) -> str:
        location = f" ({self.frames[0]})" if self.frames else ""
        return f"{self.cause}; {self.handler} was running{location}" if self.handler else self.cause


def handler_name(server: str, method: str, path: str) -> bytes:
    """Return the part of a label that names a handler."""
    return f"{server}\n{method} {path}".encode(errors="replace")[:NAME_BYTES].ljust(NAME_BYTES, b"\0")


def handler_label(name: bytes, rollout: RolloutId | None = None) -> bytes:
    """Return the label of a request in the shared memory: the name of its handler and its rollout."""
    return name + (NO_ROLLOUT if rollout is None else _ROLLOUT.pack(*rollout))


NO_LABEL = bytes(LABEL_BYTES)


def _read_label(label: bytes) -> RunningHandler | None:
    server, separator, endpoint = label[:NAME_BYTES].rstrip(b"\0").decode(errors="replace").partition("\n")
    task, rollout = _ROLLOUT.unpack(label[NAME_BYTES:])
    return RunningHandler(server, endpoint, None if task < 0 else (task, rollout)) if separator else None


class ProcessStatus:
    """The status of this process; private memory until `share`."""

    def __init__(self) -> None:
        self._map(mmap.mmap(-1, PAGE_BYTES))

    def _map(self, page: mmap.mmap) -> None:
        view = memoryview(page)
        self._beat, self.label = view[:_WORD].cast("d"), view[_WORD : _WORD + LABEL_BYTES]

    def share(self, fd: int) -> None:
        """Use the shared memory `fd`, and write the stacks of all threads there on `STACK_SIGNAL`."""
        self._map(mmap.mmap(fd, PAGE_BYTES))
        with suppress(OSError):  # without /proc there are no stacks
            stacks = os.fdopen(os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC), "wb", 0)
            faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=True)
        os.close(fd)

    def beat(self) -> None:
        """Record that the event loop runs."""
        self._beat[0] = time.monotonic()

    def running_handler(self) -> RunningHandler | None:
        """Return the handler that is running; None outside any request."""
        return _read_label(bytes(self.label))


own_status = ProcessStatus()
"""The status of this process."""


class StatusReader:
    """The shared memory of another process, created for it by the launcher."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("nemo-gym-status")
        os.ftruncate(self.fd, PAGE_BYTES)
        self._last_beat = 0.0
        self._last_check = time.monotonic()
        self.seconds_blocked = 0.0
        """The result of the last `check`."""

    def check(self) -> float:
        """Return for how many seconds the event loop has not run; 0 before its first heartbeat.

        A call adds at most one second: otherwise a process would seem blocked after the launcher was suspended.
        """
        now = time.monotonic()
        elapsed, self._last_check = now - self._last_check, now
        beat = self._beat()
        if beat != self._last_beat or not beat:
            self._last_beat, self.seconds_blocked = beat, 0.0
        else:
            self.seconds_blocked += min(elapsed, 1.0)
        return self.seconds_blocked

    def _beat(self) -> float:
        return float(memoryview(os.pread(self.fd, _WORD, 0)).cast("d")[0])

    def handler(self) -> RunningHandler | None:
        """Return the handler that is running, or was when the process ended; None outside any request."""
        return _read_label(os.pread(self.fd, LABEL_BYTES, _WORD))

    def frames(self) -> list[Frame]:
        """Return the frames that the process wrote on `STACK_SIGNAL`, innermost first."""
        text = os.pread(self.fd, MAX_STACK_BYTES, PAGE_BYTES).decode(errors="replace")
        return [Frame(path, int(line), function) for path, line, function in _FRAME.findall(text)]

    def close(self) -> None:
        os.close(self.fd)


def _forget_cancellations(task: "asyncio.Task[Any]", count: int) -> int:
    """Make a task count as not cancelled `count` times; return 0."""
    for _ in range(count):
        task.uncancel()
    return 0


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


class run_handler(Generic[Result]):  # noqa: N801 - awaited like a function, once for every call
    """`await run_handler(coroutine, label, context)`: run the coroutine of a request in this task, as `label`.

    Every step of the coroutine writes its label to the shared memory and restores that of the caller, so that the
    memory names the innermost handler that executes. With `context` the coroutine has other context variables: as over
    HTTP, a handler cannot read or change those of its caller. A separate task would cost more than most handlers; this
    class steps the coroutine itself instead. Cancelling the task cancels the coroutine.

    If the coroutine itself cancels the task, which is also that of its caller, only the coroutine is cancelled: the
    `CancelledError` is delivered to it, and the task no longer counts as cancelled.
    """

    __slots__ = ("_context", "_coroutine", "_label", "_task")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Result],
        label: bytes,
        context: Context | None = None,
        task: "asyncio.Task[Any] | None" = None,
    ) -> None:
        """Prepare the run. `task`, the running task, saves looking it up."""
        self._coroutine = coroutine
        self._label = label
        self._context = context
        self._task = task

    def __await__(self) -> Generator[Any, Any, Result]:
        """Step the coroutine; yield its futures to the event loop, and send results and errors back to it."""
        step = _call if self._context is None else self._context.run
        coroutine, label, shown = self._coroutine, self._label, own_status.label
        task = self._task or asyncio.current_task()
        assert task is not None
        caller = bytes(shown)
        own_cancels = 0  # cancellations of the task by the coroutine
        cancels = task.cancelling()
        shown[:] = label
        try:
            future = step(coroutine.send, None)
            while True:
                shown[:] = caller
                if task.cancelling() > cancels:
                    own_cancels += task.cancelling() - cancels
                try:
                    value = yield future
                except GeneratorExit:
                    shown[:] = label
                    step(coroutine.close)
                    raise
                except BaseException as error:  # usually a cancellation, which the coroutine must handle
                    shown[:] = label
                    own_cancels = _forget_cancellations(task, own_cancels)
                    cancels = task.cancelling()
                    future = step(coroutine.throw, error)
                else:
                    shown[:] = label
                    cancels = task.cancelling()
                    future = step(coroutine.send, value)
        except StopIteration as returned:
            result: Result = returned.value
        finally:
            shown[:] = caller
        if task.cancelling() > cancels:
            own_cancels += task.cancelling() - cancels
        if own_cancels:
            cancels = task.cancelling()
            with suppress(asyncio.CancelledError):
                yield  # the loop delivers the cancellation here, if it has not yet
            if task.cancelling() > cancels:  # by other code, in the meantime
                raise asyncio.CancelledError
            _forget_cancellations(task, own_cancels)
        return result
