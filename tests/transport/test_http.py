"""One outgoing call: what is repeated, what is not, and what an error says."""

import asyncio
import logging

import aiohttp
import orjson
import pytest
from yarl import URL

from nemo_gym.errors import CircuitOpen, ConfigError, DeadlineExceeded, ServerUnreachable
from nemo_gym.keys import DEADLINE_HEADER
from nemo_gym.transport import call_timing, deadlines, http, http_sessions, run_token
from nemo_gym.transport.http import send
from nemo_gym.transport.http_sessions import GlobalAIOHTTPAsyncClientConfig
from nemo_gym.transport.retries import ONCE, SUMMARY_SECONDS, HealthRegistry, RetryPolicy
from nemo_gym.wire.call_reply import encode_json

QUICK = RetryPolicy(attempts=4, first_pause=0.0, max_pause=0.0)
MODEL = RetryPolicy(attempts=4, first_pause=0.0, max_pause=0.0, statuses=frozenset({502}))


def deadline_of(request: bytes) -> float:
    for line in request.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.decode().lower() == DEADLINE_HEADER:
            return float(value)
    raise AssertionError("no deadline header was sent")


@pytest.mark.asyncio
async def test_an_answer_comes_back_whatever_its_status(scripted_server, say):
    """A tool's 404 is an answer for the model, not a failure of the call."""
    async with scripted_server(say(404, b'{"no":1}')) as server:
        response = await send("post", server.url, json={"a": 1}, policy=QUICK)

        assert response.status == 404
        assert orjson.loads(await response.read()) == {"no": 1}
        assert len(server.requests) == 1
        assert server.requests[0].endswith(b'{"a":1}')
        assert b"Content-Type: application/json" in server.requests[0]


@pytest.mark.asyncio
async def test_a_post_that_may_have_been_executed_is_not_sent_twice(scripted_server, say):
    """Repeating it could move a robot twice or count a reward twice."""
    async with scripted_server("close", say(200)) as server:
        with pytest.raises(ServerUnreachable, match="weather") as caught:
            await send("POST", server.url, json={}, policy=QUICK, callee="weather")

        assert len(server.requests) == 1
        assert caught.value.where == "weather"


@pytest.mark.asyncio
@pytest.mark.parametrize(("method", "options"), [("GET", {}), ("POST", {"safe_to_retry": True})])
async def test_a_lost_connection_is_tried_again_when_that_is_safe(scripted_server, say, method, options):
    """Model calls keep no state, so a dropped keep-alive connection costs nothing but a second."""
    async with scripted_server("close", "close", say(200)) as server:
        response = await send(method, server.url, policy=QUICK, **options)

        assert response.status == 200
        assert len(server.requests) >= 3


@pytest.mark.asyncio
async def test_a_connection_that_was_never_made_is_tried_again_even_for_post(closed_address):
    """Nothing was sent, so nothing can have happened: servers that are still starting are waited for."""
    with pytest.raises(ServerUnreachable, match="after 4 attempts"):
        await send("POST", closed_address, json={}, policy=QUICK)


@pytest.mark.asyncio
async def test_a_body_that_can_be_read_only_once_is_sent_only_once(closed_address):
    """A second attempt would silently send an empty stream."""

    async def stream():
        yield b"x"

    with pytest.raises(ServerUnreachable) as caught:
        await send("POST", closed_address, data=stream(), policy=QUICK, safe_to_retry=True)

    assert "attempts" not in str(caught.value)


@pytest.mark.asyncio
async def test_retry_after_is_waited_for_and_the_second_answer_returned(scripted_server, say):
    """A busy server tells when to return; giving up would lose the rollout."""
    async with scripted_server(say(503, Retry_After="0"), say(200)) as server:
        response = await send("POST", server.url, json={}, policy=QUICK)

        assert response.status == 200
        assert len(server.requests) == 2


