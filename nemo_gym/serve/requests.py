"""Request objects of handlers: strict JSON, a size limit, and a scope that is built on first access.

This is the only module that uses private attributes of starlette's `Request`; `tests/serve/test_dependencies.py` fails
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
"""A longer request body is rejected with 413 before it is read completely."""


def json_bytes(value: Any) -> bytes:
    """Encode a value as JSON with orjson; use the slower `json` for values that orjson rejects (large integers)."""
    try:
        return orjson.dumps(value, default=jsonable_encoder, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return json.dumps(value, default=jsonable_encoder).encode("ascii")


def body_too_long() -> HTTPException:
    return HTTPException(413, f"the request body is larger than {MAX_BODY_BYTES} bytes")


class GymRequest(Request):
    """A starlette request with strict JSON parsing and a limit on the body size."""

    async def body(self) -> bytes:
        """Return the body; raise 413 if it is longer than `MAX_BODY_BYTES`."""
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
        """Return the session after the handler ran, which may have replaced it; None without sessions."""
        return self.scope.get("session")


class ScopeSource(Protocol):
    """Builds the scope and the session of a `CallRequest`."""

    @property
    def has_sessions(self) -> bool: ...

    def scope_for(self, call: Call, plan: Any) -> Scope: ...

    def new_session(self) -> dict[str, Any]: ...


class CallRequest(GymRequest):
    """The request object of a call without HTTP. Scope, headers and a new session are built on first access."""

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

    async def _receive(
        self,
    ) -> Message:  # overrides an attribute of starlette: a bound method stored there would be a reference cycle
        if self._has_sent_body:
            disconnected: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
            return await disconnected  # never set: the caller stays connected until this task is cancelled
        self._has_sent_body = True
        return {"type": "http.request", "body": self._call.body_bytes(), "more_body": False}
