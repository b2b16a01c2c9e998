"""Sessions of an agent, whose id the caller chooses: each begins once, ends once, and does not begin again.

The end of a session is remembered for a while: closing it again gives the same answer, and a late seed is refused.
Sessions that are open when the server stops are ended then.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from time import monotonic
from typing import Any
from weakref import WeakValueDictionary

from fastapi import HTTPException

from nemo_gym.wire.session_requests import (
    AgentCloseSessionRequest,
    AgentCloseSessionResponse,
    AgentSeedSessionRequest,
    AgentSeedSessionResponse,
)

logger = logging.getLogger("nemo_gym.serve")

CLOSE_ALL_SECONDS = 8.0
"""Time for the end of all sessions when the server stops, within `shutdown_timeout_seconds`."""
AGENT_SESSION_COOKIE_KEY = "agent_session_id"
"""Key in the session cookie: the id of the agent's session."""


@dataclass
class AgentSessionState:
    """What an agent keeps for a session; subclasses add fields."""

    request: AgentSeedSessionRequest


class AgentSessionSetupError(Exception):
    """The setup of a session failed after it had acquired something: `state` is kept, so that it can be closed."""

    def __init__(self, state: AgentSessionState, *, error: BaseException) -> None:
        super().__init__(str(error))
        self.state = state
        self.error = error


@dataclass
class _AgentSessionRecord:
    """An open session; while it is being closed no request may use it."""

    request: AgentSeedSessionRequest
    state: AgentSessionState
    is_ready: bool = True
    is_closing: bool = False


@dataclass
class _CloseReceipt:
    """The answer to the end of a session."""

    request: AgentCloseSessionRequest
    answer: AgentCloseSessionResponse
    expires: float


SeedState = Callable[[AgentSeedSessionRequest], Awaitable[AgentSessionState]]
CloseState = Callable[[AgentSessionState], Awaitable[AgentCloseSessionResponse]]


class AgentSessions:
    """The sessions of one agent server."""

    def __init__(self, seed_state: SeedState, close_state: CloseState, *, retry_window_seconds: float) -> None:
        self._seed_state = seed_state
        self._close_state = close_state
        self._retry_window_seconds = retry_window_seconds
        self._records: dict[str, _AgentSessionRecord] = {}
        self._receipts: dict[str, _CloseReceipt] = {}  # the oldest first
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def state(self, session_id: str) -> AgentSessionState:
        """Return the state of an open session; 409 for any other."""
        record = self._records.get(session_id)
        if record is None or record.is_closing or not record.is_ready:
            raise HTTPException(409, f"Unknown or closing agent session {session_id!r}")
        return record.state

    async def seed(self, body: AgentSeedSessionRequest, cookie: MutableMapping[str, Any]) -> AgentSeedSessionResponse:
        """Begin a session and name it in the cookie; the same request again is answered without a second setup."""
        session_id = body.agent_session_id
        async with self._lock(session_id):
            self._forget_old_receipts()
            in_cookie = cookie.get(AGENT_SESSION_COOKIE_KEY)
            if in_cookie not in (None, session_id):
                raise HTTPException(409, f"the cookie names the agent session {in_cookie!r}, not {session_id!r}")
            if session_id in self._receipts:
                raise HTTPException(409, f"the agent session {session_id!r} is closed")
            record = self._records.get(session_id)
            if record is None:
                if in_cookie is not None:
                    raise HTTPException(409, f"the agent session {session_id!r} of the cookie has expired")
                await self._set_up(body)
            elif record.is_closing or not record.is_ready or record.request != body:
                raise HTTPException(409, f"the agent session {session_id!r} is in use by another request")
            cookie[AGENT_SESSION_COOKIE_KEY] = session_id
            return AgentSeedSessionResponse(agent_session_id=session_id)

    async def _set_up(self, body: AgentSeedSessionRequest) -> None:
        try:
            state = await self._seed_state(body)
        except AgentSessionSetupError as failure:
            self._records[body.agent_session_id] = _AgentSessionRecord(body, failure.state, is_ready=False)
            raise failure.error from failure
        self._records[body.agent_session_id] = _AgentSessionRecord(body, state)

    async def close(self, body: AgentCloseSessionRequest) -> AgentCloseSessionResponse:
        """End a session; 409 if it belongs to another episode. A failing end keeps the session, to be tried again."""
        session_id = body.agent_session_id
        async with self._lock(session_id):
            self._forget_old_receipts()
            record, receipt = self._records.get(session_id), self._receipts.get(session_id)
            earlier = receipt or record
            if earlier is not None and earlier.request.episode_id != body.episode_id:
                raise HTTPException(409, f"the agent session {session_id!r} belongs to another episode")
            if receipt is not None:
                return receipt.answer
            answer = AgentCloseSessionResponse(agent_session_id=session_id)
            if record is not None:
                record.is_closing = True
                answer = await self._close_state(record.state)
                del self._records[session_id]
            self._receipts[session_id] = _CloseReceipt(body, answer, monotonic() + self._retry_window_seconds)
            return answer

    async def close_all(self) -> None:
        """End the open sessions, because the server stops; what fails or takes too long is logged."""
        ends = [asyncio.ensure_future(self._end(record.request)) for record in self._records.values()]
        if not ends:
            return
        _, unfinished = await asyncio.wait(ends, timeout=CLOSE_ALL_SECONDS)
        if unfinished:
            logger.warning("%d agent sessions did not end within %g s", len(unfinished), CLOSE_ALL_SECONDS)
        for end in unfinished:
            end.cancel()

    async def _end(self, seed: AgentSeedSessionRequest) -> None:
        body = AgentCloseSessionRequest(agent_session_id=seed.agent_session_id, episode_id=seed.episode_id)
        try:
            await self.close(body)
        except Exception:  # the end is code of a server folder
            logger.exception("the agent session %s was not ended", seed.agent_session_id)

    def _lock(self, session_id: str) -> asyncio.Lock:
        lock = self._locks.get(session_id)
        if lock is None:
            lock = self._locks[session_id] = asyncio.Lock()
        return lock

    def _forget_old_receipts(self) -> None:
        while self._receipts and next(iter(self._receipts.values())).expires < monotonic():
            del self._receipts[next(iter(self._receipts))]
