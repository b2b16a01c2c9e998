"""ASGI middleware of model servers that captures the model calls of rollouts."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from nemo_gym.capture.model_answer import ModelAnswer, collecting_model_answer
from nemo_gym.capture.record import ErrorCategory, build_model_call_record, category_of_exception
from nemo_gym.capture.store import CaptureStore
from nemo_gym.transport.asgi import ASGIApp, Message, Receive, Send
from nemo_gym.transport.response_errors import UPSTREAM_STATUS_HEADER
from nemo_gym.wire.observations import Dialect

logger = logging.getLogger(__name__)

DIALECT_OF_PATH: dict[str, Dialect] = {
    "/v1/responses": "responses",
    "/v1/chat/completions": "chat",
    "/v1/messages": "messages",
}
SESSION_HEADER = b"x-session-id"
OUTCOME_FIELDS = ("upstream_attempted", "response_source", "upstream_status_code", "local_response_reason")
"""Fields of `base_responses_api_model.ModelExecutionOutcome`."""
GEMINI_METHODS = (":generateContent", ":streamGenerateContent")
"""Ends of the paths of the Gemini API, which contain the name of a model."""


class CallCaptureMiddleware:
    """Records the model calls of rollouts. `rollout_id` is a function that returns the current rollout id.

    The last part of an answer is sent after the call is stored on disk, so that a client with the complete answer can
    read the capture. If a call cannot be stored, the rollout is marked incomplete and the call is served normally.
    """

    def __init__(
        self, app: ASGIApp, store: CaptureStore, *, rollout_id: Callable[[], str | None], model_ref: str | None = None
    ) -> None:
        self.app = app
        self.store = store
        self.current_rollout_id = rollout_id
        self.model_ref = model_ref

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve a request. Record it if it is a POST to a model endpoint and belongs to a rollout."""
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        dialect = _dialect_of_path(scope["path"]) if is_post else None
        rollout_id = self.current_rollout_id() if dialect else None
        if dialect is None or rollout_id is None:
            await self.app(scope, receive, send)
            return
        with collecting_model_answer() as answer:
            recorder = _CallRecorder(self.store, rollout_id, dialect, self.model_ref, receive, send, answer, scope)
            await recorder.run(self.app, scope)


def _client_session_id(scope: Message) -> str | None:
    """Return the value of the header `x-session-id`; None without it, or if it occurs with different values."""
    headers = scope.get("headers") or ()
    values = {value.decode("latin-1").strip() for name, value in headers if name.lower() == SESSION_HEADER}
    return values.pop() or None if len(values) == 1 else None


def _execution_outcome(scope: Message) -> dict[str, Any]:
    """Return the fields of the outcome that the server stored in `request.state.model_execution`; empty without one."""
    outcome = (scope.get("state") or {}).get("model_execution")
    return {name: getattr(outcome, name) for name in OUTCOME_FIELDS} if outcome is not None else {}


def _dialect_of_path(path: str) -> Dialect | None:
    return DIALECT_OF_PATH.get(path) or ("gemini" if path.endswith(GEMINI_METHODS) else None)


@dataclass
class _CallRecorder:
    """Records the bodies and times of one request, and stores the record when the request ends."""

    store: CaptureStore
    rollout_id: str
    dialect: Dialect
    model_ref: str | None
    receive: Receive
    send: Send
    model_answer: ModelAnswer
    scope: Message
    request_body: bytearray = field(default_factory=bytearray)
    response_body: bytearray = field(default_factory=bytearray)
    status: int | None = None
    is_stream: bool = False
    is_finished: bool = False
    started_at: float = field(default_factory=time.time)
    start_tick: float = field(default_factory=time.perf_counter)  # ticks are readings of this clock
    first_byte_tick: float | None = None

    async def run(self, app: ASGIApp, scope: Message) -> None:
        """Serve the request and store its record, also if it fails or is cancelled."""
        try:
            await app(scope, self._receive_and_record, self._send_and_record)
        except BaseException as failure:
            if isinstance(failure, aiohttp.ClientResponseError) and self.status is None:
                # The provider's error was raised, not sent; an outer layer converts it to a response.
                self.status = failure.status
                self.response_body += getattr(failure, "response_content", b"") or b""
            # A cancelled call is recorded too: an asyncio task may still await while its cancellation propagates.
            await asyncio.shield(self._finish(category_of_exception(failure)))
            raise
        # No effect after a complete response: its last message has stored the record.
        await self._finish("stream_truncated" if self.is_stream else "incomplete")

    async def _receive_and_record(self) -> Message:
        message = await self.receive()
        if message["type"] == "http.request":
            self.request_body += message.get("body", b"")
        return message

    async def _send_and_record(self, message: Message) -> None:
        """Record a message of the response and send it; store the record before the last message."""
        if message["type"] == "http.response.start":
            headers = {name.lower(): value for name, value in message.get("headers", [])}
            upstream = headers.get(UPSTREAM_STATUS_HEADER.encode("ascii"), b"")
            self.status = int(upstream) if upstream.isdigit() else message["status"]
            self.is_stream = headers.get(b"content-type", b"").startswith(b"text/event-stream")
        elif message["type"] == "http.response.body":
            body = message.get("body", b"")
            if body and self.first_byte_tick is None:
                self.first_byte_tick = time.perf_counter()
            self.response_body += body
            if not message.get("more_body", False):
                await self._finish(None)
        await self.send(message)

    async def _finish(self, category: ErrorCategory | None) -> None:
        """Store the record, or mark the rollout incomplete. Only the first call of this method has an effect."""
        if self.is_finished:
            return
        self.is_finished = True
        seconds = time.perf_counter() - self.start_tick
        try:
            # In a thread, because parsing a large body and writing to disk block.
            await asyncio.to_thread(self._append, seconds, category)
        except Exception as failure:  # a failed capture must not fail the call
            logger.warning("a model call of rollout %s is not captured: %r", self.rollout_id, failure)
            reason = f"a call is missing: {failure!r}"
            try:
                await asyncio.to_thread(self.store.mark_incomplete, self.rollout_id, reason)
            except OSError as error:
                logger.warning("rollout %s could not be marked incomplete: %s", self.rollout_id, error)

    def _is_converted(self) -> bool:
        """Return whether the answer of the client lacks something of the model's answer, such as token ids."""
        return self.dialect in ("messages", "gemini") or (self.dialect == "chat" and self.is_stream)

    def _append(self, seconds: float, category: ErrorCategory | None) -> None:
        """Build the record of a model call that took `seconds`, and append it to the store."""
        record = build_model_call_record(
            dialect=self.dialect,
            model_ref=self.model_ref,
            started_at=self.started_at,
            completed_at=self.started_at + seconds,
            latency_ms=seconds * 1000,
            latency_ttft_ms=None if self.first_byte_tick is None else (self.first_byte_tick - self.start_tick) * 1000,
            status_code=self.status,
            error_category=category,
            request_body=bytes(self.request_body),
            response_body=bytes(self.response_body),
            model_answer=self.model_answer.as_json() if self._is_converted() else None,
            streamed=self.is_stream,
            client_session_id=_client_session_id(self.scope),
            **_execution_outcome(self.scope),
        )
        self.store.append(self.rollout_id, record)
