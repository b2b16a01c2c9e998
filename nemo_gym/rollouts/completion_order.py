"""Send rows and return their results in the order of completion."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from nemo_gym.wire.stored_rollout import Row

Pair = tuple[Row, Any]


def in_completion_order(
    rows: Sequence[Row], send: Callable[[Row], Awaitable[Any]], *, at_once: int
) -> Iterator[Awaitable[Pair]]:
    """Yield one awaitable per row; the n-th returns the n-th completed `(row, result)`. `at_once` rows are in flight.

    An exception of `send` is raised by one awaitable and affects no other. Rows are sent from the first `next()` on,
    which needs a running event loop. Closing the iterator early cancels the rows in flight.
    """
    loop = asyncio.get_running_loop()
    futures: deque[asyncio.Future[Pair]] = deque()
    results: deque[tuple[Row, Any, Exception | None]] = deque()
    queue = iter(rows)

    def assign_results() -> None:
        while futures and results:
            future = futures.popleft()
            if future.done():
                continue  # cancelled by the caller: the result goes to the next future
            row, result, error = results.popleft()
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result((row, result))

    async def worker() -> None:
        for row in queue:  # shared by all workers: taking the next row never awaits
            try:
                results.append((row, await send(row), None))
            except Exception as error:  # raised by the awaitable of this row
                results.append((row, None, error))
            assign_results()

    workers = [loop.create_task(worker()) for _ in range(min(at_once, len(rows)))]
    is_complete = False
    try:
        for _ in rows:
            future: asyncio.Future[Pair] = loop.create_future()
            # The future keeps the workers alive: the loop itself only holds weak references to them.
            future.add_done_callback(lambda _: workers)
            futures.append(future)
            assign_results()
            yield future
        is_complete = True
    finally:
        if not is_complete:
            for task in workers:
                task.cancel()
