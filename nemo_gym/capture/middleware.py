"""ASGI middleware of model servers that records the calls of a rollout."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial

import aiohttp

from nemo_gym.capture.record import (
    CallTimes,
    Dialect,
    ErrorCategory,
    ModelCallRecord,
    build_model_call_record,
    category_of_exception,
)
from nemo_gym.capture.store import CaptureStore
from nemo_gym.transport.asgi import ASGIApp, Message, Receive, Send
from nemo_gym.transport.client_response import UPSTREAM_STATUS_HEADER

BuildRecord = Callable[[], ModelCallRecord]

logger = logging.getLogger(__name__)

DIALECT_OF_PATH: dict[str, Dialect] = {
    "/v1/responses": "responses",
    "/v1/chat/completions": "chat",
    "/v1/messages": "messages",
}


class CallCaptureMiddleware:
    """Record each model call that belongs to a rollout; `rollout_id` returns the current one.

    The last part of an answer is sent only after the call is on disk, so a client that has the answer can read the
    capture. A call that cannot be stored marks its rollout incomplete; it is never refused.
    """

    def __init__(
        self,
        app: ASGIApp,
        store: CaptureStore,
        *,
        rollout_id: Callable[[], str | None],
        model_ref: str | None = None,
    ) -> None:
        self.app = app
        self.store = store
        self.rollout_id = rollout_id
        self.model_ref = model_ref

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        is_call = scope["type"] == "http" and scope["method"] == "POST"
        dialect = DIALECT_OF_PATH.get(scope["path"]) if is_call else None
        rollout_id = self.rollout_id() if dialect else None
        if dialect is None or rollout_id is None:
            await self.app(scope, receive, send)
            return
        await _CallRecorder(dialect, receive, send, partial(self._store, rollout_id), self.model_ref).run(
            self.app, scope
        )

    async def _store(self, rollout_id: str, build: BuildRecord) -> None:
        """Build and append the record in a thread, so that neither a large body nor a slow disk blocks the loop."""
        try:
            await asyncio.to_thread(self._append, rollout_id, build)
        except Exception as failure:  # a boundary: a capture that fails must not fail the call
            logger.warning("a model call of rollout %s is not captured: %r", rollout_id, failure)
            await self._mark_incomplete(rollout_id, f"a call is missing: {failure!r}")

    def _append(self, rollout_id: str, build: BuildRecord) -> None:
        self.store.append(rollout_id, build())

    async def _mark_incomplete(self, rollout_id: str, reason: str) -> None:
        try:
            await asyncio.to_thread(self.store.mark_incomplete, rollout_id, reason)
        except OSError as failure:
            logger.warning("rollout %s could not be marked incomplete: %s", rollout_id, failure)


class _CallRecorder:
    """Keep both bodies and the times of one request, and write the record at its end."""

    def __init__(
        self,
        dialect: Dialect,
        receive: Receive,
        send: Send,
        write: Callable[[BuildRecord], Awaitable[None]],
        model_ref: str | None,
    ) -> None:
        self._dialect = dialect
        self._receive = receive
        self._send = send
        self._write = write
        self._model_ref = model_ref
        self._request = bytearray()
        self._response = bytearray()
        self._status: int | None = None
        self._streamed = False
        self._started_at = time.time()
        self._started = time.perf_counter()
        self._first_byte: float | None = None
        self._is_written = False

    async def run(self, app: ASGIApp, scope: Message) -> None:
        try:
            await app(scope, self._receive_and_keep, self._send_and_keep)
        except BaseException as failure:
            self._keep_provider_answer(failure)
            # A cancelled call is recorded too: the task may still await while its cancellation propagates.
            await asyncio.shield(self._finish(category_of_exception(failure)))
            raise
        await self._finish("stream_truncated" if self._streamed else "incomplete")

    def _keep_provider_answer(self, failure: BaseException) -> None:
        """Use the provider's answer, if the exception has it, as the answer of the call."""
        if isinstance(failure, aiohttp.ClientResponseError) and self._status is None:
            self._status = failure.status
            self._response += getattr(failure, "response_content", b"") or b""

    async def _receive_and_keep(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._request += message.get("body", b"")
        return message

    async def _send_and_keep(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = {name.lower(): value for name, value in message.get("headers", [])}
            upstream = headers.get(UPSTREAM_STATUS_HEADER.encode("ascii"), b"")
            self._status = int(upstream) if upstream.isdigit() else message["status"]
            self._streamed = headers.get(b"content-type", b"").startswith(b"text/event-stream")
        elif message["type"] == "http.response.body":
            body = message.get("body", b"")
            if body and self._first_byte is None:
                self._first_byte = time.perf_counter()
            self._response += body
            if not message.get("more_body", False):
                await self._finish(None)
        await self._send(message)

    async def _finish(self, category: ErrorCategory | None) -> None:
        """Write the record once; later ends of the same call are ignored."""
        if self._is_written:
            return
        self._is_written = True
        now = time.perf_counter()
        first = self._first_byte
        times = CallTimes(
            started_at=self._started_at,
            completed_at=self._started_at + (now - self._started),
            latency_ms=(now - self._started) * 1000,
            latency_ttft_ms=None if first is None else (first - self._started) * 1000,
        )
        await self._write(
            partial(
                build_model_call_record,
                dialect=self._dialect,
                times=times,
                request_body=bytes(self._request),
                response_body=bytes(self._response),
                model_ref=self._model_ref,
                status_code=self._status,
                streamed=self._streamed,
                error_category=category,
            )
        )
