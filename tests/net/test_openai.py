"""The client for OpenAI-compatible endpoints."""

import dataclasses
import json

import aiohttp
import pytest

from nemo_gym.errors import ModelFailed, ServerUnreachable
from nemo_gym.net import openai
from nemo_gym.net.openai import RATE_LIMIT_ERROR_CODES, RETRY_ERROR_CODES, NeMoGymAsyncOpenAI

BROKEN = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Encoding: gzip\r\n\r\nabc"


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(openai, "MODEL_CALL", dataclasses.replace(openai.MODEL_CALL, first_pause=0, longest_pause=0))


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
    async with scripted_server(say(200, b'{"logprob": NaN}')) as server:
        answer = await client_for(server.url).create_completion(prompt="x")

    assert answer["logprob"] != answer["logprob"]


def test_the_key_works_but_is_never_shown():
    client = NeMoGymAsyncOpenAI(base_url="http://h/v1", api_key="sk-very-secret-1", internal=True)

    assert client.api_key == "sk-very-secret-1"
    assert "sk-very-secret-1" not in repr(client)
    assert "sk-very-secret-1" not in str(client)
    assert client.default_headers == {}


def test_the_lists_of_codes_are_the_contracts():
    assert RATE_LIMIT_ERROR_CODES == [429, 502, 503, 504, 520]
    assert RETRY_ERROR_CODES == [429, 502, 503, 504, 520, 500]
