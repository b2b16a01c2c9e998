"""How people write agents and models and test them with mocked calls: idioms that must keep working."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import aiohttp
import orjson
import pytest
from fastapi import Request
from fastapi.testclient import TestClient

from nemo_gym.base_resources_server import (
    BaseRunRequest,
    BaseVerifyResponse,
)
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, Body, SimpleResponsesAPIAgent
from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymChatCompletionMessage,
    NeMoGymChoice,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.server_utils import SESSION_ID_KEY, ServerClient, get_response_json, raise_for_status

PLACE = {"host": "0.0.0.0", "port": 8080, "entrypoint": "", "name": ""}


def answer(text: str) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "created_at": 1753983920.0,
        "model": "m",
        "object": "response",
        "output": [
            {
                "id": "msg_1",
                "content": [{"annotations": [], "text": text, "type": "output_text"}],
                "role": "assistant",
                "status": "completed",
                "type": "message",
            }
        ],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


# -- mocked calls -----------------------------------------------------------------------------------------------------

PAYLOAD = {"reward": 1.0}


def only_read() -> Any:
    return SimpleNamespace(read=AsyncMock(return_value=orjson.dumps(PAYLOAD)))


def only_json() -> Any:
    return SimpleNamespace(json=AsyncMock(return_value=PAYLOAD))


def only_content() -> Any:
    return SimpleNamespace(content=SimpleNamespace(read=AsyncMock(return_value=orjson.dumps(PAYLOAD))))


def magic_read() -> Any:
    reply = MagicMock()
    reply.read = AsyncMock(return_value=orjson.dumps(PAYLOAD))
    return reply


def async_magic() -> Any:
    reply = AsyncMock()
    reply.read.return_value = orjson.dumps(PAYLOAD)
    return reply


@pytest.mark.parametrize("reply", [only_read, only_json, only_content, magic_read, async_magic])
@pytest.mark.asyncio
async def test_json_is_read_from_whatever_a_mocked_reply_offers(reply):
    """Test authors mock the part of a reply they know; which part differs from folder to folder."""
    assert await get_response_json(reply()) == PAYLOAD


@pytest.mark.parametrize(
    "reply",
    [
        SimpleNamespace(ok=True),
        SimpleNamespace(status=200),
        SimpleNamespace(ok=True, status=200, cookies={}),
        MagicMock(ok=True),
        AsyncMock(ok=True, status=200),
    ],
)
@pytest.mark.asyncio
async def test_a_mocked_success_raises_nothing(reply):
    """`ok` or `status`, one of them is enough."""
    await raise_for_status(reply)


@pytest.mark.asyncio
async def test_a_mocked_failure_raises_with_the_body_it_carried():
    """Agents read `response_content` to tell the model, or a person, what went wrong."""
    body = AsyncMock(return_value=b'{"detail": "no"}')
    reply = MagicMock(ok=False, status=400, history=(), request_info=MagicMock(), headers={}, reason="Bad Request")
    reply.read, reply.content.read = body, body

    with pytest.raises(aiohttp.ClientResponseError) as caught:
        await raise_for_status(reply)

    assert caught.value.response_content == b'{"detail": "no"}'
    assert caught.value.status == 400


# -- agents and models ------------------------------------------------------------------------------------------------


class Parrot(SimpleResponsesAPIModel):
    config: BaseResponsesAPIModelConfig

    async def responses(
        self, request: Request, body: NeMoGymResponseCreateParamsNonStreaming = Body()
    ) -> NeMoGymResponse:
        assert request.session[SESSION_ID_KEY]
        return NeMoGymResponse(**answer(str(body.input)))

    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        message = NeMoGymChatCompletionMessage(role="assistant", content=str(body.messages[-1]["content"]))
        choice = NeMoGymChoice(finish_reason="stop", index=0, message=message)
        return NeMoGymChatCompletion(id="c", choices=[choice], created=1, model="m", object="chat.completion")


def parrot() -> Parrot:
    config = BaseResponsesAPIModelConfig(**PLACE)
    return Parrot(config=config, server_client=MagicMock(spec=ServerClient, global_config_dict={}))


def test_a_model_answers_in_three_dialects():
    """One implementation serves Responses, chat and Anthropic clients."""
    client = TestClient(parrot().setup_webserver())

    response = client.post("/v1/responses", json={"input": "hi"}).json()
    chat = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]}).json()
    messages = client.post(
        "/v1/messages",
        json={"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]},
    ).json()

    assert response["output"][0]["content"][0]["text"] == "hi"
    assert chat["choices"][0]["message"]["content"] == "hi"
    assert messages["type"] == "message" and messages["content"][0]["type"] == "text"


def test_a_model_is_reached_below_a_rollout_prefix():
    """The prefix tells captures apart; the model underneath must not notice."""
    client = TestClient(parrot().setup_webserver())

    for prefix in ("/ng-rollout/0-0", "/ng-rollout/0-0/training-token-capture"):
        assert client.post(f"{prefix}/v1/responses", json={"input": "hi"}).status_code == 200


def test_a_request_with_an_unknown_field_is_refused():
    """A misspelt sampling parameter must not silently do nothing."""
    reply = TestClient(parrot().setup_webserver()).post("/v1/responses", json={"input": "hi", "temprature": 1})

    assert reply.status_code == 422
    assert reply.json()["detail"][0]["loc"] == ["body", "temprature"]


class Agent(SimpleResponsesAPIAgent):
    config: BaseResponsesAPIAgentConfig

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        reply = await self.server_client.post(server_name="model", url_path="/v1/responses", json=body)
        await raise_for_status(reply)
        return NeMoGymResponse.model_validate(await get_response_json(reply))

    async def run(self, request: Request, body: BaseRunRequest) -> BaseVerifyResponse:
        response = await self.responses(body.responses_create_params)
        return BaseVerifyResponse(responses_create_params=body.responses_create_params, response=response, reward=0.5)


@pytest.mark.parametrize(
    "path", ["/v1/responses", "/ng-rollout/0-0/v1/responses", "/ng-rollout/0-0/training-token-capture/v1/responses"]
)
def test_an_agent_calls_a_mocked_model(path):
    """`server_client.post = AsyncMock(…)` is how agents are tested everywhere."""
    client = MagicMock(spec=ServerClient)
    client.post = AsyncMock(return_value=async_reply(answer("hi")))
    agent = Agent(config=BaseResponsesAPIAgentConfig(**PLACE), server_client=client)

    reply = TestClient(agent.setup_webserver()).post(path, json={"input": "hi"})

    assert reply.json()["output"][0]["content"][0]["text"] == "hi"
    client.post.assert_awaited_once()


def test_an_agent_runs_a_row_and_returns_its_reward():
    """`/run` is the one call the collector makes."""
    client = MagicMock(spec=ServerClient)
    client.post = AsyncMock(return_value=async_reply(answer("hi")))
    agent = Agent(config=BaseResponsesAPIAgentConfig(**PLACE), server_client=client)

    reply = TestClient(agent.setup_webserver()).post("/run", json={"responses_create_params": {"input": "hi"}})

    assert reply.json()["reward"] == 0.5


def async_reply(payload: Any) -> Any:
    reply = AsyncMock(ok=True, status=200, cookies={})
    reply.read.return_value = orjson.dumps(payload)
    return reply


def test_url_paths_stay_plain_without_observability():
    """22 agents build their URLs with `url_path_for_run`; with nothing switched on it changes nothing."""
    client = MagicMock(spec=ServerClient, global_config_dict={})
    agent = Agent(config=BaseResponsesAPIAgentConfig(**PLACE), server_client=client)
    row = BaseRunRequest(responses_create_params={"input": "hi"})

    assert agent.url_path_for_run("/v1/responses", row) == "/v1/responses"
    assert agent.base_url_for_run("http://h:1", row) == "http://h:1"
    assert agent.rollout_id_from_run(row) is None
