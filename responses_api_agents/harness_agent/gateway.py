"""The only way out of the box of a rollout: a Unix socket that forwards requests to the model server and to MCP tools.

Requests are sent below the base URL of the rollout, so a program can reach no other rollout and no other endpoint. Each
answered model call is recorded for the conversation (`conversation`).
"""

import asyncio
import logging
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import aiohttp
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from nemo_gym.capture.middleware import DIALECT_OF_PATH, GEMINI_METHODS
from nemo_gym.capture.record import CapturedExchange, Dialect, build_model_call_record
from nemo_gym.serve.model_routes import canonical_path
from nemo_gym.transport.http_sessions import current_session
from responses_api_agents.harness_agent.conversation import Conversations

logger = logging.getLogger("nemo_gym.harness_agent")

MCP_PATH = "/mcp"
_MODEL_PATH = re.compile(
    r"/(v1|v1beta)/(responses|chat/completions|messages(/count_tokens)?|models(/[A-Za-z0-9_.@-]+(:[A-Za-z]+)?)?)|/tokenize"
)
"""The endpoints of a model server that clients of models need."""
_HOP_HEADERS = frozenset({"host", "connection", "transfer-encoding", "content-length", "accept-encoding", "keep-alive"})
_KEY_HEADERS = frozenset({"authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie"})
_OUR_HEADERS = "x-nemo-gym-"
"""The begin of headers that only servers of a run may set: deadlines, rollouts, sessions."""
_MAX_BODY_BYTES = 64 << 20
_MAX_HELD_BYTES = 128 << 20
"""Bytes of all requests of a rollout that are in flight."""
_CHUNK = 1 << 16
_REFUSED = 400
"""Clients of models do not repeat a request after this status."""


