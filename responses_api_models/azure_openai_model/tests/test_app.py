"""Azure's differences from OpenAI: address, key header, API version."""

from typing import Any
from unittest.mock import MagicMock

import pytest
from pydantic import ValidationError

from nemo_gym.server_utils import ServerClient
from responses_api_models.azure_openai_model.app import AzureOpenAIModel, AzureOpenAIModelConfig
from responses_api_models.openai_model.tests.endpoint import Said, ask, listening

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
async def test_the_v1_address_is_used_as_it_is():
    """One address for everything, the deployment named as the model."""
    async with listening(responses=Said(ANSWER), chat=Said(COMPLETION)) as endpoint:
        server = model(endpoint.url, api_version="preview")
        first = await ask(server, "/v1/responses", {"input": "hi"})
        second = await ask(server, "/v1/chat/completions", USER)

    assert (first.status, second.status) == (200, 200)
    assert [call.path for call in endpoint.calls] == ["/v1/responses", "/v1/chat/completions"]
    assert all(call.query == {"api-version": "preview"} for call in endpoint.calls)
    assert all(call.body["model"] == "mine" for call in endpoint.calls)


@pytest.mark.asyncio
async def test_dated_versions_have_the_deployment_in_the_address_of_chat():
    """That is where Azure looks for it; Responses has it in the body."""
    async with listening(
        **{"openai/responses": Said(ANSWER), "openai/deployments/mine/chat/completions": Said(COMPLETION)}
    ) as endpoint:
        server = model(endpoint.url.removesuffix("/v1") + "/openai", api_version="2025-04-01-preview")
        first = await ask(server, "/v1/responses", {"input": "hi"})
        second = await ask(server, "/v1/chat/completions", USER)

    assert (first.status, second.status) == (200, 200)
    assert {call.query["api-version"] for call in endpoint.calls} == {"2025-04-01-preview"}


@pytest.mark.asyncio
async def test_the_key_goes_into_azures_header():
    """A key sent as a bearer token is refused."""
    async with listening(responses=Said(ANSWER)) as endpoint:
        await ask(model(endpoint.url), "/v1/responses", {"input": "hi"})

    assert endpoint.calls[0].headers["api-key"] == "azure-very-secret"
    assert "Authorization" not in endpoint.calls[0].headers
    assert endpoint.calls[0].query == {}


def test_a_dated_address_without_a_version_is_refused_at_the_start():
    """Azure would answer 404 to every request."""
    with pytest.raises(ValidationError, match="set api_version"):
        config("https://mine.openai.azure.com/openai")


def test_the_version_can_be_given_as_a_query_too():
    """Configurations written for the OpenAI package call it `default_query`."""
    assert config("https://h/openai", default_query={"api-version": "1"}).default_query == {"api-version": "1"}


@pytest.mark.asyncio
async def test_a_wrong_key_is_told_with_its_status():
    """401 is the person's to fix, not the rollout's to retry."""
    async with listening(responses=Said(b"Access denied due to invalid subscription key", 401)) as endpoint:
        reply = await ask(model(endpoint.url), "/v1/responses", {"input": "hi"})

    assert len(endpoint.calls) == 1
    assert reply.headers["x-nemo-gym-upstream-status"] == "401"
    assert reply.headers["x-nemo-gym-failed"] == "policy_model"
    assert "Access denied" in await reply.text()
