"""The model client: answers as dictionaries, retries within a budget, a limit that adapts."""

import asyncio
import base64
import contextvars
import dataclasses
import json
import math
import threading
from typing import Any
from urllib.parse import unquote

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from nemo_gym.errors import DeadlineExceeded, ModelFailed, ServerUnreachable
from nemo_gym.transport import deadlines, event_reader, model_client, rejection_notice
from nemo_gym.transport.adaptive_limit import MAX_PAUSE_SECONDS, AdaptiveLimit
from nemo_gym.transport.call_timing import pending_calls, set_current_rollout
from nemo_gym.transport.endpoint_waits import rejection_status, split_reason
from nemo_gym.transport.large_bodies import LARGE_BYTES
from nemo_gym.transport.model_client import (
    RATE_LIMIT_ERROR_CODES,
    RETRY_ERROR_CODES,
    NeMoGymAsyncOpenAI,
    PacedOpenAI,
    validate_answer,
)

BROKEN = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Encoding: gzip\r\n\r\nabc"


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(
        model_client, "MODEL_CALL", dataclasses.replace(model_client.MODEL_CALL, first_pause=0, max_pause=0)
    )


def client_for(url: str) -> NeMoGymAsyncOpenAI:
    return NeMoGymAsyncOpenAI(base_url=f"{url}/v1", api_key="sk-very-secret-1", default_headers={"X-Team": "gym"})


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("method", "line"),
    [
        ("create_chat_completion", "POST /v1/chat/completions"),
        ("create_completion", "POST /v1/completions"),
        ("create_response", "POST /v1/responses"),
        ("create_tokenize", "POST /tokenize"),
        ("create_models", "GET /v1/models"),
    ],
)
async def test_each_call_goes_to_its_endpoint_and_returns_a_dictionary(scripted_server, say, method, line):
    """Existing folders call these methods; a wrong path or a lost header fails every rollout."""
    async with scripted_server(say(200, b'{"id": "x"}')) as server:
        kwargs = {} if method == "create_models" else {"model": "m", "input": "hi"}
        answer = await getattr(client_for(server.url), method)(**kwargs)

    request = server.requests[0]
    assert answer == {"id": "x"}
    assert request.startswith(line.encode() + b" HTTP/1.1")
    assert b"Authorization: Bearer sk-very-secret-1" in request
    assert b"X-Team: gym" in request
    if kwargs:
        assert json.loads(request.partition(b"\r\n\r\n")[2]) == kwargs


@pytest.mark.asyncio
@pytest.mark.parametrize("status", RATE_LIMIT_ERROR_CODES)
async def test_rate_limits_and_gateway_errors_are_waited_out(scripted_server, say, status):
    """Providers throttle large runs; a rollout must survive that."""
    async with scripted_server(say(status), say(status), say(status), say(status), say(200, b'{"ok":1}')) as server:
        assert await client_for(server.url).create_response(input="x") == {"ok": 1}


@pytest.mark.asyncio
async def test_a_500_gets_three_tries_and_keeps_what_the_server_said(scripted_server, say):
    """The last answer's text is the only clue to a broken model server."""
    async with scripted_server(say(500, b"CUDA out of memory")) as server:
        with pytest.raises(aiohttp.ClientResponseError) as caught:
            await client_for(server.url).create_response(input="x")

    assert len(server.requests) == 3
    assert caught.value.response_content == b"CUDA out of memory"


@pytest.mark.asyncio
async def test_a_bad_request_is_not_repeated(scripted_server, say):
    """Repeating cannot help and costs money; the agent needs the provider's text to react."""
    async with scripted_server(say(400, b"context length exceeded")) as server:
        with pytest.raises(aiohttp.ClientResponseError) as caught:
            await client_for(server.url).create_response(input="x")

    assert len(server.requests) == 1
    assert (caught.value.status, caught.value.response_content) == (400, b"context length exceeded")


@pytest.mark.asyncio
async def test_lost_connections_and_broken_answers_are_asked_for_again(scripted_server, say):
    """Generations are stateless: asking again is safe, losing a rollout to a proxy hiccup is not necessary."""
    async with scripted_server("close", BROKEN, say(200, b'{"a":1}')) as server:
        assert await client_for(server.url).create_response(input="x") == {"a": 1}


