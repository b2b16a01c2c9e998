"""The end of sessions: call a server's `close` hook once for every session, with a deadline, whatever ended it."""

import asyncio
import inspect
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import Context
from time import monotonic
from typing import Any

from fastapi import FastAPI

from nemo_gym.serve.blocking import run_blocking
from nemo_gym.transport import deadlines

logger = logging.getLogger("nemo_gym.serve")


def is_close_hook(close: Any) -> bool:
    """Return True if a method takes a session id: another `close` of a server folder is not the hook."""
    return callable(close) and "session_id" in inspect.signature(close).parameters


class SessionCloser:
    """Calls `close(session_id=…)` once for each session that was opened.

    A session is closed after its verification, when the agent reports that it gave up, when its seed failed, when it is
    seeded again, when it was unused for `idle_seconds`, and when the server stops.
    """

    def __init__(self, close: Callable[..., Any], *, name: str, timeout: float, idle_seconds: float) -> None:
        self._close = close
        self._name = name
        self._timeout = timeout
        self._idle_seconds = idle_seconds
        self._used_at: OrderedDict[str, float] = OrderedDict()  # least recently used first
        self._closing: dict[str, asyncio.Task[None]] = {}  # the running hooks

    async def open(self, session_id: str) -> None:
        """Register a session; end the one that has the same id first, and start closing those that are idle."""
        await self.close(session_id)
        self._used_at[session_id] = monotonic()
        oldest_allowed = monotonic() - self._idle_seconds
        for idle_id, used_at in list(self._used_at.items()):
            if used_at >= oldest_allowed:
                break
            logger.warning("%s: a session was unused for %g s and is closed", self._name, self._idle_seconds)
            self.close_later(idle_id)

    def touch(self, session_id: str) -> None:
        """Mark a session as used."""
        if session_id in self._used_at:
            self._used_at[session_id] = monotonic()
            self._used_at.move_to_end(session_id)

    def close_later(self, session_id: str) -> None:
        """Close a session in the background, if it is open; the caller's deadline does not apply."""
        if self._used_at.pop(session_id, None) is not None:
            task = asyncio.get_running_loop().create_task(self._call_hook(session_id), context=Context())
            self._closing[session_id] = task
            task.add_done_callback(lambda _: self._closing.pop(session_id, None))

    async def close(self, session_id: str) -> None:
        """Close a session, if it is open, and wait for the end of its hook, also of one that runs already."""
        self.close_later(session_id)
        while (task := self._closing.get(session_id)) is not None:
            await asyncio.wait({task})  # a caller that gives up does not end the hook

    async def close_all(self) -> None:
        """Close the open sessions and wait for all hooks, slightly longer than the timeout of one hook."""
        for session_id in list(self._used_at):
            self.close_later(session_id)
        if self._closing:
            await asyncio.wait(self._closing.values(), timeout=self._timeout + 1.0)

    async def _call_hook(self, session_id: str) -> None:
        """Call the hook; log its error, or that it took too long. A failing hook fails no rollout."""
        try:
            if inspect.iscoroutinefunction(self._close):
                with deadlines.time_limit(self._timeout):
                    async with asyncio.timeout(self._timeout):
                        await self._close(session_id=session_id)
            else:
                await run_blocking(self._close, timeout=self._timeout, session_id=session_id)
        except TimeoutError:
            logger.warning(
                "%s: close() of a session did not end within %g s (close_timeout_seconds)", self._name, self._timeout
            )
        except Exception:  # the hook is code of a server folder
            logger.exception("%s: close() of a session failed", self._name)

    def close_at_shutdown(self, app: FastAPI) -> None:
        """Close all sessions when the app stops."""
        call_at_shutdown(app, self.close_all)


def call_at_shutdown(app: FastAPI, close_all: Callable[[], Awaitable[None]]) -> None:
    """Await `close_all` when the app stops."""
    inner_lifespan = app.router.lifespan_context

    @asynccontextmanager
    async def closing_lifespan(running_app: Any) -> AsyncIterator[Any]:
        async with inner_lifespan(running_app) as state:
            try:
                yield state
            finally:
                await close_all()

    app.router.lifespan_context = closing_lifespan
