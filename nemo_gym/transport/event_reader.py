"""Read the answer of a model endpoint that streams server-sent events."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import orjson
from aiohttp import ClientPayloadError, ClientResponse, ClientResponseError

from nemo_gym.convert.json_access import expect_dict
from nemo_gym.convert.sse import StreamDecoder
from nemo_gym.errors import ConversionError, DeadlineExceeded, ModelFailed, ServerUnreachable
from nemo_gym.transport.client_response import is_ok
from nemo_gym.transport.large_bodies import LARGE_BYTES, current_memory, limits, too_long
from nemo_gym.transport.retries import describe_error

OnEvent = Callable[[dict[str, Any]], Awaitable[None]]
"""Receives the JSON payload of each event."""
ReadAnswer = Callable[[Any, str], Awaitable[dict[str, Any]]]
"""Reads the answer of a response from a URL."""

STREAM_TYPES = ("text/event-stream", "text/plain", "application/octet-stream")
"""The types with which endpoints label a stream; aiohttp calls a missing type `application/octet-stream`."""
_EVENT_LINE = re.compile(rb"^(?:(?:data|event|id|retry)\b|:)", re.MULTILINE)
"""The start of a line of a stream. The other lines are those of a page."""
_QUOTED_BYTES = 200

_ERROR_FIELDS = frozenset({"error", "id", "object", "provider", "request_id", "type", "user_id"})
"""The fields of an answer that is an error and nothing else."""
_STATUS_OF_CODE = {
    "authentication_error": 401,
    "billing_error": 402,
    "context_length_exceeded": 400,
    "insufficient_quota": 402,
    "invalid_prompt": 400,
    "invalid_request_error": 400,
    "not_found_error": 404,
    "overloaded_error": 529,
    "permission_error": 403,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "request_too_large": 413,
    "server_is_overloaded": 503,
    "timeout_error": 504,
}
"""The status of an error inside a stream, by its code or type; other texts mean 500."""


def event_reader(on_event: OnEvent, read_whole: ReadAnswer) -> ReadAnswer:
    """Return a function that gives every event of an answer to `on_event` and returns an empty object.

    An endpoint that does not stream answers with one object, which is returned. The size of a stream is limited like
    that of other answers; a stream that breaks off after its first event is not requested again.
    """

    async def read(response: Any, url: str) -> dict[str, Any]:
        if not is_ok(response) or response.content_type not in STREAM_TYPES:
            return await read_whole(response, url)
        reading = _StreamReading(response, url, on_event)
        try:
            return await reading.read()
        except TimeoutError as error:
            raise DeadlineExceeded("the answer began but did not end in time", where=url) from error
        except ConversionError as error:
            raise ModelFailed(f"the stream of the endpoint cannot be read: {error}", where=url) from error
        except ClientPayloadError as error:
            if not reading.has_begun:
                raise
            raise ServerUnreachable(f"the answer broke off ({describe_error(error)})", where=url) from error
        finally:
            response.close()
            if reading.release is not None:
                reading.release()

    return read


class _StreamReading:
    """The reading of one stream; `release` gives back the memory that was reserved for a large one."""

    def __init__(self, response: Any, url: str, on_event: OnEvent) -> None:
        self.has_begun = False
        self.release: Callable[[], None] | None = None
        self._response, self._url, self._on_event = response, url, on_event
        self._decoder = StreamDecoder(replaces_surrogates=True)
        self._size = 0
        self._start = b""
        """The start of the answer, in which its form is seen."""
        self._whole: list[bytes] = []
        """The pieces of an answer that is one object, however the endpoint labels it."""

    async def read(self) -> dict[str, Any]:
        """Report the events and return an empty object, or return an answer that is one object."""
        async for piece in self._response.content.iter_any():
            await self._check_size(len(piece))
            self._start += piece[: _QUOTED_BYTES - len(self._start)]
            if self._whole or (self._size == len(piece) and piece.lstrip().startswith(b"{")):
                self._whole.append(piece)
            else:
                await self._report(self._decoder.feed(piece))
        await self._report(self._decoder.finish())
        if not self._whole:
            if not self.has_begun and self._start.strip() and not _EVENT_LINE.search(self._start):
                raise _neither_stream_nor_json(self._start, self._url)
            return {}
        body = b"".join(self._whole)
        is_large = len(body) > LARGE_BYTES
        answer = await asyncio.to_thread(_parse_whole, body, self._url) if is_large else _parse_whole(body, self._url)
        raise_error_answer(self._response, answer)
        return answer

    async def _check_size(self, added: int) -> None:
        """Reserve memory for a large answer; refuse one that is too long."""
        if self._size <= LARGE_BYTES < self._size + added:
            self.release = await current_memory().reserve(limits.answer)
        self._size += added
        if self._size > limits.answer:
            raise too_long(limits.answer, self._url)

    async def _report(self, events: Iterator[dict[str, Any]]) -> None:
        for event in events:
            _raise_error_event(self._response, event, has_begun=self.has_begun)
            self.has_begun = True
            await self._on_event(event)


def _parse_whole(body: bytes, url: str) -> dict[str, Any]:
    """Parse an answer that is one object and not labelled as JSON."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _neither_stream_nor_json(body, url) from error
    return expect_dict(answer, "answer")


def _neither_stream_nor_json(body: bytes, url: str) -> ModelFailed:
    """Return the error about an answer such as a page of a proxy, with its start."""
    start = body[:_QUOTED_BYTES].decode("utf-8", errors="replace")
    return ModelFailed(f"the answer is neither a stream nor JSON: {start!r}", where=url)


def is_after_events(error: ClientResponseError) -> bool:
    """Return whether events of the answer came before the error: the client has them, so the call is not repeated."""
    return getattr(error, "comes_after_events", False)


def raise_error_answer(response: ClientResponse, answer: dict[str, Any]) -> None:
    """Raise the error that an endpoint reports with the status of an answer, as OpenRouter does."""
    if isinstance(answer.get("error"), dict) and answer.keys() <= _ERROR_FIELDS:
        _raise_error_event(response, {"error": answer["error"]}, has_begun=False)


def _raise_error_event(response: ClientResponse, event: dict[str, Any], *, has_begun: bool) -> None:
    """Raise the error that an endpoint reports inside a stream, as if it had answered with its status."""
    problem = event.get("error") if event.get("type") in (None, "error") else None
    if event.get("type") == "error" and problem is None:
        problem = {name: event.get(name) for name in ("message", "code", "param")}
    if not problem:
        return
    status = status_of_problem(problem) if isinstance(problem, dict) else 500
    failure = ClientResponseError(response.request_info, (), status=status, headers=response.headers)
    failure.comes_after_events = has_begun  # type: ignore[attr-defined]
    failure.response_content = json.dumps({"error": problem}).encode()  # type: ignore[attr-defined]
    raise failure


def status_of_problem(problem: dict[str, Any]) -> int:
    """Return the HTTP status of an error: its numeric `code`, else that of its named `code` or `type`, else 500."""
    code = problem.get("code")
    if isinstance(code, int):
        return code if 400 <= code < 600 else 500
    names = [name for name in (code, problem.get("type")) if isinstance(name, str)]
    return next((_STATUS_OF_CODE[name] for name in names if name in _STATUS_OF_CODE), 500)
