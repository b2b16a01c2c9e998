"""ASGI middleware of model servers that captures the model calls of rollouts."""

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
    """Records the model calls of rollouts. `rollout_id` is a function that returns the current rollout id.

    The last part of an answer is sent after the call is stored on disk, so that a client with the complete answer can
    read the capture. If a call cannot be stored, the rollout is marked incomplete and the call is served normally.
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
        """Record a POST to a model endpoint with a rollout id; pass other requests to the app."""
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
        """Build and append the record in a thread, because parsing a large body and writing to disk block."""
        try:
            await asyncio.to_thread(self._append, rollout_id, build)
        except Exception as failure:  # a failed capture must not fail the call
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
    """Records the bodies and times of one request, and writes the record when the request ends."""

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
        self._is_stream = False
        self._started_at = time.time()
        self._start = time.perf_counter()
        self._first_byte: float | None = None
        self._is_written = False

    async def run(self, app: ASGIApp, scope: Message) -> None:
        """Serve the request and write its record, also if it fails or is cancelled."""
        try:
            await app(scope, self._receive_and_record, self._send_and_record)
        except BaseException as failure:
            self._record_provider_answer(failure)
            # A cancelled call is recorded too: the task may still await while its cancellation propagates.
            await asyncio.shield(self._finish(category_of_exception(failure)))
            raise
        await self._finish("stream_truncated" if self._is_stream else "incomplete")

    def _record_provider_answer(self, failure: BaseException) -> None:
        """Record the provider's status and body if the exception contains them."""
        if isinstance(failure, aiohttp.ClientResponseError) and self._status is None:
            self._status = failure.status
            self._response += getattr(failure, "response_content", b"") or b""

    async def _receive_and_record(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._request += message.get("body", b"")
        return message

    async def _send_and_record(self, message: Message) -> None:
        """Record a message of the response and send it; write the record before the last message."""
        if message["type"] == "http.response.start":
            headers = {name.lower(): value for name, value in message.get("headers", [])}
            upstream = headers.get(UPSTREAM_STATUS_HEADER.encode("ascii"), b"")
            self._status = int(upstream) if upstream.isdigit() else message["status"]
            self._is_stream = headers.get(b"content-type", b"").startswith(b"text/event-stream")
        elif message["type"] == "http.response.body":
            body = message.get("body", b"")
            if body and self._first_byte is None:
                self._first_byte = time.perf_counter()
            self._response += body
            if not message.get("more_body", False):
                await self._finish(None)
        await self._send(message)

    async def _finish(self, category: ErrorCategory | None) -> None:
        """Write the record. Only the first call has an effect."""
        if self._is_written:
            return
        self._is_written = True
        now = time.perf_counter()
        first_byte = self._first_byte
        times = CallTimes(
            started_at=self._started_at,
            completed_at=self._started_at + (now - self._start),
            latency_ms=(now - self._start) * 1000,
            latency_ttft_ms=None if first_byte is None else (first_byte - self._start) * 1000,
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
                streamed=self._is_stream,
                error_category=category,
            )
        )
