"""A captured call names how it ended."""

import asyncio
from typing import Any

import aiohttp
import pytest
from yarl import URL

from nemo_gym.capture.record import (
    build_model_call_record,
    category_of_exception,
    category_of_status,
)
from nemo_gym.errors import DeadlineExceeded, ServerUnreachable

TIMES = {"started_at": 1.0, "completed_at": 2.0, "latency_ms": 1000.0}


def record(**changes: Any) -> Any:
    defaults: dict[str, Any] = {
        "dialect": "responses",
        **TIMES,
        "request_body": b"{}",
        "response_body": b"{}",
        "status_code": 200,
    }
    return build_model_call_record(**(defaults | changes))


@pytest.mark.parametrize(
    ("status", "category"),
    [
        (200, None),
        (204, None),
        (400, "client_error"),
        (401, "auth"),
        (403, "auth"),
        (404, "not_found"),
        (408, "timeout"),
        (422, "client_error"),
        (429, "rate_limit"),
        (500, "upstream_error"),
        (503, "upstream_error"),
        (504, "timeout"),
    ],
)
def test_a_status_names_its_kind_of_failure(status: int, category: str | None) -> None:
    """Summaries count failures by kind; a wrong kind sends people to the wrong place."""
    assert category_of_status(status) == category


def provider_said(status: int) -> aiohttp.ClientResponseError:
    info = aiohttp.RequestInfo(URL("http://provider"), "POST", headers={}, real_url=URL("http://provider"))  # type: ignore[arg-type]
    return aiohttp.ClientResponseError(info, (), status=status)


@pytest.mark.parametrize(
    ("failure", "category"),
    [
        (provider_said(429), "rate_limit"),
        (provider_said(502), "upstream_error"),
        (TimeoutError(), "timeout"),
        (DeadlineExceeded("too late"), "timeout"),
        (ConnectionRefusedError(), "connection"),
        (ServerUnreachable("nobody"), "connection"),
        (aiohttp.ServerDisconnectedError(), "connection"),
        (KeyError("a bug"), "exception"),
        (asyncio.CancelledError(), "incomplete"),
    ],
    ids=lambda value: repr(value),
)
def test_an_exception_names_its_kind_of_failure(failure: BaseException, category: str) -> None:
    """A provider's 429 stays a rate limit although it reaches us as an exception."""
    assert category_of_exception(failure) == category


def test_a_call_that_went_well_has_no_category_and_no_raw_text() -> None:
    """Raw text beside parsed bodies would double every file."""
    made = record(request_body=b'{"input": "x"}', response_body=b'{"id": "resp_1"}')

    assert made.error_category is None
    assert made.request == {"input": "x"}
    assert made.response == {"id": "resp_1"}
    assert made.request_raw is None
    assert made.response_raw is None


@pytest.mark.parametrize(
    ("changes", "category"),
    [
        ({"response_body": b"<html>"}, "capture_parse_error"),
        ({"request_body": b"\xff"}, "capture_parse_error"),
        ({"request_body": b"[1]"}, "capture_parse_error"),
        ({"response_body": b""}, "incomplete"),
        ({"response_body": b"<html>", "status_code": 503}, "upstream_error"),
        ({"status_code": 429, "error_category": "stream_truncated"}, "stream_truncated"),
        ({"status_code": None, "response_body": b"", "error_category": "exception"}, "exception"),
    ],
)
def test_the_most_telling_reason_wins(changes: dict[str, Any], category: str) -> None:
    """What the caller knows, then the status, then what the bodies show."""
    assert record(**changes).error_category == category


def test_a_body_that_is_not_json_is_kept_as_text() -> None:
    """An error page is the best clue there is."""
    made = record(request_body=b"\xffhi", response_body=b"<html>down</html>")

    assert made.request is None
    assert made.request_raw == "\ufffdhi"
    assert made.response_raw == "<html>down</html>"


def test_ids_are_unique_unless_given() -> None:
    """Observations refer to a call by its id."""
    assert record().model_call_id != record().model_call_id
    assert record(model_call_id="mc_7").model_call_id == "mc_7"


def test_a_stream_is_read_into_the_answer_it_spelled() -> None:
    """Totals must not depend on whether the agent asked for a stream."""
    body = b'data: {"type": "response.completed", "response": {"id": "r"}}\n\n'

    assert record(response_body=body, streamed=True).response == {"id": "r"}
    assert record(response_body=body, streamed=True).error_category is None


@pytest.mark.parametrize(
    ("body", "category"),
    [
        (b'data: {"type": "response.created", "response": {"id": "r"}}\n\n', "stream_truncated"),
        (b'data: {"type": "response.failed", "response": {"id": "r"}}\n\n', "upstream_error"),
        (b"data: {oops\n\n", "capture_parse_error"),
    ],
)
def test_a_stream_that_ended_badly_says_how(body: bytes, category: str) -> None:
    """The status of a stream is 200 however it ends."""
    assert record(response_body=body, streamed=True).error_category == category
