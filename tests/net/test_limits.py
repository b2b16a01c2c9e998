"""Limits learnt from refusals."""

import asyncio
import dataclasses
import math

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from nemo_gym.errors import DeadlineExceeded, ModelFailed, ServerUnreachable
from nemo_gym.net import deadline, limits
from nemo_gym.net.limits import LONGEST_REST, AdaptiveLimit, PacedOpenAI, understood


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(limits, "MODEL_CALL", dataclasses.replace(limits.MODEL_CALL, first_pause=0, longest_pause=0))


def paced(url: str, **settings) -> PacedOpenAI:
    return PacedOpenAI(name="policy_model", base_url=f"{url}/v1", api_key="sk-very-secret-1", **settings)


async def entered(limit: AdaptiveLimit, count: int) -> list[int]:
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
    tickets = await entered(limit, 8)

    limit.refused(tickets[0])

    assert limit.allowed == 4


@pytest.mark.asyncio
async def test_one_wave_of_refusals_is_one_message():
    """Eight calls refused in the same moment must not cut the limit eight times."""
    limit = AdaptiveLimit(8)
    for ticket in await entered(limit, 8):
        limit.refused(ticket)
        limit.leave()

    assert limit.allowed == 4


@pytest.mark.asyncio
async def test_refusals_never_close_the_endpoint():
    """With no place at all nothing would ever find out that it recovered."""
    limit = AdaptiveLimit(4)
    for _ in range(10):
        limit.refused(await limit.enter())
        limit.leave()

    assert limit.allowed == 1


@pytest.mark.asyncio
async def test_answers_win_the_places_back_but_not_more_than_configured():
    """One more place per round of answers, up to the limit."""
    limit = AdaptiveLimit(4)
    limit.refused((await entered(limit, 4))[0])
    grown = []
    for _ in range(40):
        limit.succeeded()
        grown.append(limit.allowed)

    assert grown == sorted(grown)
    assert 2 < grown[1] < 4
    assert limit.allowed == 4


@pytest.mark.asyncio
async def test_an_endpoint_that_was_away_gets_its_calls_back_quickly():
    """A restart refuses wave after wave; an hour of creeping back up would be worse than the restart."""
    limit = AdaptiveLimit(64)
    for _ in range(10):
        tickets = await entered(limit, int(limit.allowed))
        for ticket in tickets:
            limit.refused(ticket)
        for _ in tickets:
            limit.leave()
    assert limit.allowed == 1

    for _ in range(31):
        limit.succeeded()
    assert limit.allowed == 32

    limit.succeeded()
    assert 32 < limit.allowed < 33


@pytest.mark.asyncio
async def test_nobody_is_sent_before_the_rest_is_over(monkeypatch):
    """`Retry-After` is for the endpoint, so every caller respects it, not only the refused one."""
    now, slept = [100.0], []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(limits.asyncio, "sleep", sleep)
    limit = AdaptiveLimit(clock=lambda: now[0])
    limit.refused(await limit.enter(), retry_after=7.0)
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

    monkeypatch.setattr(limits.asyncio, "sleep", sleep)
    limit = AdaptiveLimit(clock=lambda: now[0])
    limit.refused(await limit.enter(), retry_after=math.inf)
    limit.leave()

    await limit.enter()

    assert now[0] <= LONGEST_REST * 1.1


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
    """Between the configured limit and one call; every place comes back; whoever waits is served in the end."""

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
                limit.succeeded()
                end()
            elif step == "refuse" and inside:
                limit.refused(inside[0])
                end()
            for _ in range(3):
                await asyncio.sleep(0)
            assert limit.in_flight == len(inside) <= (most or math.inf)
            assert 1 <= limit.allowed <= (most or math.inf)
        while inside:
            end()
            await asyncio.sleep(0)
        assert all(task.done() for task in waiting)
        assert limit.in_flight == 0

    asyncio.run(story())


@pytest.mark.asyncio
@pytest.mark.parametrize("status", [429, 503])
async def test_an_overloaded_endpoint_is_asked_again(scripted_server, say, status):
    """Rate limits are ordinary; a rollout does not die of them."""
    async with scripted_server(say(status), say(status), say(200, b'{"ok":1}')) as server:
        client = paced(server.url, max_concurrent_requests=8)

        assert await client.create_response(input="x") == {"ok": 1}

    assert client.limit.in_flight == 0
    assert client.limit.allowed < 8


@pytest.mark.asyncio
async def test_a_refusal_that_outlasts_the_deadline_is_handed_on(scripted_server, say):
    """The caller learns the provider's own status and words, in time."""
    async with scripted_server(say(429, b"quota used up", Retry_After="30")) as server:
        with deadline.within(5), pytest.raises(aiohttp.ClientResponseError) as refusal:
            await paced(server.url).create_response(input="x")

    assert refusal.value.status == 429
    assert refusal.value.response_content == b"quota used up"


@pytest.mark.asyncio
async def test_waiting_for_a_place_ends_with_the_deadline():
    """A full endpoint is a timeout, and the message says which knob to turn."""
    client = paced("http://127.0.0.1:9", max_concurrent_requests=1)
    await client.limit.enter()

    with deadline.within(0.01), pytest.raises(DeadlineExceeded, match="max_concurrent_requests") as problem:
        await client.create_response(input="x")

    assert problem.value.where == "policy_model"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [(b"<html>", ModelFailed, "not JSON"), (b"[1]", ModelFailed, "not an object"), (None, ServerUnreachable, "broke")],
    ids=["text", "list", "half a body"],
)
async def test_failures_carry_the_servers_name_and_the_address(scripted_server, say, said, kind, words):
    """The collector attributes by name; the person reading wants the address."""
    broken = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Encoding: gzip\r\n\r\nabc"
    async with scripted_server(say(200, said) if said else broken) as server:
        with pytest.raises(kind, match=words) as failure:
            await paced(server.url).create_response(input="x")

    assert failure.value.where == "policy_model"
    assert server.url in failure.value.problem


@pytest.mark.asyncio
async def test_query_and_key_go_where_the_provider_wants_them(scripted_server, say):
    """Azure has its own header and a version in every address."""
    async with scripted_server(say(200)) as server:
        client = paced(server.url, key_header="api-key", default_query={"api-version": "1"})
        await client.create_response(input="x")

    request = server.requests[0]
    assert request.startswith(b"POST /v1/responses?api-version=1 ")
    assert b"api-key: sk-very-secret-1" in request
    assert b"Bearer" not in request


def test_an_answer_of_another_shape_is_named():
    """Valid JSON is not a valid answer."""

    class Sum(BaseModel):
        total: int

    with pytest.raises(ModelFailed, match=r"is no Sum: total: Field required") as failure:
        understood(Sum, {"sum": 4}, where="policy_model")

    assert failure.value.where == "policy_model"