@pytest.mark.asyncio
async def test_an_answer_that_stays_broken_is_an_error_with_an_address(scripted_server):
    """The user must be able to see which endpoint fails."""
    async with scripted_server(BROKEN) as server:
        with pytest.raises(ServerUnreachable, match="broke off"):
            await client_for(server.url).create_response(input="x")


@pytest.mark.asyncio
@pytest.mark.parametrize("body", [b"<html>login</html>", b"[1]", b"", b"[" * 100_000])
async def test_an_answer_that_is_no_json_object_is_a_model_failure(scripted_server, say, body):
    """A proxy's login page answered with 200 must not become a crash in the middle of a rollout."""
    async with scripted_server(say(200, body)) as server:
        with pytest.raises(ModelFailed):
            await client_for(server.url).create_response(input="x")


@pytest.mark.asyncio
async def test_nan_among_log_probabilities_is_kept(scripted_server, say):
    """Inference servers write NaN; refusing the answer would lose the rollout."""
    async with scripted_server(say(200, b'{"logprob": NaN}')) as server:
        answer = await client_for(server.url).create_completion(prompt="x")

    assert answer["logprob"] != answer["logprob"]


def test_the_key_works_but_is_never_shown():
    """Clients appear in tracebacks and logs, which are shared."""
    client = NeMoGymAsyncOpenAI(base_url="http://h/v1", api_key="sk-very-secret-1", internal=True)

    assert client.api_key == "sk-very-secret-1"
    assert "sk-very-secret-1" not in repr(client)
    assert "sk-very-secret-1" not in str(client)
    assert client.default_headers == {}


def test_the_lists_of_codes_are_the_contracts():
    """Existing folders import these lists and decide by them what to retry."""
    assert RATE_LIMIT_ERROR_CODES == [429, 502, 503, 504, 520]
    assert RETRY_ERROR_CODES == [429, 502, 503, 504, 520, 500]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(
        model_client, "MODEL_CALL", dataclasses.replace(model_client.MODEL_CALL, first_pause=0, max_pause=0)
    )


def paced_client(url: str, **settings) -> PacedOpenAI:
    return PacedOpenAI(name="policy_model", base_url=f"{url}/v1", api_key="sk-very-secret-1", **settings)


async def enter_all(limit: AdaptiveLimit, count: int) -> list[int]:
    return [await limit.enter() for _ in range(count)]


@pytest.mark.asyncio
async def test_the_next_in_line_gets_the_place_that_comes_free():
    """First come, first served: no call waits while later ones pass it."""
    limit = AdaptiveLimit(1)
    await limit.enter()
    order: list[str] = []

    async def call(name: str) -> None:
        await limit.enter()
        order.append(name)
        limit.leave()

    calls = [asyncio.create_task(call(name)) for name in ("first", "second")]
    await asyncio.sleep(0)
    assert order == []
    limit.leave()
    await asyncio.gather(*calls)

    assert order == ["first", "second"]
    assert limit.in_flight == 0


@pytest.mark.asyncio
async def test_a_refusal_halves_what_was_under_way():
    """Without a configured limit the endpoint's refusal is the first thing known about it."""
    limit = AdaptiveLimit()
    tickets = await enter_all(limit, 8)

    limit.record_rejection(tickets[0])

    assert limit.current == 4


@pytest.mark.asyncio
async def test_one_wave_of_refusals_is_one_message():
    """Eight calls refused in the same moment must not cut the limit eight times."""
    limit = AdaptiveLimit(8)
    for ticket in await enter_all(limit, 8):
        limit.record_rejection(ticket)
        limit.leave()

    assert limit.current == 4


@pytest.mark.asyncio
async def test_refusals_never_close_the_endpoint():
    """With no place at all nothing would ever find out that it recovered."""
    limit = AdaptiveLimit(4)
    for _ in range(10):
        limit.record_rejection(await limit.enter())
        limit.leave()

    assert limit.current == 1


@pytest.mark.asyncio
async def test_answers_win_the_places_back_but_not_more_than_configured():
    """One more place per round of answers, up to the limit."""
    limit = AdaptiveLimit(4)
    limit.record_rejection((await enter_all(limit, 4))[0])
    grown = []
    for _ in range(40):
        limit.record_success()
        grown.append(limit.current)

    assert grown == sorted(grown)
    assert 2 < grown[1] < 4
    assert limit.current == 4


