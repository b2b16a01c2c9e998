"""uvicorn's HTTP protocol with limits on what a client may send, before any app sees the request.

A body above `max_body_bytes` is refused with 413: by its `Content-Length` before it is read, otherwise as soon as more
has arrived. A head above `MAX_HEAD_BYTES` is refused with 431. A connection on which a request arrives too slowly, or
not at all, is closed, so that slow clients cannot use up the open files of a server.

A client that closes its connection before it has the answer cancels the request: the handler ends where it waits, and
with it the calls that it awaits.
"""

import asyncio
import logging
from functools import partial

import orjson
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from nemo_gym.transport.large_bodies import limits, too_long_request

logger = logging.getLogger("nemo_gym.serve")

MAX_HEAD_BYTES = 256 * 1024
HEAD_SECONDS = 30.0
"""Time for the request line and the headers, counted from the connection or from the first byte of the request."""
BODY_SECONDS = 120.0
MIN_BODY_BYTES = 64 * 1024
"""A body must arrive with at least `MIN_BODY_BYTES` in `BODY_SECONDS`."""
LINGER_SECONDS = 2.0
"""Time in which a refused client can read the answer while it is still sending."""


def closing_answer(status: int, text: str) -> bytes:
    """Return an error response as it is sent on a connection that is closed after it."""
    body = orjson.dumps({"detail": text})
    head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    return bytes(STATUS_LINE[status]) + head + body


class GuardedHttpProtocol(HttpToolsProtocol):
    """One connection. Time that an app takes to read or to answer does not count against the client."""

    head_seconds, body_seconds = HEAD_SECONDS, BODY_SECONDS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._is_refused = False
        self._timer: asyncio.TimerHandle | None = None
        self._received_bytes = self._bytes_at_check = 0
        self._running: asyncio.Task[None] | None = None
        """The task of the request that is being answered."""
        self._answer: RequestResponseCycle | None = None
        self._is_lost = False
        self._begin_request()

    def _begin_request(self) -> None:
        """Begin to receive a request, and start the timer that checks its progress."""
        self._is_receiving, self._has_head = True, False
        self._head_bytes = self._body_bytes = 0
        self._start_time = self.loop.time()
        if self._timer is None:
            self._timer = self.loop.call_later(self.head_seconds, self._check_progress)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if not self._is_receiving:
            self._begin_request()
        self._received_bytes += len(data)
        super().data_received(data)
        if not self._has_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(431, f"the head of the request is larger than {MAX_HEAD_BYTES} bytes")

    def on_message_begin(self) -> None:
        if not self._is_receiving:  # a second request in the same data
            self._begin_request()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self._is_refused:
            return
        self._has_head = True
        for name, value in self.headers:
            if name == b"content-length" and int(value) > limits.body:
                self._refuse(413, too_long_request(limits.body))
                return
        app = self.app
        self.app = partial(self._serve_until_disconnect, app)
        super().on_headers_complete()
        self.app = app

    async def _serve_until_disconnect(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app; `connection_lost` cancels it if the answer is not complete by then."""
        task = self._running = asyncio.current_task()
        self._answer = getattr(send, "__self__", None)
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:
            if not self._is_lost:
                raise
            logger.debug("%s %s was cancelled: the client closed the connection", scope["method"], scope["path"])
        finally:
            if self._running is task:  # background work may end during the next request of the connection
                self._running = self._answer = None

    def on_body(self, body: bytes) -> None:
        if self._is_refused:
            return
        self._body_bytes += len(body)
        if self._body_bytes > limits.body:
            self._refuse(413, too_long_request(limits.body))
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_receiving = False
        if not self._is_refused:
            super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)
        # After a complete answer the task only runs background work, which goes on.
        if self._running is not None and self._answer is not None and not self._answer.response_complete:
            self._is_lost = True
            self._running.cancel()

    def _check_progress(self) -> None:
        """Close the connection if the request did not arrive in time; otherwise check again later."""
        self._timer = None
        if not self._is_receiving or self._is_refused or self not in self.connections:
            return  # between requests uvicorn closes idle connections; a web socket has another protocol
        new_bytes, self._bytes_at_check = self._received_bytes - self._bytes_at_check, self._received_bytes
        seconds = self.body_seconds if self._has_head else self.head_seconds
        left = self._start_time + seconds - self.loop.time()
        if left <= 0 and not self.flow.read_paused and (not self._has_head or new_bytes < MIN_BODY_BYTES):
            if self._received_bytes:
                self._refuse(408, "the request did not arrive in time")
            else:
                self.transport.close()
            return
        self._timer = self.loop.call_later(left if left > 0 else seconds, self._check_progress)

    def _refuse(self, status: int, text: str) -> None:
        """Answer with an error and close the connection; the rest of the request is discarded."""
        self._is_refused = True
        cycle = self.cycle
        is_answering = cycle is not None and not cycle.response_complete
        if is_answering:
            cycle.disconnected = True
            cycle.message_event.set()
        if is_answering and (cycle.response_started or cycle.scope is not self.scope):
            self.transport.close()  # part of this or of an earlier answer may be sent already
            return
        self.transport.write(closing_answer(status, text))
        self.loop.call_later(LINGER_SECONDS, self.transport.close)
