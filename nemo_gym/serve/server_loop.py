"""Run the event loop of a server process so that code of a server ends neither the loop nor the requests of others."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

logger = logging.getLogger("nemo_gym.serve")


def run_server_loop(
    main: Coroutine[Any, Any, None], loop_factory: Callable[[], asyncio.AbstractEventLoop] | None
) -> None:
    """Run the coroutine of a server process to its end.

    `SystemExit` out of a background task or a callback, and `loop.stop()`, stop the loop; it is resumed, because they
    would cost the servers of the process all their requests. After any other error of the loop the process ends at
    once: an orderly end would answer the pending requests with errors of servers that did nothing wrong.
    """
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        loop = runner.get_loop()
        task = loop.create_task(main)
        while not task.done():
            try:
                loop.run_until_complete(task)
            except BaseException as error:
                if task.done():
                    raise
                is_resumed = isinstance(error, SystemExit | KeyboardInterrupt | RuntimeError) and not loop.is_closed()
                effect = "the servers of this process go on" if is_resumed else "this process ends"
                logger.error("code of a server stopped the event loop; %s", effect, exc_info=error)
                if not is_resumed:
                    os._exit(1)


async def ignore_cancellation(wait: Callable[[], Awaitable[object]]) -> None:
    """Await the result of `wait`, again if it is cancelled: code of a server may cancel all tasks of its process."""
    while True:
        with suppress(asyncio.CancelledError):
            await wait()
            return