@pytest.mark.asyncio
async def test_a_refusal_that_asks_for_more_time_than_there_is_is_returned_at_once(scripted_server, say):
    """Waiting beyond the deadline cannot help; the caller should know now."""
    async with scripted_server(say(429, Retry_After="3600")) as server:
        with deadlines.time_limit(30):
            response = await send("POST", server.url, json={}, policy=QUICK)

        assert response.status == 429
        assert len(server.requests) == 1


@pytest.mark.asyncio
async def test_a_gateway_error_is_repeated_only_if_the_policy_and_safety_allow(scripted_server, say):
    """502 says nothing about whether the server behind the gateway did the work."""
    async with scripted_server(say(502), say(200)) as server:
        assert (await send("POST", server.url, policy=MODEL)).status == 502
    async with scripted_server(say(502), say(200)) as server:
        assert (await send("POST", server.url, policy=MODEL, safe_to_retry=True)).status == 200


@pytest.mark.asyncio
async def test_an_answer_that_never_comes_ends_with_the_deadline(scripted_server):
    """Every wait ends, and the error names the awaited server."""
    async with scripted_server("hang") as server:
        with deadlines.time_limit(0.05), pytest.raises(DeadlineExceeded) as caught:
            await send("GET", server.url, callee="slow_judge", policy=QUICK)

    assert caught.value.where == "slow_judge"
    assert isinstance(caught.value, TimeoutError)


@pytest.mark.asyncio
async def test_the_callers_own_timeout_counts_like_a_deadline(scripted_server):
    """Existing folders pass timeouts this way and expect one kind of error."""
    async with scripted_server("hang") as server:
        with pytest.raises(DeadlineExceeded):
            await send("GET", server.url, timeout=0.05, policy=QUICK)
        with pytest.raises(DeadlineExceeded):
            await send("GET", server.url, timeout=aiohttp.ClientTimeout(total=0.05), policy=QUICK)


@pytest.mark.asyncio
async def test_each_call_tells_the_callee_how_long_it_waits(scripted_server, say):
    """The callee can then stop working when its caller has given up."""
    http_sessions.configure(GlobalAIOHTTPAsyncClientConfig(request_timeout_seconds=77))
    async with scripted_server(say(200)) as server:
        await send("GET", server.url)
        with deadlines.time_limit(30):
            await send("GET", server.url)

    assert 47 < deadline_of(server.requests[0]) <= 77
    assert 0 < deadline_of(server.requests[1]) <= 30


@pytest.mark.asyncio
async def test_cancelling_a_call_cancels_it(scripted_server):
    """Ctrl-C must not wait for a server that does not answer."""
    async with scripted_server("hang") as server:
        call = asyncio.create_task(send("GET", server.url))
        await server.hanging.wait()

        call.cancel()

        with pytest.raises(asyncio.CancelledError):
            await call


@pytest.mark.asyncio
async def test_an_endpoint_that_never_answers_is_left_alone_after_a_while(closed_address):
    """A dead server must not cost every rollout a full set of retries."""
    for _ in range(4):
        with pytest.raises(ServerUnreachable):
            await send("GET", closed_address, policy=QUICK)

    with pytest.raises(CircuitOpen, match="not called for another") as caught:
        await send("GET", closed_address, policy=ONCE, callee="dead")

    assert caught.value.where == "dead"


PATIENT = RetryPolicy(attempts=1000, first_pause=0.01, max_pause=0.01, has_unreachable_timeout=True)


@pytest.mark.asyncio
async def test_a_closed_port_is_given_up_by_all_calls_together(closed_address):
    """A thousand rollouts against a model that is not running: half a minute in all, not minutes for each."""
    http_sessions.configure(GlobalAIOHTTPAsyncClientConfig(unreachable_timeout_seconds=0.3))

    first = await asyncio.gather(
        *(send("POST", closed_address, json={}, policy=PATIENT, callee="model") for _ in range(50)),
        return_exceptions=True,
    )
    later = await asyncio.gather(
        *(send("POST", closed_address, json={}, policy=PATIENT, callee="model") for _ in range(50)),
        return_exceptions=True,
    )

    assert {type(error) for error in first + later} <= {ServerUnreachable, CircuitOpen}
    assert {error.where for error in first + later} == {"model"}
    assert not any("attempts" in str(error) for error in later)  # later calls do not wait again


