"""The OpenAI model against a fake endpoint on loopback."""

import asyncio
import dataclasses
from typing import Any
from unittest.mock import MagicMock

import pytest

from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server_utils import ServerClient
from nemo_gym.transport import http, model_client
from responses_api_models.openai_model.app import SimpleModelServer, SimpleModelServerConfig
from responses_api_models.openai_model.tests.endpoint import Reply, ask, listening, unused_url

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
    for name in ("MODEL_CALL", "_MODEL_CALL_WITHOUT_OVERLOAD"):
        hurried = dataclasses.replace(getattr(model_client, name), attempts=8, first_pause=0, max_pause=0)
        monkeypatch.setattr(model_client, name, hurried)
    http.health.clear()


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
async def test_only_fields_of_the_caller_and_the_configured_model_are_sent():
    """Our defaults must not become parameters of the endpoint."""
    async with listening(responses=Reply(ANSWER)) as endpoint:
        await ask(model_server(endpoint.url), "/v1/responses", {"input": "hi", "model": "mine", "temperature": 0.5})

    assert endpoint.bodies == [{"input": "hi", "model": "big", "temperature": 0.5}]
    assert endpoint.calls[0].headers["Authorization"] == "Bearer sk-very-secret"


@pytest.mark.asyncio
async def test_extra_body_fills_fields_that_the_caller_did_not_send():
    """The configuration has the defaults of a deployment, and a row may override them."""
    async with listening(responses=Reply(ANSWER), chat=Reply(COMPLETION)) as endpoint:
        model = model_server(endpoint.url, extra_body={"temperature": 0.1, "top_k": 5})
        await ask(model, "/v1/responses", {"input": "hi", "temperature": 0.9})
        await ask(model, "/v1/chat/completions", USER)

    assert endpoint.bodies[0] == {"input": "hi", "model": "big", "temperature": 0.9, "top_k": 5}
    assert (endpoint.bodies[1]["temperature"], endpoint.bodies[1]["top_k"]) == (0.1, 5)


@pytest.mark.asyncio
async def test_default_headers_are_sent():
    """Gateways route and bill by headers."""
    async with listening(responses=Reply(ANSWER)) as endpoint:
        model = model_server(endpoint.url, openai_default_headers={"x-team": "blue"})
        await ask(model, "/v1/responses", {"input": "hi"})

    assert endpoint.calls[0].headers["x-team"] == "blue"


@pytest.mark.asyncio
async def test_unknown_fields_of_the_reply_are_kept():
    """Providers add fields before we support them."""
    async with listening(responses=Reply(ANSWER)) as endpoint:
        reply = await ask(model_server(endpoint.url), "/v1/responses", {"input": "hi"})

    assert (await reply.json())["a_field_of_tomorrow"] == "kept"


@pytest.mark.asyncio
async def test_chat_requests_are_forwarded():
    """Some agents only use chat completions."""
    async with listening(chat=Reply(COMPLETION)) as endpoint:
        reply = await ask(model_server(endpoint.url), "/v1/chat/completions", USER)

    assert (await reply.json())["choices"][0]["message"]["content"] == "four"


@pytest.mark.asyncio
@pytest.mark.parametrize(("drop", "kept"), [(True, ["message"]), (False, ["message", "reasoning"])])
async def test_reasoning_can_be_removed_from_the_input(drop: bool, kept: list[str]):
    """Some endpoints refuse reasoning items they did not sign."""
    items = [{"role": "user", "content": "hi", "type": "message"}, {"type": "reasoning", "id": "r", "summary": []}]

    async with listening(responses=Reply(ANSWER)) as endpoint:
        await ask(model_server(endpoint.url, drop_input_reasoning_items=drop), "/v1/responses", {"input": items})

    assert [item["type"] for item in endpoint.bodies[0]["input"]] == kept


@pytest.mark.asyncio
@pytest.mark.parametrize(("limit", "most"), [(2, 2), (None, 6)])
async def test_concurrent_requests_are_limited(limit: int | None, most: int):
    """A large run must not flood an endpoint with a small quota."""
    body = NeMoGymResponseCreateParamsNonStreaming(input="hi")

    async with listening(responses=Reply(ANSWER)) as endpoint:
        endpoint.together = most
        model = model_server(endpoint.url, max_concurrent_requests=limit)
        await asyncio.gather(*(model.responses(body) for _ in range(6)))

    assert len(endpoint.bodies) == 6
    assert endpoint.most == most


