"""One whole rollout without a socket: a scripted model, an environment with a tool, and a small agent."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response
from omegaconf import OmegaConf
from pydantic import BaseModel, ConfigDict, PrivateAttr

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, Body, SimpleResponsesAPIAgent
from nemo_gym.base_responses_api_model import (
    BaseResponsesAPIModelConfig,
    CaptureStore,
    NeMoGymChatCompletion,
    SimpleResponsesAPIModel,
    read_model_call_records,
)
from nemo_gym.config_types import ModelServerRef, ResourcesServerRef
from nemo_gym.openai_utils import (
    NeMoGymFunctionCallOutput,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseOutputText,
)
from nemo_gym.server_utils import SESSION_ID_KEY, ServerClient, get_response_json, raise_for_status
from nemo_gym.transport import in_process


class ScriptedModel(SimpleResponsesAPIModel):
    """Call the tool first, then answer with its result."""

    config: BaseResponsesAPIModelConfig

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        assert isinstance(body.input, list)
        outputs = [item.output for item in body.input if isinstance(item, NeMoGymFunctionCallOutput)]
        output: list[Any]
        if outputs:
            balance = json.loads(str(outputs[-1]))["balance"]
            text = NeMoGymResponseOutputText(text=f"You have {balance}.", annotations=[])
            output = [NeMoGymResponseOutputMessage(id="msg_1", content=[text])]
        else:
            output = [NeMoGymResponseFunctionToolCall(arguments='{"amount": 5}', call_id="call_1", name="deposit")]
        return NeMoGymResponse(
            id=f"resp_{len(outputs)}",
            created_at=0.0,
            model="scripted",
            object="response",
            output=output,
            parallel_tool_calls=True,
            tool_choice="auto",
            tools=[],
        )

    async def chat_completions(self, body: Any = Body()) -> NeMoGymChatCompletion:
        raise NotImplementedError


class BankSeed(BaseSeedSessionRequest):
    start: int


class Deposit(BaseModel):
    amount: int


class Balance(BaseModel):
    balance: int


class BankVerifyRequest(BaseVerifyRequest):
    expected: str


class BankVerifyResponse(BankVerifyRequest, BaseVerifyResponse):
    balance: int


class Bank(SimpleResourcesServer):
    """An account per session."""

    config: BaseResourcesServerConfig
    _balances: dict[str, int] = PrivateAttr(default_factory=dict)

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/deposit")(self.deposit)
        return app

    async def seed_session(self, request: Request, body: BankSeed) -> BaseSeedSessionResponse:  # type: ignore[override]
        self._balances[request.session[SESSION_ID_KEY]] = body.start
        return BaseSeedSessionResponse()

    async def deposit(self, request: Request, body: Deposit) -> Balance:
        self._balances[request.session[SESSION_ID_KEY]] += body.amount
        return Balance(balance=self._balances[request.session[SESSION_ID_KEY]])

    async def verify(self, request: Request, body: BankVerifyRequest) -> BankVerifyResponse:  # type: ignore[override]
        balance = self._balances.pop(request.session[SESSION_ID_KEY])
        right = body.response.output_text == body.expected
        return BankVerifyResponse(**body.model_dump(), balance=balance, reward=float(right))


class LoopConfig(BaseResponsesAPIAgentConfig):
    resources_server: ResourcesServerRef
    model_server: ModelServerRef


class LoopRun(BaseRunRequest):
    model_config = ConfigDict(extra="allow")


class LoopResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")


class Loop(SimpleResponsesAPIAgent):
    """Model and tools in turn until the model only talks."""

    config: LoopConfig

    async def responses(
        self, request: Request, response: Response, body: NeMoGymResponseCreateParamsNonStreaming = Body()
    ) -> NeMoGymResponse:
        assert isinstance(body.input, list)
        cookies: Any = request.cookies
        made: list[Any] = []
        while True:
            params = body.model_copy(update={"input": body.input + made})
            reply = await self.server_client.post(
                server_name=self.config.model_server.name,
                url_path=self.url_path_for_request("/v1/responses", request),
                json=params,
            )
            await raise_for_status(reply)
            turn = NeMoGymResponse.model_validate(await get_response_json(reply))
            made += turn.output
            calls = [item for item in turn.output if isinstance(item, NeMoGymResponseFunctionToolCall)]
            if not calls:
                break
            for call in calls:
                reply = await self.server_client.post(
                    server_name=self.config.resources_server.name,
                    url_path=f"/{call.name}",
                    json=json.loads(call.arguments),
                    cookies=cookies,
                )
                cookies = reply.cookies
                output = (await reply.read()).decode()
                made.append(NeMoGymFunctionCallOutput(call_id=call.call_id, output=output))
        for name, morsel in cookies.items():
            response.set_cookie(name, getattr(morsel, "value", morsel))
        return turn.model_copy(update={"output": made})

    async def run(self, request: Request, body: LoopRun) -> LoopResponse:  # type: ignore[override]
        client, environment = self.server_client, self.config.resources_server.name
        reply = await client.post(server_name=environment, url_path="/seed_session", json=body.model_dump())
        await raise_for_status(reply)
        episode = await client.post(
            server_name=self.config.name,
            url_path=self.url_path_for_run("/v1/responses", body),
            json=body.responses_create_params,
            cookies=reply.cookies,
        )
        await raise_for_status(episode)
        verdict = await client.post(
            server_name=environment,
            url_path="/verify",
            json={**body.model_dump(), "response": await get_response_json(episode)},
            cookies=episode.cookies,
        )
        await raise_for_status(verdict)
        return LoopResponse.model_validate(await get_response_json(verdict))


def instance(kind: str, port: int, **fields: Any) -> dict[str, Any]:
    return {kind: {"impl": {"host": "127.0.0.1", "port": port, "entrypoint": "app.py", **fields}}}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[ServerClient]:
    """Three servers of this process, reached only through the client."""
    refs = {
        "resources_server": {"type": "resources_servers", "name": "bank"},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
    }
    config = {
        "policy_model": instance("responses_api_models", 1),
        "bank": instance("resources_servers", 2, domain="other"),
        "loop": instance("responses_api_agents", 3, **refs),
        "observability_enabled": True,
        "model_call_capture_dir": str(tmp_path),
    }
    calls = ServerClient(
        head_server_config={"host": "127.0.0.1", "port": 4}, global_config_dict=OmegaConf.create(config)
    )  # type: ignore[arg-type]
    kinds: dict[str, Any] = {"policy_model": ScriptedModel, "bank": Bank, "loop": Loop}
    ports = []
    for name, kind in kinds.items():
        block = next(iter(next(iter(config[name].values())).values()))  # type: ignore[attr-defined]
        settings = kind.model_fields["config"].annotation.model_validate({**block, "name": name})
        in_process.mount("127.0.0.1", block["port"], kind(config=settings, server_client=calls).prepare_webserver({}))
        ports.append(block["port"])
    yield calls
    for port in ports:
        in_process.unmount("127.0.0.1", port)


def row(task: int, start: int) -> dict[str, Any]:
    return {
        "responses_create_params": {"input": [{"role": "user", "content": "Deposit 5. What do I have?"}]},
        "start": start,
        "expected": f"You have {start + 5}.",
        "_ng_task_index": task,
        "_ng_rollout_index": 0,
    }


@pytest.mark.asyncio
async def test_a_rollout_is_played_verified_and_captured_without_a_socket(client: ServerClient, tmp_path: Path) -> None:
    """Every part is the real one; only the wire is missing."""
    reply = await client.post(server_name="loop", url_path="/run", json=row(0, 10))
    await raise_for_status(reply)
    record = await get_response_json(reply)

    assert record["reward"] == 1.0
    assert record["balance"] == 15
    assert [item["type"] for item in record["response"]["output"]] == [
        "function_call",
        "function_call_output",
        "message",
    ]
    captured = read_model_call_records(CaptureStore(tmp_path), "0-0")
    assert [call.response["id"] for call in captured] == ["resp_0", "resp_1"]


@pytest.mark.asyncio
async def test_the_cookie_keeps_two_rollouts_apart(client: ServerClient) -> None:
    """Both use the same servers; each sees its own account."""
    first = await client.post(server_name="loop", url_path="/run", json=row(0, 1))
    second = await client.post(server_name="loop", url_path="/run", json=row(1, 100))

    assert (await get_response_json(first))["balance"] == 6
    assert (await get_response_json(second))["balance"] == 105


@pytest.mark.asyncio
async def test_a_wrong_answer_scores_zero(client: ServerClient) -> None:
    """The reward is computed, not assumed."""
    reply = await client.post(server_name="loop", url_path="/run", json=row(0, 1) | {"expected": "nothing"})

    assert (await get_response_json(reply))["reward"] == 0.0


@pytest.mark.asyncio
async def test_a_failing_environment_fails_the_run_and_is_named(client: ServerClient) -> None:
    """A row that the environment refuses is a bad row, not a broken server: a trainer must not send it again."""
    broken = row(0, 1)
    del broken["start"]

    reply = await client.post(server_name="loop", url_path="/run", json=broken)

    assert reply.status == 422
    assert "start" in str(await get_response_json(reply))
