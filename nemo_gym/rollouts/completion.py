"""Rows sent, and results handed out as they come in."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any

from nemo_gym.rollouts.job import Row

Pair = tuple[Row, Any]


def in_completion_order(
    rows: Sequence[Row], send: Callable[[Row], Awaitable[Any]], *, at_once: int
) -> Iterator[Awaitable[Pair]]:
    """One awaitable per row; they give `(row, result)` in the order results come in, `at_once` rows in flight.

    What `send` raises is raised by one awaitable and concerns no other. Nothing is sent before the first awaitable
    is asked for, which needs a running loop; rows still in flight are cancelled when the iterator is closed early.
    """
    loop = asyncio.get_running_loop()
    exchange = _Exchange()
    waiting = iter(rows)

    async def worker() -> None:
        for row in waiting:  # shared by all workers: taking the next row never awaits
            try:
                result = await send(row)
            except Exception as error:  # handed to whoever awaits this row
                exchange.put(row, None, error)
            else:
                exchange.put(row, result, None)

    workers = [loop.create_task(worker()) for _ in range(min(at_once, len(rows)))]
    closed_early = True
    try:
        for _ in rows:
            future: asyncio.Future[Pair] = loop.create_future()
            # Whoever holds the future keeps the workers alive: the loop itself only knows them weakly.
            future.add_done_callback(partial(_keep, workers))
            exchange.ask(future)
            yield future
        closed_early = False
    finally:
        if closed_early:
            for task in workers:
                task.cancel()


def _keep(workers: list[asyncio.Task[None]], future: asyncio.Future[Pair]) -> None:
    """Nothing: being registered is all it is for."""


class _Exchange:
    """Pairs those who wait with what is finished, first come, first served."""

    def __init__(self) -> None:
        self._asked: deque[asyncio.Future[Pair]] = deque()
        self._finished: deque[tuple[Row, Any, Exception | None]] = deque()

    def ask(self, future: asyncio.Future[Pair]) -> None:
        self._asked.append(future)
        self._match()

    def put(self, row: Row, result: Any, error: Exception | None) -> None:
        self._finished.append((row, result, error))
        self._match()

    def _match(self) -> None:
        while self._asked and self._finished:
            future = self._asked.popleft()
            if future.done():
                continue  # given up by whoever asked: the result is for the next one
            row, result, error = self._finished.popleft()
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result((row, result))