@pytest.mark.asyncio
async def test_a_rate_limit_lowers_the_number_of_concurrent_requests():
    """All calls must succeed in the end, without provoking more refusals."""
    body = NeMoGymResponseCreateParamsNonStreaming(input="hi")

    async with listening(responses=[*[Reply(b"slow down", 429)] * 5, Reply(ANSWER)]) as endpoint:
        endpoint.together = 10
        model = model_server(endpoint.url)
        answers = await asyncio.gather(*(model.responses(body) for _ in range(10)))

    assert len(answers) == 10
    assert len(endpoint.calls) == 15
    assert 5 <= model._client.limit.current < 10


@pytest.mark.asyncio
async def test_retry_after_is_respected():
    """Earlier retries would be refused again."""
    async with listening(responses=[Reply(b"", 429, {"Retry-After": "1"}), Reply(ANSWER)]) as endpoint:
        clock = asyncio.get_running_loop()
        started = clock.time()
        reply = await ask(model_server(endpoint.url), "/v1/responses", {"input": "hi"})

    assert reply.status == 200
    assert clock.time() - started >= 1.0


@pytest.mark.asyncio
@pytest.mark.parametrize("status", [400, 401, 403, 404])
async def test_a_refusal_is_reported_once_with_its_status_and_text(status: int):
    """A wrong key must be one clear failure of this model, not a retry loop."""
    async with listening(responses=Reply(b'{"error": "no such key"}', status)) as endpoint:
        reply = await ask(model_server(endpoint.url), "/v1/responses", {"input": "hi"})

    assert len(endpoint.calls) == 1
    assert reply.status == status
    assert (await reply.json())["error"]["message"] == "no such key"
    assert reply.headers["x-nemo-gym-upstream-status"] == str(status)
    assert reply.headers["x-nemo-gym-failed"] == "policy_model"
    assert "no such key" in await reply.text()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("endpoint_reply", "words"),
    [
        (Reply(b"<html>maintenance</html>"), "the answer is not JSON"),
        (Reply(b'{"id": "resp_1", "output": [', half=False), "not JSON"),
        (Reply(ANSWER, half=True), "the answer broke off"),
        (Reply({"unexpected": 1}), "is not a valid Response"),
        (Reply(b"CUDA out of memory", 500), "CUDA out of memory"),
    ],
    ids=["not JSON", "torn JSON", "half a body", "another shape", "500"],
)
async def test_a_bad_answer_is_named_and_attributed(endpoint_reply: Reply, words: str):
    """The user must learn which server failed and why: a proxy, a crash or a wrong address."""
    async with listening(responses=endpoint_reply) as endpoint:
        reply = await ask(model_server(endpoint.url), "/v1/responses", {"input": "hi"})

    assert reply.status == 500
    assert reply.headers["x-nemo-gym-failed"] == "policy_model"
    assert words in await reply.text()


@pytest.mark.asyncio
async def test_an_endpoint_that_is_down_is_named_before_the_deadline():
    """A dead machine must not take longer than the rollout's deadline."""
    url = unused_url()

    reply = await ask(model_server(url), "/v1/responses", {"input": "hi"}, seconds=0.5)

    assert reply.status == 500
    assert reply.headers["x-nemo-gym-failed"] == "policy_model"
    assert url in await reply.text()


@pytest.mark.asyncio
async def test_a_slow_endpoint_is_a_timeout():
    """The rollout's deadline applies to its model calls."""
    async with listening(responses=Reply(hang=True)) as endpoint:
        reply = await ask(model_server(endpoint.url), "/v1/responses", {"input": "hi"}, seconds=0.3)

    assert reply.status == 504
    assert reply.headers["x-nemo-gym-failed"] == "policy_model"


@pytest.mark.asyncio
async def test_an_exhausted_rate_limit_keeps_its_status():
    """The caller must be able to distinguish a used-up quota from a bug."""
    async with listening(responses=Reply(b"quota", 429, {"Retry-After": "60"})) as endpoint:
        reply = await ask(model_server(endpoint.url), "/v1/responses", {"input": "hi"}, seconds=5)

    assert reply.headers["x-nemo-gym-upstream-status"] == "429"
    assert "quota" in await reply.text()


def test_the_key_is_not_shown():
    """Configurations appear in logs and error messages."""
    model = model_server("http://h/v1")

    assert "sk-very-secret" not in repr(model.config)
    assert "sk-very-secret" not in repr(model._client)
