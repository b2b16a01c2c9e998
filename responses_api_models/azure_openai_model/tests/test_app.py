"""Azure differs from OpenAI in address, key header and API version."""

from typing import Any
from unittest.mock import MagicMock

import pytest
from pydantic import ValidationError

from nemo_gym.server_utils import ServerClient
from responses_api_models.azure_openai_model.app import AzureOpenAIModel, AzureOpenAIModelConfig
from responses_api_models.openai_model.tests.endpoint import Reply, ask, listening

ANSWER = {
    "id": "resp_1",
    "created_at": 1,
    "model": "mine",
    "object": "response",
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}
COMPLETION = {
    "id": "c",
    "created": 1,
    "model": "mine",
    "object": "chat.completion",
    "choices": [{"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "four"}}],
}
USER = {"messages": [{"role": "user", "content": "hi"}]}


def config(url: str, **settings: Any) -> AzureOpenAIModelConfig:
    place = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py", "name": "policy_model"}
    return AzureOpenAIModelConfig(
        **place, openai_base_url=url, openai_api_key="azure-very-secret", openai_model="mine", **settings
    )


def model(url: str, **settings: Any) -> AzureOpenAIModel:
    client = MagicMock(spec=ServerClient, global_config_dict={})
    return AzureOpenAIModel(config=config(url, **settings), server_client=client)


@pytest.mark.asyncio
async def test_the_v1_address_is_used_unchanged():
    """The v1 API has one address for all calls and takes the deployment as the model."""
    async with listening(responses=Reply(ANSWER), chat=Reply(COMPLETION)) as endpoint:
        server = model(endpoint.url, api_version="preview")
        first = await ask(server, "/v1/responses", {"input": "hi"})
        second = await ask(server, "/v1/chat/completions", USER)

    assert (first.status, second.status) == (200, 200)
    assert [call.path for call in endpoint.calls] == ["/v1/responses", "/v1/chat/completions"]
    assert all(call.query == {"api-version": "preview"} for call in endpoint.calls)
    assert all(call.body["model"] == "mine" for call in endpoint.calls)


@pytest.mark.asyncio
async def test_dated_versions_have_the_deployment_in_the_chat_address():
    """Azure expects it there; Responses requests have it in the body."""
    async with listening(
        **{
            "openai/responses": Reply(ANSWER),
            "openai/deployments/mine/chat/completions": Reply(COMPLETION),
        }
    ) as endpoint:
        server = model(endpoint.url.removesuffix("/v1") + "/openai", api_version="2025-04-01-preview")
        first = await ask(server, "/v1/responses", {"input": "hi"})
        second = await ask(server, "/v1/chat/completions", USER)

    assert (first.status, second.status) == (200, 200)
    assert {call.query["api-version"] for call in endpoint.calls} == {"2025-04-01-preview"}


@pytest.mark.asyncio
async def test_the_key_is_sent_in_azures_header():
    """Azure refuses a key that is sent as a bearer token."""
    async with listening(responses=Reply(ANSWER)) as endpoint:
        await ask(model(endpoint.url), "/v1/responses", {"input": "hi"})

    assert endpoint.calls[0].headers["api-key"] == "azure-very-secret"
    assert "Authorization" not in endpoint.calls[0].headers
    assert endpoint.calls[0].query == {}


def test_a_dated_address_without_a_version_is_refused_at_start():
    """Azure would reply 404 to every request."""
    with pytest.raises(ValidationError, match="set api_version"):
        config("https://mine.openai.azure.com/openai")


def test_the_version_can_be_a_query_parameter():
    """Configurations written for the OpenAI package call it `default_query`."""
    assert config("https://h/openai", default_query={"api-version": "1"}).default_query == {"api-version": "1"}


@pytest.mark.asyncio
async def test_a_wrong_key_is_reported_with_its_status():
    """A retry cannot repair a 401; the user can."""
    async with listening(responses=Reply(b"Access denied due to invalid subscription key", 401)) as endpoint:
        reply = await ask(model(endpoint.url), "/v1/responses", {"input": "hi"})

    assert len(endpoint.calls) == 1
    assert reply.headers["x-nemo-gym-upstream-status"] == "401"
    assert reply.headers["x-nemo-gym-failed"] == "policy_model"
    assert "Access denied" in await reply.text()
