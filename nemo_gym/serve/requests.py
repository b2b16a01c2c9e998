"""Requests as handlers see them: strict JSON, a size limit, and a scope that is only built when a handler reads it.

The only module that relies on private attributes of starlette's `Request`; `tests/serve/test_dependencies.py` fails
when they change.
"""

import asyncio
import json
from typing import Any, Protocol

import orjson
from fastapi import HTTPException, Request
from fastapi.encoders import jsonable_encoder
from starlette.types import Message, Scope

from nemo_gym.wire.call_reply import Call, parse_json

MAX_BODY_BYTES = 512 * 1024 * 1024
"""A longer request body is refused with 413 before it is read to the end."""


def json_bytes(value: Any) -> bytes:
    """Encode anything FastAPI can encode; values orjson refuses (huge integers, lone surrogates) take the slow way."""
    try:
        return orjson.dumps(value, default=jsonable_encoder, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return json.dumps(value, default=jsonable_encoder).encode("ascii")


def body_too_long() -> HTTPException:
    return HTTPException(413, f"the request body is larger than {MAX_BODY_BYTES} bytes")


class GymRequest(Request):
    """A request whose JSON is parsed strictly and whose body has a limit."""

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            chunks = []
            size = 0
            async for chunk in self.stream():
                size += len(chunk)
                if size > MAX_BODY_BYTES:
                    raise body_too_long()
                chunks.append(chunk)
            self._body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        return self._body

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            self._json = parse_json(await self.body())
        return self._json

    def final_session(self) -> dict[str, Any] | None:
        """Return the session as the handler left it; the handler may have replaced it."""
        return self.scope.get("session")


class ScopeSource(Protocol):
    """Builds what a `CallRequest` shows its handler."""

    @property
    def has_sessions(self) -> bool: ...

    def scope_for(self, call: Call, plan: Any) -> Scope: ...

    def new_session(self) -> dict[str, Any]: ...


class CallRequest(GymRequest):
    """The request of a call that came without HTTP. Scope, headers and an anonymous session are made on first use."""

    def __init__(self, source: ScopeSource, call: Call, plan: Any, session: dict[str, Any] | None) -> None:
        self._source = source
        self._call = call
        self._plan = plan
        self._session = session
        self._scope: Scope | None = None
        self._has_sent_body = False
        self._stream_consumed = False
        self._is_disconnected = False

    @property
    def scope(self) -> Scope:  # type: ignore[override]
        if self._scope is None:
            self._scope = self._source.scope_for(self._call, self._plan)
            if self._source.has_sessions:
                self._scope["session"] = self._open_session()
        return self._scope

    @property
    def session(self) -> dict[str, Any]:
        if self._scope is not None or not self._source.has_sessions:
            session: dict[str, Any] = super().session
            return session
        return self._open_session()

    @property
    def cookies(self) -> dict[str, str]:
        if self._scope is None and not self._call.cookies:
            return {}
        return super().cookies

    def _open_session(self) -> dict[str, Any]:
        if self._session is None:
            self._session = self._source.new_session()
        return self._session

    def final_session(self) -> dict[str, Any] | None:
        return self._session if self._scope is None else self._scope.get("session")

    async def _receive(self) -> Message:  # a method, because a bound method as attribute would be a reference cycle
        if self._has_sent_body:
            never: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
            return await never  # the caller stays connected until this task is cancelled
        self._has_sent_body = True
        return {"type": "http.request", "body": self._call.body_bytes(), "more_body": False}