@pytest.mark.asyncio
async def test_an_endpoint_that_was_away_gets_its_calls_back_quickly():
    """A restart refuses wave after wave; an hour of creeping back up would be worse than the restart."""
    limit = AdaptiveLimit(64)
    for _ in range(10):
        tickets = await enter_all(limit, int(limit.current))
        for ticket in tickets:
            limit.record_rejection(ticket)
        for _ in tickets:
            limit.leave()
    assert limit.current == 1

    for _ in range(31):
        limit.record_success()
    assert limit.current == 32

    limit.record_success()
    assert 32 < limit.current < 33


@pytest.mark.asyncio
async def test_nobody_is_sent_before_the_rest_is_over(monkeypatch):
    """`Retry-After` is for the endpoint, so every caller respects it, not only the refused one."""
    now, slept = [100.0], []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(model_client.asyncio, "sleep", sleep)
    limit = AdaptiveLimit(clock=lambda: now[0])
    limit.record_rejection(await limit.enter(), retry_after=7.0)
    limit.leave()

    await limit.enter()

    assert 107.0 <= now[0] < 108.0
    assert len(slept) == 1


@pytest.mark.asyncio
async def test_one_absurd_answer_does_not_stop_everybody(monkeypatch):
    """A gateway that says "come back tomorrow" to one caller is asked again by the others."""
    now = [0.0]

    async def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(model_client.asyncio, "sleep", sleep)
    limit = AdaptiveLimit(clock=lambda: now[0])
    limit.record_rejection(await limit.enter(), retry_after=math.inf)
    limit.leave()

    await limit.enter()

    assert now[0] <= MAX_PAUSE_SECONDS * 1.1


@pytest.mark.asyncio
async def test_a_call_that_gives_up_waiting_leaves_no_gap():
    """A cancelled rollout must not take its place in the line with it."""
    limit = AdaptiveLimit(1)
    await limit.enter()
    gone, stays = asyncio.create_task(limit.enter()), asyncio.create_task(limit.enter())
    await asyncio.sleep(0)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone

    limit.leave()
    await stays

    assert limit.in_flight == 1


@pytest.mark.asyncio
async def test_a_call_cancelled_as_its_place_comes_gives_it_back():
    """Both happen in one turn of the loop under load."""
    limit = AdaptiveLimit(1)
    await limit.enter()
    gone = asyncio.create_task(limit.enter())
    await asyncio.sleep(0)

    limit.leave()
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone

    assert limit.in_flight == 0


@settings(max_examples=60, deadline=None)
@given(
    most=st.none() | st.integers(1, 20),
    steps=st.lists(st.sampled_from(["begin", "answer", "refuse", "cancel"]), max_size=80),
)
def test_whatever_happens_the_limit_is_kept_and_nobody_is_forgotten(most, steps):
    """Between the configured limit and one call; every slot is released; every waiting call enters in the end."""

    async def story() -> None:
        limit = AdaptiveLimit(most)
        inside: list[int] = []
        waiting: list[asyncio.Task[None]] = []

        async def begin() -> None:
            inside.append(await limit.enter())

        def end() -> None:
            inside.pop(0)
            limit.leave()

        for step in steps:
            if step == "begin":
                waiting.append(asyncio.create_task(begin()))
            elif step == "cancel" and waiting:
                waiting.pop().cancel()
            elif step == "answer" and inside:
                limit.record_success()
                end()
            elif step == "refuse" and inside:
                limit.record_rejection(inside[0])
                end()
            for _ in range(3):
                await asyncio.sleep(0)
            assert limit.in_flight == len(inside) <= (most or math.inf)
            assert 1 <= limit.current <= (most or math.inf)
        while inside:
            end()
            await asyncio.sleep(0)
        assert all(task.done() for task in waiting)
        assert limit.in_flight == 0

    asyncio.run(story())


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("error", "is_final"),
    [
        ({"code": "insufficient_quota", "message": "plan"}, True),
        ({"type": "billing_not_active", "code": None}, True),
        ({"code": "rate_limit_exceeded", "type": "requests"}, False),
        ("insufficient_quota", False),
        (None, False),
    ],
)
async def test_an_exhausted_quota_is_not_waited_out(scripted_server, say, error, is_final):
    """No pause brings it back: waiting a quarter of an hour per rollout would only hide the reason."""
    body = json.dumps({"error": error}).encode()
    async with scripted_server(say(429, body), say(200, b'{"ok":1}')) as server:
        client = PacedOpenAI(name="m", base_url=f"{server.url}/v1", api_key="k")
        if not is_final:
            assert await client.create_response(input="x") == {"ok": 1}
            return
        with pytest.raises(aiohttp.ClientResponseError) as refusal:
            await client.create_response(input="x")

    assert (refusal.value.status, refusal.value.response_content, len(server.requests)) == (402, body, 1)


