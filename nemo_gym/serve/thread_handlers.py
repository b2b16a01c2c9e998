"""Record which request a thread works for, so that a crash or a block in a thread names its culprit.

`watch_threads` replaces the functions that hand work to threads and those that end a process. The replacements note the
request that is running, then call the original. Only server processes use them.
"""

import functools
import os
import posix
import signal
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import anyio.to_thread

from nemo_gym.serve.process_status import NO_LABEL, own_status

FATAL_SIGNALS = frozenset(
    {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE}
)

POOL_MODULES = frozenset({"concurrent.futures.thread", "anyio._backends._asyncio"})
"""Modules whose threads work for one request after the other; each piece of work has its own label."""

ResultT = TypeVar("ResultT")


def for_this_request(function: Callable[..., ResultT]) -> Callable[..., ResultT]:
    """Return the function for a call on another thread, which then works for the request that is running now."""
    label = own_status.thread_label()
    return function if label == NO_LABEL else functools.partial(_call_for_request, label, function)


def _call_for_request(label: bytes, function: Callable[..., ResultT], *args: Any, **kwargs: Any) -> ResultT:
    with own_status.working_for(label):
        return function(*args, **kwargs)


def watch_threads() -> None:
    """Note the request for threads, executors and `anyio`, and when code of a server ends this process."""
    start_thread, submit, run_sync = threading.Thread.start, ThreadPoolExecutor.submit, anyio.to_thread.run_sync

    def start(thread: threading.Thread) -> None:
        if not _is_of_pool(thread):  # it would name the request that started it for the rest of its life
            thread.run = for_this_request(thread.run)  # type: ignore[method-assign]
        start_thread(thread)

    def submit_for_request(
        executor: ThreadPoolExecutor, function: Callable[..., ResultT], /, *args: Any, **kwargs: Any
    ) -> "Future[ResultT]":
        return submit(executor, for_this_request(function), *args, **kwargs)

    def run_for_request(function: Callable[..., ResultT], *args: Any, **options: Any) -> Awaitable[ResultT]:
        return run_sync(for_this_request(function), *args, **options)

    threading.Thread.start = start  # type: ignore[method-assign, assignment]
    ThreadPoolExecutor.submit = submit_for_request  # type: ignore[method-assign, assignment]
    anyio.to_thread.run_sync = run_for_request  # type: ignore[assignment]
    _watch_ends_of_process()


def _watch_ends_of_process() -> None:
    """Note the request when code of a server calls a function that ends this process or replaces its program."""
    os._exit = posix._exit = _naming_culprit(os._exit)
    os.abort = _naming_culprit(os.abort)
    os.execv, os.execve = _naming_culprit(os.execv), _naming_culprit(os.execve)  # the other `exec` functions call them
    signal.raise_signal = _naming_culprit(signal.raise_signal, is_fatal=lambda number: number in FATAL_SIGNALS)
    signal.pthread_kill = _naming_culprit(signal.pthread_kill, is_fatal=lambda _, number: number in FATAL_SIGNALS)
    os.kill = _naming_culprit(os.kill, is_fatal=_is_fatal_here)
    os.killpg = _naming_culprit(os.killpg, is_fatal=lambda group, number: _is_fatal_here(-group, number))
    os.closerange = _naming_culprit(os.closerange, is_fatal=_is_stacks_file_in_range)


def _is_of_pool(thread: threading.Thread) -> bool:
    target = getattr(thread, "_target", None)
    return not POOL_MODULES.isdisjoint({type(thread).__module__, getattr(target, "__module__", None)})


def _is_fatal_here(pid: int, number: int) -> bool:
    """Return whether `os.kill` ends this process: `pid` names it or its group, as 0 does."""
    return number in FATAL_SIGNALS and pid in (os.getpid(), -os.getpgrp(), 0)


def _is_stacks_file_in_range(low: int, high: int) -> bool:
    """Return whether `os.closerange` closes a file that this process needs, and with it the files of its event loop."""
    return own_status.stacks_fd is not None and low <= own_status.stacks_fd < high


def _naming_culprit(function: Callable[..., Any], is_fatal: Callable[..., bool] = lambda *_, **__: True) -> Any:
    """Return the function; a call that ends the process notes the request of the running thread first.

    A call that raises an error has not ended the process.
    """

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        if not is_fatal(*args, **options):
            return function(*args, **options)
        own_status.name_culprit()
        try:
            return function(*args, **options)
        except OSError:
            own_status.clear_culprit()
            raise

    return call
