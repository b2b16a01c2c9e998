from types import SimpleNamespace
from unittest.mock import AsyncMock, MagicMock

import pytest

from nemo_gym.base_responses_api_model import (
    CaptureStore,
    build_model_call_record,
    merge_model_call_capture_into_record,
)
from nemo_gym.config_types import ModelServerRef
from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.rollout_collection import _attach_trajectory_record
from nemo_gym.rollout_observability import AgentInvocation, ModelCallRef, TrajectoryRecord, TrajectoryTurn
from nemo_gym.sandbox import SandboxExecResult, SandboxHandle
from nemo_gym.server_utils import ServerClient
from responses_api_agents.sandboxed_agent.app import SandboxedAgent, SandboxedAgentConfig

RESPONSE = {
    "id": "r",
    "created_at": 0.0,
    "model": "m",
    "object": "response",
    "output": [],
    "parallel_tool_calls": False,
    "tool_choice": "auto",
    "tools": [],
}


class FakeProvider:
    def __init__(self) -> None:
        self.specs = []
        self.closed = False

    async def create(self, spec):
        self.specs.append(spec)
        return SandboxHandle(sandbox_id="s", provider_name="fake")

    async def exec(self, handle, command, cwd=None, env=None, timeout_s=180, user=None):
        return SandboxExecResult(stdout=command, return_code=0)

    async def upload_file(self, handle, source, target):
        pass

    async def close(self, handle):
        pass

    async def aclose(self):
        self.closed = True


def make_agent(**config) -> SandboxedAgent:
    config = SandboxedAgentConfig(
        host="0.0.0.0",
        port=8080,
        entrypoint="",
        name="",
        model_server=ModelServerRef(type="responses_api_models", name="policy"),
        **config,
    )
    return SandboxedAgent(config=config, server_client=MagicMock(spec=ServerClient))


@pytest.mark.asyncio
@pytest.mark.parametrize("request_stub", [None, SimpleNamespace(path_params={"rollout_id": "0-1"}), MagicMock()])
async def test_model_is_called_at_the_path_of_the_rollout(request_stub) -> None:
    agent = make_agent()
    ok = MagicMock()
    ok.__bool__ = MagicMock(return_value=True)
    reply = MagicMock(ok=ok, json=AsyncMock(return_value=RESPONSE))
    agent.server_client.post = AsyncMock(return_value=reply)
    params = NeMoGymResponseCreateParamsNonStreaming(input=[{"role": "user", "content": "a lone \ud800"}])

    await agent.responses(request_stub, params)

    prefix = "/ng-rollout/0-1" if isinstance(request_stub, SimpleNamespace) else ""
    assert agent.server_client.post.call_args.kwargs["url_path"] == f"{prefix}/v1/responses"
    assert ok.__bool__.called


@pytest.mark.asyncio
async def test_provider_object() -> None:
    provider = FakeProvider()

    stdout, bundle = await make_agent(resources={"cpu": "2"}).run_in_sandbox(provider, "echo")

    assert stdout == "echo"
    assert provider.closed
    assert provider.specs[0].env["OMP_NUM_THREADS"] == "2"
    assert bundle.records[0].model_calls[0].model_ref.name == "policy"
    with pytest.raises(ValueError, match="Unknown sandbox resource keys: ram"):
        await make_agent(resources={"ram": 1}).run_in_sandbox(provider, "echo")


def test_turns_of_the_agent_are_kept_beside_the_captured_calls(tmp_path):
    """The agent knows what its harness asked; only the model server knows the call."""
    model = ModelServerRef(type="responses_api_models", name="policy")
    store = CaptureStore(tmp_path)
    call = build_model_call_record(
        request_body=b'{"input": "x"}', response_body=b'{"id": "resp_1"}', model_ref=model, dialect="responses"
    )
    store.record("0-0", call)
    reference = ModelCallRef(model_ref=model, response_id="resp_1")
    turn = TrajectoryTurn(
        invocation_id="root",
        task_id="0",
        rollout_id="0-0",
        turn_no=1,
        question="q",
        answer="a",
        model_calls=[reference],
    )
    trajectory = TrajectoryRecord(
        task_id="0", rollout_id="0-0", invocations=[AgentInvocation(invocation_id="root")], turns=[turn]
    )
    result = {"reward": 1.0, "ng_trajectory": trajectory.model_dump(mode="json")}

    merge_model_call_capture_into_record(result, store, "0-0")
    _attach_trajectory_record({"_ng_task_index": 0, "_ng_rollout_index": 0}, result)

    joined = TrajectoryRecord.model_validate(result["ng_trajectory"])
    assert [(turn.question, turn.answer) for turn in joined.turns] == [("q", "a")]
    assert joined.turns[0].model_calls[0].model_call_id == call.model_call_id
    assert [owned.model_call_id for owned in joined.invocations[0].model_calls] == [call.model_call_id]
    assert joined.model_calls[0].request == {"input": "x"}
    assert joined.gaps == []
