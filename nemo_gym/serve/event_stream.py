"""Stream the answer of a model to a client while it is generated.

A separate task produces the answer, which is sent as it comes. Headers wait for the first event, or for
`HEADERS_AFTER_SECONDS`, so that a request that the endpoint refuses at once gets an error status; a later failure is an
event of the stream. While nothing else is sent, comments keep the connection alive. If the client closes the
connection, the task is cancelled, and with it the request to the endpoint.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from nemo_gym.convert.error_bodies import ApiError
from nemo_gym.convert.stream_encoders import KEEP_ALIVE, StreamEncoder

HEADERS_AFTER_SECONDS = 0.25
"""Maximum time that the headers wait for the first event."""
KEEP_ALIVE_SECONDS = 5.0
"""Time without an event after which a comment is sent."""
MAX_WAITING_EVENTS = 256
"""Events that wait for a slow client before the endpoint is no longer read."""

Emit = Callable[[dict[str, Any]], Awaitable[None]]
"""Sends one event of the endpoint to the client."""
Produce = Callable[[Emit], Awaitable[dict[str, Any] | Response]]
"""Produces an answer: gives its events to `emit`, and returns the whole answer or a finished response."""

_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
MEDIA_TYPE = "text/event-stream"


class LastChunk(bytes):
    """The last bytes of a stream."""


class EventStreamResponse(StreamingResponse):
    """A stream that ends with its last bytes, and whose task is cancelled if the client leaves."""

    def __init__(self, chunks: AsyncIterator[bytes], task: "asyncio.Task[Any]", media_type: str = MEDIA_TYPE) -> None:
        super().__init__(chunks, media_type=media_type, headers=_HEADERS)
        self._task = task

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await _cancel(self._task)

    async def stream_response(self, send: Send) -> None:
        """Send the chunks; the last one also ends the response, so that a capture is stored before it is sent."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for chunk in self.body_iterator:
            is_last = isinstance(chunk, LastChunk)
            await send({"type": "http.response.body", "body": bytes(chunk), "more_body": not is_last})  # type: ignore[arg-type]
            if is_last:
                return
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def stream_answer(
    produce: Produce, encoder: StreamEncoder, describe: Callable[[Exception], ApiError]
) -> Response:
    """Return the response that streams an answer.

    `describe` describes a failure after the headers were sent; an earlier one is raised.
    """
    media_type = getattr(encoder, "media_type", MEDIA_TYPE)
    queue: asyncio.Queue[bytes] = asyncio.Queue(MAX_WAITING_EVENTS)
    has_begun = asyncio.Event()

    async def emit(event: dict[str, Any]) -> None:
        chunk = encoder.event(event)
        if chunk:
            await queue.put(chunk)
            has_begun.set()

    task = asyncio.create_task(_run(produce, emit))
    begin = asyncio.create_task(has_begun.wait())
    try:
        await asyncio.wait({task, begin}, timeout=HEADERS_AFTER_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        await _cancel(task)
        raise
    finally:
        begin.cancel()
    if task.done() and not has_begun.is_set():
        answer = task.result()
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Response):
            return answer
        return Response(encoder.finish(answer), media_type=media_type, headers=_HEADERS)
    return EventStreamResponse(_chunks(task, queue, encoder, describe), task, media_type)


async def _run(produce: Produce, emit: Emit) -> dict[str, Any] | Response | Exception:
    """Return the answer, or the exception with which it failed: an exception that is not awaited would be logged."""
    try:
        return await produce(emit)
    except Exception as error:
        return error


async def _chunks(
    task: "asyncio.Task[dict[str, Any] | Response | Exception]",
    queue: "asyncio.Queue[bytes]",
    encoder: StreamEncoder,
    describe: Callable[[Exception], ApiError],
) -> AsyncIterator[bytes]:
    """Yield what the task produces, and comments while it produces nothing."""
    keep_alive = getattr(encoder, "keep_alive", KEEP_ALIVE)
    if queue.empty() and keep_alive:
        yield keep_alive
    while not (task.done() and queue.empty()):
        get = asyncio.create_task(queue.get())
        chunk = b""
        try:
            await asyncio.wait({task, get}, timeout=KEEP_ALIVE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if get.done():
                chunks = [get.result()]
                while not queue.empty():
                    chunks.append(queue.get_nowait())
                chunk = b"".join(chunks)
            elif not task.done():
                chunk = keep_alive or b""
        finally:
            get.cancel()  # before the `yield`: while the client reads a comment, `get` could take an event and lose it
        if chunk:
            yield chunk
    answer = task.result()
    try:
        if isinstance(answer, Response) and answer.status_code >= 400:
            text = bytes(answer.body).decode("utf-8", "replace")
            yield LastChunk(encoder.failure(ApiError(answer.status_code, text)))
        elif isinstance(answer, Response):
            yield LastChunk(bytes(answer.body))
        elif not isinstance(answer, Exception):
            yield LastChunk(encoder.finish(answer))
    except Exception as error:  # an answer that the dialect cannot express
        answer = error
    if isinstance(answer, Exception):
        yield LastChunk(encoder.failure(describe(answer)))


async def _cancel(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait([task])