@pytest.mark.asyncio
@pytest.mark.parametrize("status", [429, 503])
async def test_an_overloaded_endpoint_is_asked_again(scripted_server, say, status):
    """Rate limits are ordinary; a rollout does not die of them."""
    async with scripted_server(say(status), say(status), say(200, b'{"ok":1}')) as server:
        client = paced_client(server.url, max_concurrent_requests=8)

        assert await client.create_response(input="x") == {"ok": 1}

    assert client.limit.in_flight == 0
    assert client.limit.current < 8


@pytest.mark.asyncio
async def test_a_refusal_that_outlasts_the_deadline_is_handed_on(scripted_server, say):
    """The caller learns the provider's own status and words, in time."""
    async with scripted_server(say(429, b"quota used up", Retry_After="30")) as server:
        with deadlines.time_limit(5), pytest.raises(aiohttp.ClientResponseError) as refusal:
            await paced_client(server.url).create_response(input="x")

    assert refusal.value.status == 429
    assert refusal.value.response_content == b"quota used up"


@pytest.mark.asyncio
async def test_waiting_for_a_place_ends_with_the_deadline():
    """A full endpoint is a timeout, and the message says which knob to turn."""
    client = paced_client("http://127.0.0.1:9", max_concurrent_requests=1)
    await client.limit.enter()

    with deadlines.time_limit(0.01), pytest.raises(DeadlineExceeded, match="max_concurrent_requests") as problem:
        await client.create_response(input="x")

    assert problem.value.where == "policy_model"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [(b"<html>", ModelFailed, "not JSON"), (b"[1]", ModelFailed, "not an object"), (None, ServerUnreachable, "broke")],
    ids=["text", "list", "half a body"],
)
async def test_failures_carry_the_servers_name_and_the_address(scripted_server, say, reply, kind, words):
    """The collector attributes by name; the person reading wants the address."""
    broken = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Encoding: gzip\r\n\r\nabc"
    async with scripted_server(say(200, reply) if reply else broken) as server:
        with pytest.raises(kind, match=words) as failure:
            await paced_client(server.url).create_response(input="x")

    assert failure.value.where == "policy_model"
    assert server.url in failure.value.problem


@pytest.mark.asyncio
async def test_query_and_key_go_where_the_provider_wants_them(scripted_server, say):
    """Azure has its own header and a version in every address."""
    async with scripted_server(say(200)) as server:
        client = paced_client(server.url, key_header="api-key", default_query={"api-version": "1"})
        await client.create_response(input="x")

    request = server.requests[0]
    assert request.startswith(b"POST /v1/responses?api-version=1 ")
    assert b"api-key: sk-very-secret-1" in request
    assert b"Bearer" not in request


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "options",
    [None, {}, {"key_header": "api-key"}, {"default_headers": {"X-Team": "blue"}, "max_concurrent_requests": 1}],
)
@pytest.mark.parametrize("user", ["ann:s3cret", "only-a-user", "ann:p%40ss"])
async def test_with_an_empty_key_the_user_of_the_url_is_sent(scripted_server, say, user, options):
    """Every rollout failed with an exception of the HTTP client, because the empty key was a second Authorization."""
    async with scripted_server(*[say(200)] * 2) as server:
        url = server.url.replace("://", f"://{user}@") + "/v1"
        if options is None:
            client = NeMoGymAsyncOpenAI(base_url=url, api_key="")
        else:
            client = PacedOpenAI(name="policy_model", base_url=url, api_key="", **options)
        await client.create_response(input="x")
        await client.create_tokenize(prompt="x")

    name, _, password = unquote(user).partition(":")
    expected = base64.b64encode(f"{name}:{password}".encode())
    for request in server.requests:
        assert b"Authorization: Basic " + expected in request
        assert b"Bearer" not in request
        assert b"api-key" not in request


def test_an_answer_of_another_shape_is_named():
    """Valid JSON is not a valid answer."""

    class Sum(BaseModel):
        total: int

    with pytest.raises(ModelFailed, match=r"is not a valid Sum: total: Field required") as failure:
        validate_answer(Sum, {"sum": 4}, callee="policy_model")

    assert failure.value.where == "policy_model"


