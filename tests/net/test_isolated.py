"""A coroutine stepped in another context: same task, other variables."""

import asyncio
from contextvars import Context, ContextVar

import pytest

from nemo_gym.net.isolated import Isolated

WHO: ContextVar[str] = ContextVar("who", default="nobody")


async def test_neither_side_sees_the_others_variables() -> None:
    """Over HTTP nothing but the request travels; in memory it must be the same."""

    async def inner() -> str:
        before = WHO.get()
        WHO.set("inner")
        await asyncio.sleep(0)
        return f"{before}, {WHO.get()}"

    WHO.set("outer")

    assert await Isolated(inner(), Context()) == "nobody, inner"
    assert WHO.get() == "outer"


async def test_it_is_the_same_task() -> None:
    """That is the point: no second task, and cancelling the one is enough."""

    async def inner() -> asyncio.Task[None] | None:
        await asyncio.sleep(0)
        return asyncio.current_task()

    assert await Isolated(inner(), Context()) is asyncio.current_task()


async def test_an_exception_comes_out_and_a_cancellation_goes_in() -> None:
    async def raises() -> None:
        await asyncio.sleep(0)
        raise KeyError("x")

    seen: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append(WHO.get())
            raise

    with pytest.raises(KeyError):
        await Isolated(raises(), Context())
    WHO.set("outer")

    async def outer() -> None:
        await Isolated(waits(), Context())

    task = asyncio.create_task(outer())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["nobody"]


async def test_a_timeout_inside_works_as_anywhere() -> None:
    """Handlers use `asyncio.timeout` and task groups; both ask for the current task."""

    async def inner() -> str:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            async with asyncio.TaskGroup() as group:
                late = group.create_task(asyncio.sleep(0, "late"))
            return late.result()
        return "never"

    assert await Isolated(inner(), Context()) == "late"


async def test_one_that_is_dropped_closes_its_coroutine() -> None:
    """Nothing may linger when a loop is shut down in the middle."""
    closed: list[bool] = []

    async def inner() -> None:
        try:
            await asyncio.sleep(1)
        finally:
            closed.append(True)

    steps = Isolated(inner(), Context()).__await__()
    next(steps)
    steps.close()

    assert closed == [True]