@pytest.mark.asyncio
async def test_an_endpoint_that_opens_within_the_patience_is_reached(scripted_server, say):
    """A model that is just starting costs no rollout, and the next outage is waited for again."""
    async with scripted_server(say(200)) as server:
        port = int(server.url.rsplit(":", 1)[1].split("/")[0])
    call = asyncio.create_task(send("POST", server.url, json={}, policy=PATIENT))
    while http.health.get(f"127.0.0.1:{port}") is None:  # noqa: ASYNC110 - it is only written down
        await asyncio.sleep(0.01)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(say(200))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", port):
        response = await call

    assert response.status == 200
    assert http.health.get(f"127.0.0.1:{port}") is None


@pytest.mark.asyncio
async def test_an_endpoint_that_answered_before_is_waited_for_longer(scripted_server, say):
    """A model that restarts in the middle of a long run must not cost all the rollouts that are left."""
    http_sessions.configure(GlobalAIOHTTPAsyncClientConfig(unreachable_timeout_seconds=0.1))
    async with scripted_server(say(200)) as server:
        await send("POST", server.url, json={}, policy=PATIENT)
    await http_sessions.close_current_session()  # its kept connection, too

    call = asyncio.create_task(send("POST", server.url, json={}, policy=PATIENT))
    await asyncio.sleep(0.3)

    assert not call.done()
    with pytest.raises((ServerUnreachable, CircuitOpen)):
        await call


def test_how_long_an_endpoint_has_been_closed_is_known_until_it_answers():
    """A run stops when its model is gone for too long, but not because of short gaps."""
    now = 0.0
    book = HealthRegistry(lambda: now)
    entry = book.entry("h:1")

    entry.record_no_answer("model", OSError("reset"))
    assert entry.unreachable_seconds() == 0.0
    entry.record_no_answer("model", OSError("refused"), connected=False)
    now = 7.0
    entry.record_no_answer("model", OSError("refused"), connected=False)
    assert entry.unreachable_seconds() == 7.0
    entry.record_answer()
    assert entry.unreachable_seconds() == 0.0


@pytest.mark.asyncio
async def test_the_first_failure_is_logged_and_the_rest_are_not(closed_address, caplog):
    """A thousand rollouts meeting one dead server should leave one line, with its name."""
    with caplog.at_level(logging.INFO, logger="nemo_gym.transport"):
        for _ in range(3):
            with pytest.raises(ServerUnreachable):
                await send("GET", closed_address, policy=QUICK, callee="policy_model")

    assert len(caplog.records) == 1
    assert "policy_model" in caplog.text


def test_failures_are_summed_up_now_and_then_and_when_it_is_over(caplog):
    """Thousands of equal warnings would hide everything else in the log."""
    now = 0.0
    book = HealthRegistry(lambda: now)
    with caplog.at_level(logging.INFO, logger="nemo_gym.transport"):
        for _ in range(5):
            book.entry("h:1").record_no_answer("judge", OSError("gone"))
        now = SUMMARY_SECONDS
        book.entry("h:1").record_no_answer("judge", OSError("gone again"))
        book.record_success("h:1", "judge")

    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "INFO"]
    assert "6 times" in caplog.messages[1]
    assert "answers again after 6" in caplog.messages[2]
    assert not book.failing