@pytest.mark.parametrize("escape", ["\\ud83d", "x\\uDC05", "\\ud83d\\ud83d"])
def test_half_a_character_of_a_model_is_part_of_its_answer(escape: str) -> None:
    """A model that stops inside an emoji answered badly; its answer must not fail as a bad reply of the endpoint."""
    body = f'{{"text": "a{escape}b", "logprob": NaN, "emoji": "\\ud83d\\ude00"}}'.encode()

    answer = model_client._parse_object(body, "http://endpoint")

    assert "\ufffd" in answer["text"]
    assert answer["emoji"] == "\U0001f600"
    assert not any("\ud800" <= character <= "\udfff" for character in answer["text"])


@pytest.mark.parametrize("status", [301, 302, 303])
async def test_a_redirect_to_a_login_page_is_an_error_with_its_status(scripted_server, say, status):
    """The page is not the model's answer, and the query of its address may contain a secret."""
    redirect = say(status, Location="/login?next=s3cret")
    async with scripted_server(redirect, redirect, say(200, b"<html>Log in</html>")) as script:
        with pytest.raises(aiohttp.ClientResponseError) as caught:
            await PacedOpenAI(base_url=script.url, api_key="k", name="m").create_response(input="x")

    assert (caught.value.status, caught.value.response_content) == (status, b"it redirects to /login")


@pytest.mark.parametrize("headers", [{"Location": "/around"}, {}])
async def test_a_redirect_that_leads_nowhere_is_the_same_error(scripted_server, say, headers):
    """A login page that needs cookies redirects forever."""
    async with scripted_server(*[say(302, **headers)] * 20) as script:
        with pytest.raises(aiohttp.ClientResponseError) as caught:
            await PacedOpenAI(base_url=script.url, api_key="k", name="m").create_response(input="x")

    assert caught.value.status == 302
    assert caught.value.response_content.startswith(b"it redirects ")
    assert len(script.requests) == (11 if headers else 1)


@pytest.mark.asyncio
async def test_a_rate_limit_without_an_end_is_named(scripted_server, say, caplog, monkeypatch):
    """Minutes of "waits for policy_model" without the reason look like a hang; single rejections are ordinary."""
    monkeypatch.setattr(rejection_notice, "FIRST_NOTICE_SECONDS", 0.0)
    body = json.dumps({"error": {"message": "Rate limit reached", "type": "rate_limit"}}).encode()
    async with scripted_server(*[say(429, body)] * 3, say(200, b'{"ok":1}')) as server:
        assert await paced_client(server.url).create_response(input="x") == {"ok": 1}

    named = [record.getMessage() for record in caplog.records if "limits the rate of requests" in record.getMessage()]
    assert len(named) == 1
    assert "(429: Rate limit reached" in named[0] and "--concurrency" in named[0]


@pytest.mark.asyncio
@pytest.mark.parametrize(("status", "words"), [(429, "rate limited (429)"), (503, "overloaded (503)")])
async def test_a_rollout_that_waits_for_a_retry_says_why(scripted_server, say, monkeypatch, status, words):
    """The live page and the terminal name the endpoint that holds a run up only if the pending call has the reason."""
    reported = []
    sleep = asyncio.sleep

    async def note_pending_calls(seconds):
        reported.extend(pending_calls.values())
        await sleep(0)

    monkeypatch.setattr(model_client.asyncio, "sleep", note_pending_calls)
    context = contextvars.copy_context()
    async with scripted_server(say(status), say(status), say(200, b'{"ok":1}')) as server:
        context.run(set_current_rollout, (3, 1))
        call = paced_client(server.url).create_response(input="x")
        assert await asyncio.create_task(call, context=context) == {"ok": 1}

    assert [rollout for rollout, *_ in reported] == [(3, 1), (3, 1)]
    calls = [split_reason(f"{server_name} {path}") for _, server_name, path in reported]
    assert [call.rpartition(" ")[2] for call, _ in calls] == ["/v1/responses"] * 2
    assert [reason.partition(", ")[0] for _, reason in calls] == [words] * 2
    assert [rejection_status(reason) for _, reason in calls] == [status] * 2
    assert "retry 1 " in calls[0][1] and "retry 2 " in calls[1][1]
    assert not pending_calls


