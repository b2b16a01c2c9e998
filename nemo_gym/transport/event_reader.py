"""Read the answer of a model endpoint that streams server-sent events."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import ClientPayloadError, ClientResponse, ClientResponseError

from nemo_gym.convert.sse import StreamDecoder
from nemo_gym.errors import ConversionError, DeadlineExceeded, ModelFailed, ServerUnreachable
from nemo_gym.transport.client_response import is_ok
from nemo_gym.transport.large_bodies import LARGE_BYTES, current_memory, limits, too_long
from nemo_gym.transport.retries import describe_error

OnEvent = Callable[[dict[str, Any]], Awaitable[None]]
"""Receives the JSON payload of each event."""
ReadAnswer = Callable[[Any, str], Awaitable[dict[str, Any]]]
"""Reads the answer of a response from a URL."""

EVENT_STREAM = "text/event-stream"

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
        if not is_ok(response) or response.content_type != EVENT_STREAM:
            return await read_whole(response, url)
        release: Callable[[], None] | None = None
        decoder, size, has_begun = StreamDecoder(replaces_surrogates=True), 0, False
        try:
            async for piece in response.content.iter_any():
                if size <= LARGE_BYTES < size + len(piece):
                    release = await current_memory().reserve(limits.answer)
                size += len(piece)
                if size > limits.answer:
                    raise too_long(limits.answer, url)
                for event in decoder.feed(piece):
                    _raise_error_event(response, event, has_begun=has_begun)
                    has_begun = True
                    await on_event(event)
            decoder.check_end()
        except TimeoutError as error:
            raise DeadlineExceeded("the answer began but did not end in time", where=url) from error
        except ConversionError as error:
            raise ModelFailed(f"the stream of the endpoint cannot be read: {error}", where=url) from error
        except ClientPayloadError as error:
            if not has_begun:
                raise
            raise ServerUnreachable(f"the answer broke off ({describe_error(error)})", where=url) from error
        finally:
            response.close()
            if release is not None:
                release()
        return {}

    return read


def is_after_events(error: ClientResponseError) -> bool:
    """Return whether events of the answer came before the error: the client has them, so the call is not repeated."""
    return getattr(error, "comes_after_events", False)


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
    """Return the status of an error: its code if that is one, else that of its code or type."""
    code = problem.get("code")
    if isinstance(code, int):
        return code if 400 <= code < 600 else 500
    names = [name for name in (code, problem.get("type")) if isinstance(name, str)]
    return next((_STATUS_OF_CODE[name] for name in names if name in _STATUS_OF_CODE), 500)
