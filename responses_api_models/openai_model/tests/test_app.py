"""The endpoint behind the model is a small server on loopback; what it received is what is asserted."""

import asyncio
import dataclasses
from typing import Any
from unittest.mock import MagicMock

import pytest

from nemo_gym.net import client, limits
from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server_utils import ServerClient
from responses_api_models.openai_model.app import SimpleModelServer, SimpleModelServerConfig
from responses_api_models.openai_model.tests.endpoint import Said, ask, listening, nobody

ANSWER = {
    "id": "resp_1",
    "created_at": 1,
    "model": "big",
    "object": "response",
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "a_field_of_tomorrow": "kept",
}
COMPLETION = {
    "id": "c",
    "created": 1,
    "model": "big",
    "object": "chat.completion",
    "choices": [{"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "four"}}],
}
USER = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MODEL_CALL", "_WITHOUT_OVERLOAD"):
        hurried = dataclasses.replace(getattr(limits, name), attempts=8, first_pause=0, longest_pause=0)
        monkeypatch.setattr(limits, name, hurried)
    client.health.clear()


def model_server(url: str, **settings: Any) -> SimpleModelServer:
    config = SimpleModelServerConfig(
        host="127.0.0.1",
        port=1,
        entrypoint="app.py",
        name="policy_model",
        openai_base_url=url,
        openai_api_key="sk-very-secret",
        openai_model="big",
        **settings,
    )
    return SimpleModelServer(config=config, server_client=MagicMock(spec=ServerClient, global_config_dict={}))


@pytest.mark.asyncio
async def test_only_what_the_caller_set_is_sent_with_the_configured_model():
    """Defaults of ours must not become parameters of the endpoint."""
    async with listening(responses=Said(ANSWER)) as endpoint:
        await ask(model_server(endpoint.url), "/v1/responses", {"input": "hi", "model": "mine", "temperature": 0.5})

    assert endpoint.bodies == [{"input": "hi", "model": "big", "temperature": 0.5}]
    assert endpoint.calls[0].headers["Authorization"] == "Bearer sk-very-secret"


@pytest.mark.asyncio
async def test_extra_body_fills_in_what_the_caller_left_open():
    """Deployment defaults live in the configuration; a row may still decide for itself."""
    async with listening(responses=Said(ANSWER), chat=Said(COMPLETION)) as endpoint:
        model = model_server(endpoint.url, extra_body={"temperature": 0.1, "top_k": 5})
        await ask(model, "/v1/responses", {"input": "hi", "temperature": 0.9})
        await ask(model, "/v1/chat/completions", USER)

    assert endpoint.bodies[0] == {"input": "hi", "model": "big", "temperature": 0.9, "top_k": 5}
    assert (endpoint.bodies[1]["temperature"], endpoint.bodies[1]["top_k"]) == (0.1, 5)


@pytest.mark.asyncio
async def test_default_headers_are_sent():
    """Gateways route and bill by header."""
    async with listening(responses=Said(ANSWER)) as endpoint:
        model = model_server(endpoint.url, openai_default_headers={"x-team": "blue"})
        await ask(model, "/v1/responses", {"input": "hi"})

    assert endpoint.calls[0].headers["x-team"] == "blue"


@pytest.mark.asyncio
async def test_the_answer_comes_back_with_fields_nobody_knows_yet():
    """Providers add fields before we do."""
    async with listening(responses=Said(ANSWER)) as endpoint:
        reply = await ask(model_server(endpoint.url), "/v1/responses", {"input": "hi"})

    assert (await reply.json())["a_field_of_tomorrow"] == "kept"


@pytest.mark.asyncio
async def test_chat_is_passed_on_too():
    """Some agents speak only chat."""
    async with listening(chat=Said(COMPLETION)) as endpoint:
        reply = await ask(model_server(endpoint.url), "/v1/chat/completions", USER)

    assert (await reply.json())["choices"][0]["message"]["content"] == "four"


@pytest.mark.asyncio
@pytest.mark.parametrize(("drop", "kept"), [(True, ["message"]), (False, ["message", "reasoning"])])
async def test_reasoning_can_be_left_out_of_the_input(drop: bool, kept: list[str]):
    """Some endpoints refuse reasoning items they did not sign."""
    items = [{"role": "user", "content": "hi", "type": "message"}, {"type": "reasoning", "id": "r", "summary": []}]

    async with listening(responses=Said(ANSWER)) as endpoint:
        await ask(model_server(endpoint.url, drop_input_reasoning_items=drop), "/v1/responses", {"input": items})

    assert [item["type"] for item in endpoint.bodies[0]["input"]] == kept


@pytest.mark.asyncio
@pytest.mark.parametrize(("limit", "most"), [(2, 2), (None, 6)])
async def test_no_more_requests_at_once_than_allowed(limit: int | None, most: int):
    """An endpoint with a small quota is not flooded by a large run."""
    body = NeMoGymResponseCreateParamsNonStreaming(input="hi")

    async with listening(responses=Said(ANSWER)) as endpoint:
        endpoint.together = most
        model = model_server(endpoint.url, max_concurrent_requests=limit)
        await asyncio.gather(*(model.responses(body) for _ in range(6)))

    assert len(endpoint.bodies) == 6
    assert endpoint.most == most


@pytest.mark.asyncio
async def test_a_rate_limit_is_waited_out_with_fewer_calls_at_once():
    """Ten calls, the endpoint takes half: all ten are answered and the limit has been learnt."""
    body = NeMoGymResponseCreateParamsNonStreaming(input="hi")

    async with listening(responses=[*[Said(b"slow down", 429)] * 5, Said(ANSWER)]) as endpoint:
        endpoint.together = 10
        model = model_server(endpoint.url)
        answers = await asyncio.gather(*(model.responses(body) for _ in range(10)))

    assert len(answers) == 10
    assert len(endpoint.calls) == 15
    assert 5 <= model._client.limit.allowed < 10


@pytest.mark.asyncio
async def test_retry_after_is_respected():
    """The provider knows best when there is room again."""
    async with listening(responses=[Said(b"", 429, {"Retry-After": "1"}), Said(ANSWER)]) as endpoint:
        clock = asyncio.get_running_loop()
        started = clock.time()
        reply = await ask(model_server(endpoint.url), "/v1/responses", {"input": "hi"})

    assert reply.status == 200
    assert clock.time() - started >= 1.0


@pytest.mark.asyncio
@pytest.mark.parametrize("status", [400, 401, 403, 404])
async def test_a_refusal_is_told_once_with_its_status_and_words(status: int):
    """A wrong key is one clear failure of this model, not a retry loop."""
    async with listening(responses=Said(b'{"error": "no such key"}', status)) as endpoint:
        reply = await ask(model_server(endpoint.url), "/v1/responses", {"input": "hi"})

    assert len(endpoint.calls) == 1
    assert reply.status == 500
    assert reply.headers["x-nemo-gym-upstream-status"] == str(status)
    assert reply.headers["x-nemo-gym-failed"] == "policy_model"
    assert "no such key" in await reply.text()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("said", "words"),
    [
        (Said(b"<html>maintenance</html>"), "ModelFailed"),
        (Said(b'{"id": "resp_1", "output": [', half=False), "not JSON"),
        (Said(ANSWER, half=True), "ServerUnreachable"),
        (Said({"unexpected": 1}), "is no Response"),
        (Said(b"CUDA out of memory", 500), "CUDA out of memory"),
    ],
    ids=["not JSON", "torn JSON", "half a body", "another shape", "500"],
)
async def test_a_bad_answer_is_named_and_attributed(said: Said, words: str):
    """Proxies, crashes and wrong addresses: the person reading learns which it was and whose."""
    async with listening(responses=said) as endpoint:
        reply = await ask(model_server(endpoint.url), "/v1/responses", {"input": "hi"})

    assert reply.status == 500
    assert reply.headers["x-nemo-gym-failed"] == "policy_model"
    assert words in await reply.text()


@pytest.mark.asyncio
async def test_an_endpoint_that_is_down_is_named_before_the_deadline():
    """Nobody waits for a machine that is off longer than the rollout may take."""
    url = nobody()

    reply = await ask(model_server(url), "/v1/responses", {"input": "hi"}, seconds=0.5)

    assert reply.status == 500
    assert reply.headers["x-nemo-gym-failed"] == "policy_model"
    assert url in await reply.text()


@pytest.mark.asyncio
async def test_an_endpoint_that_is_too_slow_is_a_timeout():
    """The deadline of the rollout is the deadline of its calls."""
    async with listening(responses=Said(hang=True)) as endpoint:
        reply = await ask(model_server(endpoint.url), "/v1/responses", {"input": "hi"}, seconds=0.3)

    assert reply.status == 504
    assert reply.headers["x-nemo-gym-failed"] == "policy_model"


@pytest.mark.asyncio
async def test_an_exhausted_rate_limit_keeps_its_status():
    """After the last try the caller is told 429, so it can be told from a bug."""
    async with listening(responses=Said(b"quota", 429, {"Retry-After": "60"})) as endpoint:
        reply = await ask(model_server(endpoint.url), "/v1/responses", {"input": "hi"}, seconds=5)

    assert reply.headers["x-nemo-gym-upstream-status"] == "429"
    assert "quota" in await reply.text()


def test_the_key_is_not_shown():
    """Configurations are printed in logs and error messages."""
    model = model_server("http://h/v1")

    assert "sk-very-secret" not in repr(model.config)
    assert "sk-very-secret" not in repr(model._client)
