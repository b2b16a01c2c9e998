"""Every call of a rollout to its model is on the disk before its answer is out."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from starlette.requests import Request
from yarl import URL

from nemo_gym.base_responses_api_model import start_model_execution
from nemo_gym.capture.middleware import CallCaptureMiddleware
from nemo_gym.capture.record import ModelCallRecord
from nemo_gym.capture.store import CaptureStore

Message = dict[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]


def answering(body: bytes, *, status: int = 200, headers: tuple[tuple[bytes, bytes], ...] = (), pieces: int = 1) -> App:
    """An app that reads its request and answers in `pieces` parts."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": status, "headers": list(headers)})
        size = -(-len(body) // pieces)
        for number in range(pieces):
            piece = body[number * size : (number + 1) * size]
            await send({"type": "http.response.body", "body": piece, "more_body": number < pieces - 1})

    return app


async def call(
    app: App,
    path: str = "/v1/responses",
    method: str = "POST",
    body: bytes = b'{"input": "hi"}',
    headers: tuple[tuple[bytes, bytes], ...] = (),
) -> bytes:
    """What a caller receives, in full."""
    received = bytearray()

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        received.extend(message.get("body", b""))

    await app({"type": "http", "method": method, "path": path, "headers": list(headers)}, receive, send)
    return bytes(received)


def capturing_app(app: App, folder: Path, rollout_id: str | None = "3-1") -> tuple[CallCaptureMiddleware, CaptureStore]:
    store = CaptureStore(folder)
    return CallCaptureMiddleware(app, store, rollout_id=lambda: rollout_id, model_ref="policy_model"), store


@pytest.mark.parametrize(
    ("path", "dialect"),
    [("/v1/responses", "responses"), ("/v1/chat/completions", "chat"), ("/v1/messages", "messages")],
)
@pytest.mark.asyncio
async def test_a_call_is_written_down_with_what_was_asked_and_answered(tmp_path: Path, path: str, dialect: str) -> None:
    """This is what makes a rollout explainable afterwards."""
    app, store = capturing_app(answering(b'{"id": "r1"}', pieces=3), tmp_path)

    answer = await call(app, path)

    (record,) = store.read("3-1").records
    assert answer == b'{"id": "r1"}'
    assert (record.dialect, record.model_ref.name, record.status_code) == (dialect, "policy_model", 200)
    assert (record.request, record.response, record.error_category) == ({"input": "hi"}, {"id": "r1"}, None)
    assert record.latency_ttft_ms is not None
    assert 0 <= record.latency_ttft_ms <= record.latency_ms
    assert record.completed_at >= record.started_at


@pytest.mark.asyncio
async def test_the_last_piece_leaves_only_when_the_call_is_on_the_disk(tmp_path: Path) -> None:
    """An agent that has its answer may at once be asked for the capture."""
    app, store = capturing_app(answering(b'{"id": "r1"}', pieces=2), tmp_path)
    stored_when_sent: list[int] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"{}"}

    async def send(message: Message) -> None:
        stored_when_sent.append(len(store.read("3-1").records))

    await app({"type": "http", "method": "POST", "path": "/v1/responses"}, receive, send)

    assert stored_when_sent == [0, 0, 1]


@pytest.mark.asyncio
async def test_the_disk_is_used_in_a_thread(tmp_path: Path) -> None:
    """A slow disk must not hold up the other rollouts on the loop."""
    threads: list[threading.Thread] = []

    class RecordingStore(CaptureStore):
        def append(self, rollout_id: str, record: ModelCallRecord) -> None:
            threads.append(threading.current_thread())
            super().append(rollout_id, record)

    await call(CallCaptureMiddleware(answering(b"{}"), RecordingStore(tmp_path), rollout_id=lambda: "0-0"))

    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


@pytest.mark.parametrize(
    ("path", "method", "rollout_id"),
    [("/v1/responses", "POST", None), ("/v1/models", "POST", "0-0"), ("/v1/responses", "GET", "0-0")],
)
@pytest.mark.asyncio
async def test_other_requests_pass_untouched(tmp_path: Path, path: str, method: str, rollout_id: str | None) -> None:
    """Only model calls of a rollout belong in its file."""
    app, _ = capturing_app(answering(b"{}"), tmp_path / "none", rollout_id)

    assert await call(app, path, method) == b"{}"
    assert not (tmp_path / "none").exists()