@dataclass
class Gateway:
    """Forwards the requests of one rollout and counts them."""

    model_url: str
    """The base URL of the rollout at the model server, without `/v1`."""
    max_steps: int | None = None
    """Answered model calls after which further ones are refused."""
    mcp_url: str | None = None
    mcp_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    conversations: Conversations = field(default_factory=Conversations)
    calls: int = 0
    first_call_at: float | None = None
    """When the first model call arrived, by the monotonic clock."""
    answered_calls: int = 0
    last_error: str = ""
    """Status and begin of the last answer that is an error."""
    reached_limit: bool = False
    _in_flight: int = 0
    _held_bytes: int = 0
    _runner: web.AppRunner | None = None
    _folder: int | None = None

    async def start(self, socket_path: Path) -> Self:
        """Listen at a Unix socket that every user may connect to; its folder keeps other users of the machine out.

        The kernel allows about 100 characters for the path of a socket; that of a descriptor is always shorter.
        """
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, logger=_http_logger)
        await self._runner.setup()
        self._folder = os.open(socket_path.parent, os.O_PATH | os.O_CLOEXEC)
        await web.UnixSite(self._runner, f"/proc/self/fd/{self._folder}/{socket_path.name}").start()
        await asyncio.to_thread(socket_path.chmod, 0o666)
        return self

    async def close(self) -> None:
        """Close the socket and cancel requests in flight."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if self.mcp_url is not None and request.path == MCP_PATH:
            return await self._forward(request, self.mcp_url, self.mcp_headers, None)
        if request.method in ("GET", "HEAD") and request.path == "/":
            return web.Response()  # a client that checks whether its base URL answers
        path = canonical_path(request.path)
        if not _MODEL_PATH.fullmatch(path):
            return web.json_response({"error": {"message": f"{path} is no endpoint of a model"}}, status=404)
        dialect = DIALECT_OF_PATH.get(path) or ("gemini" if path.endswith(GEMINI_METHODS) else None)
        if dialect is not None:
            if self.max_steps is not None and self.answered_calls + self._in_flight >= self.max_steps:
                self.reached_limit = True
                message = f"the rollout has reached its limit of {self.max_steps} model calls (max_steps)"
                return web.json_response({"error": {"message": message}}, status=_REFUSED)
            self.calls += 1
            self.first_call_at = self.first_call_at or time.monotonic()
        query = f"?{request.query_string}" if request.query_string else ""
        self._in_flight += dialect is not None
        try:
            return await self._forward(request, f"{self.model_url}{path}{query}", {}, dialect)
        finally:
            self._in_flight -= dialect is not None

    async def _forward(
        self, request: web.Request, url: str, extra: Mapping[str, str], dialect: Dialect | None
    ) -> web.StreamResponse:
        """Send a request to `url` and stream its answer back; record it if it is a model call."""
        body = bytearray()
        try:
            async for chunk in request.content.iter_chunked(_CHUNK):
                body += chunk
                self._held_bytes += len(chunk)
                if len(body) > _MAX_BODY_BYTES or self._held_bytes > _MAX_HELD_BYTES:
                    message = f"a request may have {_MAX_BODY_BYTES:,} bytes, those in flight {_MAX_HELD_BYTES:,}"
                    self.last_error = message
                    return web.json_response({"error": {"message": message}}, status=413)
            return await self._forward_body(request, bytes(body), url, extra, dialect)
        finally:
            self._held_bytes -= len(body)

    async def _forward_body(
        self, request: web.Request, body: bytes, url: str, extra: Mapping[str, str], dialect: Dialect | None
    ) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if _is_forwarded(name.lower())}
        started = time.time()
        answer = bytearray()
        try:
            async with current_session().request(
                request.method, url, data=body or None, headers={**headers, **extra}, timeout=_NO_TIMEOUT
            ) as reply:
                is_stream = reply.headers.get("content-type", "").startswith("text/event-stream")
                response = web.StreamResponse(status=reply.status)
                for name, value in reply.headers.items():
                    if name.lower() not in _HOP_HEADERS | {"content-encoding", "set-cookie", "date", "server"}:
                        response.headers.add(name, value)
                await response.prepare(request)
                async for chunk in reply.content.iter_chunked(_CHUNK):
                    if dialect is not None:
                        answer += chunk
                    await response.write(chunk)
                if dialect is not None:
                    await self._record(dialect, body, bytes(answer), reply.status, is_stream=is_stream, started=started)
                await response.write_eof()
                return response
        except (aiohttp.ClientError, ConnectionError) as error:
            self.last_error = f"{type(error).__name__}: {error}"
            return web.json_response({"error": {"message": "the model server does not answer"}}, status=502)

    async def _record(
        self, dialect: Dialect, request: bytes, answer: bytes, status: int, *, is_stream: bool, started: float
    ) -> None:
        """Add a finished call to the conversations; large bodies are parsed in a thread."""

        def build() -> CapturedExchange:
            return build_model_call_record(
                request_body=request,
                response_body=answer,
                streamed=is_stream,
                dialect=dialect,
                status_code=status,
                started_at=started,
            )

        record = await asyncio.to_thread(build)
        if record.error_category is not None:
            self.last_error = f"{record.error_category} (status {status}): {answer[:300].decode(errors='replace')}"
            return
        self.answered_calls += 1
        self.conversations.add(record)


def _is_forwarded(name: str) -> bool:
    """Return whether a header of a program is sent on; its body is uncompressed by then."""
    is_own = name in _HOP_HEADERS or name in _KEY_HEADERS or name == "content-encoding"
    return not is_own and not name.startswith(_OUR_HEADERS)


class _ProgramErrors(logging.Filter):
    """Drops what programs could fill the log with: requests that are not HTTP, and connections that they closed."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, HttpProcessingError | ConnectionError)


_http_logger = logging.getLogger("nemo_gym.harness_agent.http")
_http_logger.addFilter(_ProgramErrors())

_NO_TIMEOUT = aiohttp.ClientTimeout(total=None)
"""The deadline of the rollout ends every request."""