@pytest.mark.asyncio
async def test_debug_shows_every_failure_in_detail(closed_address, caplog):
    """Someone who debugs the network needs each attempt, not a summary."""
    http_sessions.configure(GlobalAIOHTTPAsyncClientConfig(global_aiohttp_client_request_debug=True))

    with caplog.at_level(logging.WARNING, logger="nemo_gym.transport"), pytest.raises(ServerUnreachable):
        await send("GET", closed_address, policy=QUICK)

    assert sum("attempt" in message for message in caplog.messages) == 4


def test_integers_beyond_64_bits_and_sets_survive_encoding():
    """Number theory tasks use them; orjson alone would refuse."""
    assert orjson.loads(encode_json({"s": {1}})) == {"s": [1]}
    assert encode_json({"n": 2**80}) == b'{"n": 1208925819614629174706176}'
    with pytest.raises(TypeError):
        encode_json({"f": object()})


@pytest.mark.asyncio
@pytest.mark.parametrize("url", ["http://[oops", "localhost:8000/v1", "", "file:///etc/hosts", "http://"])
async def test_an_address_that_is_none_is_a_configuration_error(url):
    """`policy_base_url` without its scheme is the commonest mistake; it should say so."""
    with pytest.raises(ConfigError, match="is not an HTTP address"):
        await send("GET", url, policy=QUICK)


@pytest.mark.asyncio
@pytest.mark.parametrize("options", [{}, {"cookies": {"a": "b"}}], ids=["own pool", "aiohttp"])
async def test_a_redirect_carries_neither_run_token_nor_rollout_away(options, scripted_server, say):
    """A server folder may redirect to any host; with the token, that host could use every server of the run."""
    async with scripted_server(say(200)) as stranger, scripted_server(say(307, location=stranger.url)) as ours:
        address = [(URL(ours.url).host, URL(ours.url).port)]
        run_token.adopt(address, "a-token-of-this-test")
        try:
            call_timing.set_current_rollout((31, 4))
            response = await send("POST", ours.url, json={}, **options)
        finally:
            run_token.forget(address)
            call_timing.set_current_rollout(None)

    assert response.status == 200
    for secret in (b"a-token-of-this-test", b"x-nemo-gym-rollout: 31-4"):
        assert all(secret in request for request in ours.requests)
        assert [secret in request for request in stranger.requests] == [False]


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["Authorization", "x-api-key", "api-key", "X-Goog-Api-Key", "X-Auth-Token"])
async def test_a_redirect_carries_no_key_to_another_origin(name, scripted_server, say):
    """An endpoint whose domain was taken over would pass the key on; aiohttp removes only `Authorization`."""
    headers = {name: "a-key-of-this-test", "x-title": "kept"}
    async with scripted_server(say(200)) as stranger, scripted_server(say(307, location=stranger.url)) as endpoint:
        response = await send("POST", endpoint.url, json={}, headers=headers)

    assert response.status == 200
    assert all(b"a-key-of-this-test" in request for request in endpoint.requests)
    assert [b"a-key-of-this-test" in request for request in stranger.requests] == [False]
    assert all(b"kept" in request for request in stranger.requests)


@pytest.mark.asyncio
async def test_the_rollout_is_sent_only_to_servers_of_the_run(scripted_server, say):
    """A model endpoint has no use for it; a server of the run needs it to name the culprit of its crash."""
    async with scripted_server(say(200)) as endpoint, scripted_server(say(200), say(200)) as ours:
        address = [(URL(ours.url).host, URL(ours.url).port)]
        run_token.adopt(address, "a-token-of-this-test")
        try:
            await send("POST", ours.url, json={})
            call_timing.set_current_rollout((31, 4))
            await send("POST", ours.url, json={})
            await send("POST", endpoint.url, json={})
        finally:
            run_token.forget(address)
            call_timing.set_current_rollout(None)

    assert [b"x-nemo-gym-rollout: 31-4\r\n" in request for request in ours.requests] == [False, True]
    assert [b"x-nemo-gym-rollout" in request.lower() for request in endpoint.requests] == [False]