def refusal(status: int, content: bytes) -> aiohttp.ClientResponseError:
    info = aiohttp.RequestInfo(URL("http://provider"), "POST", headers={}, real_url=URL("http://provider"))  # type: ignore[arg-type]
    error = aiohttp.ClientResponseError(info, (), status=status)
    error.response_content = content  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("failure", "status", "category", "response"),
    [
        (refusal(429, b'{"error": "slow down"}'), 429, "rate_limit", {"error": "slow down"}),
        (TimeoutError("too slow"), None, "timeout", None),
        (ZeroDivisionError("a bug"), None, "exception", None),
    ],
    ids=["refused", "timed out", "bug"],
)
@pytest.mark.asyncio
async def test_a_call_that_raises_is_written_down_and_still_raises(
    tmp_path: Path, failure: Exception, status: int | None, category: str, response: Any
) -> None:
    """A failed call is the one people look for, and the provider's own words are the best clue."""

    async def failing(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        raise failure

    app, store = capturing_app(failing, tmp_path)

    with pytest.raises(type(failure)):
        await call(app)

    (record,) = store.read("3-1").records
    assert (record.status_code, record.error_category, record.response) == (status, category, response)
    assert record.request == {"input": "hi"}


@pytest.mark.asyncio
async def test_the_provider_s_status_counts_when_ours_hides_it(tmp_path: Path) -> None:
    """Our answer to a refused call is 500; the record says rate limit."""
    app, store = capturing_app(
        answering(b'"slow down"', status=500, headers=((b"x-nemo-gym-upstream-status", b"429"),)), tmp_path
    )

    await call(app)

    (record,) = store.read("3-1").records
    assert (record.status_code, record.error_category) == (429, "rate_limit")


@pytest.mark.asyncio
async def test_a_cancelled_call_is_written_down_as_incomplete(tmp_path: Path) -> None:
    """A rollout that ran out of time shows the call it was waiting for."""
    waiting = asyncio.Event()

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        waiting.set()
        await asyncio.Event().wait()

    app, store = capturing_app(endless, tmp_path)
    task = asyncio.create_task(call(app))
    await waiting.wait()

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    (record,) = store.read("3-1").records
    assert record.error_category == "incomplete"


@pytest.mark.parametrize(
    ("headers", "category"),
    [([], "incomplete"), ([(b"Content-Type", b"text/event-stream; charset=utf-8")], "stream_truncated")],
)
@pytest.mark.asyncio
async def test_an_answer_that_stops_half_way_is_told_apart(
    tmp_path: Path, headers: list[tuple[bytes, bytes]], category: str
) -> None:
    """A client that left, and a stream that broke, both end without a last piece."""

    async def stops(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True})

    app, store = capturing_app(stops, tmp_path)

    await call(app)

    assert [record.error_category for record in store.read("3-1").records] == [category]


@pytest.mark.asyncio
async def test_a_call_that_cannot_be_stored_is_answered_and_its_rollout_marked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk costs the record of the call, never the rollout."""

    class FullDisk(CaptureStore):
        def append(self, rollout_id: str, record: ModelCallRecord) -> None:
            raise OSError(28, "No space left on device")

    store = FullDisk(tmp_path)
    app = CallCaptureMiddleware(answering(b'{"id": "r1"}'), store, rollout_id=lambda: "3-1")

    with caplog.at_level(logging.WARNING):
        answer = await call(app)

    assert answer == b'{"id": "r1"}'
    assert [gap["code"] for gap in store.read("3-1").gaps] == ["capture_incomplete"]
    assert "No space left" in caplog.text


@pytest.mark.asyncio
async def test_not_even_the_mark_can_cost_the_call(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The folder may be gone altogether."""
    blocked = tmp_path / "a file"
    blocked.write_text("in the way")
    app, _ = capturing_app(answering(b"{}"), blocked)

    with caplog.at_level(logging.WARNING):
        answer = await call(app)

    assert answer == b"{}"
    assert "could not be marked incomplete" in caplog.text


@pytest.mark.parametrize("body", [b"[" * 5000, b'"\\ud800"', b"\xff\xfe", b"NaN"])
@pytest.mark.asyncio
async def test_bodies_nobody_can_read_are_kept_as_text(tmp_path: Path, body: bytes) -> None:
    """Whatever was sent, the call is answered and recorded."""
    app, store = capturing_app(answering(body), tmp_path)

    assert await call(app, body=body) == body

    (record,) = store.read("3-1").records
    assert record.error_category == "capture_parse_error"
    assert record.request is None


@pytest.mark.parametrize(
    ("values", "expected"),
    [((), None), ((b"s1",), "s1"), ((b"s1", b"s1"), "s1"), ((b"s1", b"s2"), None), ((b" ",), None)],
)
@pytest.mark.asyncio
async def test_the_session_of_the_client_is_recorded_if_it_is_unambiguous(
    tmp_path: Path, values: tuple[bytes, ...], expected: str | None
) -> None:
    """It says which agent made a call; a wrong one would attribute the call to another agent."""
    app, store = capturing_app(answering(b"{}"), tmp_path)

    await call(app, headers=tuple((b"X-Session-Id", value) for value in values))

    assert store.read("3-1").records[0].client_session_id == expected


@pytest.mark.asyncio
async def test_the_outcome_that_a_server_reports_is_recorded(tmp_path: Path) -> None:
    """An answer that the server made itself says nothing about the endpoint."""

    async def refusing(scope: Any, receive: Any, send: Any) -> None:
        outcome = start_model_execution(Request(scope), upstream_attempted=False)
        outcome.response_source, outcome.local_response_reason = "local", "context overflow"
        await answering(b"{}", status=400)(scope, receive, send)

    app, store = capturing_app(refusing, tmp_path)

    await call(app)

    (record,) = store.read("3-1").records
    assert (record.upstream_attempted, record.response_source) == (False, "local")
    assert (record.upstream_status_code, record.local_response_reason) == (None, "context overflow")
