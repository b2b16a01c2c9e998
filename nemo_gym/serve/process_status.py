"""The state of a server process in shared memory: the heartbeat of its event loop and the handler that is running.

The launcher reads it while the process hangs, even if a thread never releases the interpreter lock, and after its end.
`run_handler` writes the handler at every step of a request, so the memory always names the request that executes; a
table names the requests of other threads (`thread_handlers`). On `STACK_SIGNAL` the process appends the stacks of its
threads, and on a fatal signal that of the crashing thread, without needing the interpreter lock.
"""

import asyncio
import faulthandler
import logging
import mmap
import os
import re
import signal
import struct
import threading
import time
import types
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from nemo_gym.transport.call_timing import current_rollout, format_rollout
from nemo_gym.wire.stored_rollout import RolloutId

logger = logging.getLogger("nemo_gym.serve")

STACK_SIGNAL = signal.SIGRTMIN + 5
NAME_BYTES = 192
_WORD = 8
_ROLLOUT = struct.Struct("qq")
LABEL_BYTES = NAME_BYTES + _ROLLOUT.size
MAX_THREADS = 250
"""Threads whose requests are known at once."""
_THREAD = struct.Struct(f"Q{LABEL_BYTES}s")
_LABEL_AT, _CULPRIT_AT, _LOOP_THREAD_AT, _THREADS_AT = _WORD, 256, 512, 520
_COUNTERS_AT = _THREADS_AT + MAX_THREADS * _THREAD.size
MAX_COUNTERS = 64
STATUS_BYTES = 56 * 1024
"""Size of the shared memory, a multiple of the page size; stacks follow."""
NO_ROLLOUT = _ROLLOUT.pack(-1, -1)
MAX_STACK_BYTES = 1024 * 1024
_FATAL = b"Fatal Python error"
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')
_THREAD_LINE = re.compile(r"(Current )?[Tt]hread 0x([0-9a-f]+)")

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
    thread: int = 0
    """The identifier of the thread."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line} in {self.function}"


@dataclass(frozen=True)
class Crash:
    """The unexpected end of a process and the handler that was running, which is its likely cause."""

    cause: str
    handler: RunningHandler | None = None
    frames: Sequence[Frame] = ()
    """The stacks of a process that was blocked, or the stack of the thread that crashed."""

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

    stacks_fd: int | None = None
    """The open file for stacks; no code of a server closes it on purpose."""
    is_fork = False
    """True in a process that code of a server has forked."""
    _pid = 0

    def __init__(self) -> None:
        self._map(mmap.mmap(-1, STATUS_BYTES))

    def _map(self, memory: mmap.mmap) -> None:
        self._view = view = memoryview(memory)
        self._beat, self.label = view[:_WORD].cast("d"), view[_LABEL_AT : _LABEL_AT + LABEL_BYTES]
        self.counters = view[_COUNTERS_AT : _COUNTERS_AT + MAX_COUNTERS * _WORD].cast("d")
        """Numbers that the process counts; `run_counts` says which."""
        self._free_entries = list(range(MAX_THREADS))
        self._threads: dict[int, tuple[bytes, int | None]] = {}
        """The label of each thread that works for a request, and its entry in the table; None if the table is full."""

    def share(self, fd: int) -> None:
        """Use the shared memory `fd`; write stacks there on `STACK_SIGNAL` and on fatal signals.

        Call it on the thread that will run the event loop.
        """
        self._map(mmap.mmap(fd, STATUS_BYTES))
        self._pid = os.getpid()
        self._view[_LOOP_THREAD_AT:_THREADS_AT].cast("Q")[0] = threading.get_ident()
        with suppress(OSError):  # without /proc there are no stacks
            stacks = os.fdopen(os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC), "wb", 0)
            self.stacks_fd = stacks.fileno()
            faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=True)
            faulthandler.enable(stacks)
        os.close(fd)
        os.register_at_fork(after_in_child=self._note_fork)

    def _note_fork(self) -> None:
        self.is_fork = True

    def end_fork(self, label: bytes) -> NoReturn:
        """End this fork of a server process, which left the handler `label` that forked it.

        It would answer the requests of its parent a second time, and keep the sockets and pipes of the run open.
        """
        text = "code of %s forked this process and did not end it; it is ended now (call os._exit in the child)"
        logger.error(text, _read_label(label) or "a server")
        os._exit(1)

    def thread_label(self) -> bytes:
        """Return the label of the request that the running thread works for; `NO_LABEL` without one."""
        entry = self._threads.get(threading.get_ident())
        if entry is not None:
            return entry[0]
        is_loop_thread = threading.current_thread() is threading.main_thread()
        return bytes(self.label) if is_loop_thread else NO_LABEL

    @contextmanager
    def working_for(self, label: bytes) -> Iterator[None]:
        """Record in a `with` block that the running thread works for the request with this label."""
        ident = threading.get_ident()
        outer = self._threads.get(ident)
        entry = outer[1] if outer is not None else self._free_entry()
        self._write_thread(ident, label, entry)
        was_fork = self.is_fork
        try:
            yield
        finally:
            if self.is_fork is not was_fork:
                self.end_fork(label)
            if outer is not None:
                self._write_thread(ident, outer[0], entry)
            else:
                del self._threads[ident]
                if entry is not None:
                    _THREAD.pack_into(self._view, _THREADS_AT + entry * _THREAD.size, 0, NO_LABEL)
                    self._free_entries.append(entry)

    def _free_entry(self) -> int | None:
        """Take a free entry of the table of threads; None if all are in use."""
        return self._free_entries.pop() if self._free_entries else None

    def _write_thread(self, ident: int, label: bytes, entry: int | None) -> None:
        self._threads[ident] = label, entry
        if entry is not None:
            _THREAD.pack_into(self._view, _THREADS_AT + entry * _THREAD.size, ident, label)

    def name_culprit(self) -> None:
        """Record that the running thread ends this process, and its stack; no effect in a child forked from it.

        A background task of the event loop has no label; the rollout whose request started it is known.
        """
        if os.getpid() != self._pid:
            return
        label = self.thread_label()
        if label == NO_LABEL and self._view[_CULPRIT_AT : _CULPRIT_AT + LABEL_BYTES] != NO_LABEL:
            return  # the orderly end of a process that a request has sent SIGTERM
        if label == NO_LABEL:
            label = handler_label(handler_name("", "background", "task"), current_rollout())
        self._view[_CULPRIT_AT : _CULPRIT_AT + LABEL_BYTES] = label
        if self.stacks_fd is not None:
            with suppress(OSError):
                os.write(self.stacks_fd, _FATAL)
                faulthandler.dump_traceback(self.stacks_fd)

    def clear_culprit(self) -> None:
        """Withdraw `name_culprit`, because the process goes on."""
        if os.getpid() != self._pid:
            return
        self._view[_CULPRIT_AT : _CULPRIT_AT + LABEL_BYTES] = NO_LABEL
        if self.stacks_fd is not None:
            with suppress(OSError):
                os.write(self.stacks_fd, _FATAL + b"\n")  # only the text after the last mark counts

    @contextmanager
    def showing(self, label: bytes) -> Iterator[None]:
        """Name a request in a `with` block without an `await`, on the thread of the event loop."""
        shown, whole = self.label, slice(None)
        outer = bytes(shown)
        shown[whole] = label
        try:
            yield
        finally:
            shown[whole] = outer

    def beat(self) -> None:
        """Record that the event loop runs."""
        self._beat[0] = time.monotonic()

    def running_handler(self) -> RunningHandler | None:
        """Return the handler that is running; None outside any request."""
        return _read_label(bytes(self.label))


own_status = ProcessStatus()
"""The status of this process."""


def _read_number(fd: int, offset: int) -> int:
    return int(memoryview(os.pread(fd, _WORD, offset)).cast("Q")[0])


def _parse_frames(text: bytes, *, only_current: bool = False) -> list[Frame]:
    """Return the frames in the stacks that `faulthandler` wrote: of all threads, or only of the current one."""
    frames: list[Frame] = []
    thread, is_current = 0, True
    for line in text.decode(errors="replace").splitlines():
        if match := _THREAD_LINE.search(line):
            thread, is_current = int(match[2], 16), match[1] is not None
        elif (match := _FRAME.search(line)) and (is_current or not only_current):
            frames.append(Frame(match[1], int(match[2]), match[3], thread))
    return frames


class StatusReader:
    """The shared memory of another process, created for it by the launcher."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("nemo-gym-status")
        os.ftruncate(self.fd, STATUS_BYTES)
        self._stacks_at = STATUS_BYTES
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

    def counters(self, count: int) -> Sequence[float]:
        """Return the first `count` numbers that the process counts."""
        return struct.unpack(f"{count}d", os.pread(self.fd, count * _WORD, _COUNTERS_AT))

    def handler(self) -> RunningHandler | None:
        """Return the handler that the event loop runs, or ran when the process ended; None outside any request."""
        return _read_label(os.pread(self.fd, LABEL_BYTES, _LABEL_AT))

    def culprit(self) -> RunningHandler | None:
        """Return the handler that ended the process, as far as it is known: the one that the crashing thread ran."""
        named = _read_label(os.pread(self.fd, LABEL_BYTES, _CULPRIT_AT))
        if named is not None:
            return named
        crashed = self.fatal_frames()
        if not crashed or crashed[0].thread == _read_number(self.fd, _LOOP_THREAD_AT):
            return self.handler()
        return self._threads().get(crashed[0].thread)

    def blocking_handler(self) -> RunningHandler | None:
        """Return the handler that stops the event loop; in a thread, one that holds the interpreter lock."""
        running = self.handler()
        if running is not None:
            return running
        handlers = set(self._threads().values())
        if len(handlers) > 1:  # which of them is unknown, unless all belong to one server
            handlers = {RunningHandler(handler.server, handler.endpoint) for handler in handlers}
        return handlers.pop() if len(handlers) == 1 else None

    def _threads(self) -> dict[int, RunningHandler]:
        """Return the handlers that threads work for, by thread."""
        table = os.pread(self.fd, MAX_THREADS * _THREAD.size, _THREADS_AT)
        entries = {ident: _read_label(label) for ident, label in _THREAD.iter_unpack(table) if ident}
        return {ident: handler for ident, handler in entries.items() if handler is not None}

    def begin_stacks(self) -> None:
        """Let `frames` skip what was written before."""
        self._stacks_at = os.fstat(self.fd).st_size

    def frames(self) -> list[Frame]:
        """Return the frames that the process wrote on `STACK_SIGNAL` since `begin_stacks`, innermost first."""
        return _parse_frames(os.pread(self.fd, MAX_STACK_BYTES, self._stacks_at))

    def fatal_frames(self) -> list[Frame]:
        """Return the frames of the thread that ended the process, innermost first; empty if it is unknown."""
        before = max(STATUS_BYTES, os.fstat(self.fd).st_size - MAX_STACK_BYTES)
        _, fatal, stack = os.pread(self.fd, MAX_STACK_BYTES, before).rpartition(_FATAL)
        return _parse_frames(stack, only_current=True) if fatal else []

    def close(self) -> None:
        os.close(self.fd)