@pytest.mark.asyncio
async def test_a_rollout_that_waits_for_a_slot_says_why(scripted_server, say):
    """Calls behind a full endpoint look like a hang otherwise; without a rejection no rate limit is claimed."""
    context = contextvars.copy_context()
    async with scripted_server(say(200, b'{"ok":1}')) as server:
        client = paced_client(server.url, max_concurrent_requests=1)
        assert client.limit.try_enter() is not None
        context.run(set_current_rollout, (3, 1))
        call = asyncio.create_task(client.create_response(input="x"), context=context)
        while not pending_calls:  # noqa: ASYNC110 - the table sets no event
            await asyncio.sleep(0)
        ((rollout, server_name, path),) = pending_calls.values()
        client.limit.leave()
        assert await call == {"ok": 1}

    assert rollout == (3, 1)
    assert split_reason(f"{server_name} {path}")[1] == "waits for a slot"
    assert rejection_status("waits for a slot") is None
    assert not pending_calls


def test_a_short_wait_is_not_reported_and_a_long_one_once_a_minute(caplog):
    """Thousands of calls share an endpoint; their rejections must not flood the log."""
    now = [0.0]
    notice = rejection_notice.RejectionNotice(clock=lambda: now[0])
    rejection = aiohttp.ClientResponseError(None, (), status=503, message="busy")
    for seconds, waited in ((1, 2.0), (2, 6.0), (3, 7.0), (70, 70.0)):
        now[0] = seconds
        notice.record("m", rejection, waited)

    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        "m: the endpoint is overloaded (503: busy)"
    ] * 2


def answer_of_type(body: bytes, kind: str) -> bytes:
    """Return an HTTP response with status 200 and this content type."""
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nContent-Type: {kind}\r\n\r\n".encode() + body


async def _ignore_event(_event: dict[str, Any]) -> None:
    """Ignore an event of a stream."""


@pytest.mark.asyncio
async def test_a_page_in_place_of_a_stream_is_quoted(scripted_server):
    """A proxy answers 200 with its own text; "the stream stops" would send the reader to the wrong machine."""
    page = b"Service is in maintenance mode." + b" Please wait." * 40
    async with scripted_server(*[answer_of_type(page, "text/plain")] * 3) as server:
        with pytest.raises(ModelFailed, match="neither a stream nor JSON: 'Service is in maintenance mode") as raised:
            await client_for(server.url).stream("responses", {"input": "hi"}, _ignore_event)

    assert len(str(raised.value)) < 400


@pytest.mark.asyncio
@pytest.mark.parametrize("body", [b"data: [DONE]\n\n", b": nothing to say\n\n", b""])
async def test_a_stream_without_events_is_no_page(scripted_server, body):
    """What is missing from a stream is reported by the decoder of its dialect."""
    async with scripted_server(answer_of_type(body, "text/event-stream")) as server:
        assert await client_for(server.url).stream("responses", {"input": "hi"}, _ignore_event) == {}


@pytest.mark.asyncio
async def test_lines_of_json_are_not_read_as_events(scripted_server):
    """No decoder reads them; the first line was parsed together with all others, and the error named a stream."""
    lines = b'{"choices": []}\n{"choices": []}\n'
    async with scripted_server(*[answer_of_type(lines, "application/x-ndjson")] * 3) as server:
        with pytest.raises(ModelFailed) as raised:
            await client_for(server.url).stream("chat/completions", {"messages": []}, _ignore_event)

    assert "neither a stream" not in str(raised.value)


@pytest.mark.asyncio
async def test_a_large_object_with_the_type_of_a_stream_is_parsed_on_a_thread(scripted_server, monkeypatch):
    """All rollouts of a process share one event loop, which parsing an answer of many megabytes would block."""
    threads, parse = [], event_reader._parse_whole

    def parse_and_note(body: bytes, url: str) -> dict[str, Any]:
        threads.append(threading.current_thread() is threading.main_thread())
        return parse(body, url)

    monkeypatch.setattr(event_reader, "_parse_whole", parse_and_note)
    bodies = [json.dumps({"id": "x" * size}).encode() for size in (10, 2 * LARGE_BYTES)]
    async with scripted_server(*(answer_of_type(body, "text/plain") for body in bodies)) as server:
        client = client_for(server.url)
        answers = [await client.stream("responses", {"input": "hi"}, _ignore_event) for _ in bodies]

    assert [len(answer["id"]) for answer in answers] == [10, 2 * LARGE_BYTES]
    assert threads == [True, False]
