"""Running a coroutine inside the caller's task, but with context variables of its own.

A handler called in memory must not see (or change) its caller's context variables, as it would not over HTTP. A task of
its own would see to that and costs more than most handlers; stepping the coroutine in another context does the same.
Cancelling the task cancels the coroutine, because there is only the one task.
"""

from collections.abc import Coroutine, Generator
from contextvars import Context
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


class Isolated(Generic[Result]):
    """`await Isolated(coroutine, context)`: every step of the coroutine runs in `context`."""

    __slots__ = ("_context", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, Result], context: Context) -> None:
        self._coroutine = coroutine
        self._context = context

    def __await__(self) -> Generator[Any, Any, Result]:
        step, coroutine = self._context.run, self._coroutine
        try:
            awaited = step(coroutine.send, None)
            while True:
                try:
                    value = yield awaited
                except GeneratorExit:
                    step(coroutine.close)
                    raise
                except BaseException as error:  # a cancellation, most often: for the coroutine to deal with
                    awaited = step(coroutine.throw, error)
                else:
                    awaited = step(coroutine.send, value)
        except StopIteration as finished:
            result: Result = finished.value
            return result