def _forget_cancellations(task: "asyncio.Task[Any]", count: int) -> int:
    """Make a task count as not cancelled `count` times; return 0."""
    for _ in range(count):
        task.uncancel()
    return 0


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


@types.coroutine
def run_handler(
    coroutine: Coroutine[Any, Any, Result],
    label: bytes,
    context: Context | None = None,
    task: "asyncio.Task[Any] | None" = None,
) -> Generator[Any, Any, Result]:
    """Run the coroutine of a request in this task, as `label`. `task`, the running task, saves looking it up.

    Every step of the coroutine writes its label to the shared memory and restores that of the caller, so that the
    memory names the innermost handler that executes. With `context` the coroutine has other context variables: as over
    HTTP, a handler cannot read or change those of its caller. A separate task would cost more: this generator yields
    the futures of the coroutine to the event loop and sends results back. Cancelling the task cancels the coroutine.

    If the coroutine itself cancels the task, which is also that of its caller, only the coroutine is cancelled: the
    `CancelledError` is delivered to it, and the task no longer counts as cancelled.
    """
    step = _call if context is None else context.run
    task = task or asyncio.current_task()
    assert task is not None
    shown, whole = own_status.label, slice(None)
    caller, was_fork = bytes(shown), own_status.is_fork
    own_cancels, cancels = 0, task.cancelling()  # of the task: by the coroutine, by any code
    shown[whole] = label
    try:
        future = step(coroutine.send, None)
        while True:
            _ = own_status.is_fork is was_fork or own_status.end_fork(label)
            shown[whole] = caller
            if (count := task.cancelling()) != cancels:
                own_cancels += max(0, count - cancels)
                cancels = count
            try:
                value = yield future
            except GeneratorExit:
                shown[whole] = label
                step(coroutine.close)
                raise
            except BaseException as error:  # usually a cancellation, which the coroutine must handle
                shown[whole] = label
                own_cancels = _forget_cancellations(task, own_cancels)
                cancels = task.cancelling()
                future = step(coroutine.throw, error)
            else:  # other code has not cancelled the task: it would have got the error
                shown[whole] = label
                future = step(coroutine.send, value)
    except StopIteration as returned:
        result: Result = returned.value
    finally:
        _ = own_status.is_fork is was_fork or own_status.end_fork(label)
        shown[whole] = caller
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
