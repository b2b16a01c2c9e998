"""Behaviour that code of server folders and their tests rely on, one fact each."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock, patch

import pytest
from aiohttp import ClientResponseError
from fastapi import Body
from fastapi.testclient import TestClient
from omegaconf import DictConfig

from nemo_gym.base_resources_server import (
    AggregateMetrics,
    AggregateMetricsRequest,
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, SimpleResponsesAPIAgent
from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.exporters import EXPORTER_REGISTRY
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.prompt import PromptConfig, apply_prompt_to_row, load_prompt_config, validate_prompt_compatibility
from nemo_gym.responses_converter import ResponsesConverter
from nemo_gym.sandbox import AsyncSandbox, SandboxSpec
from nemo_gym.sandbox.agent_tools import (
    restricted_network_policy,
    sandbox_server_url,
    seed_mcp_servers,
    verify_agent_response,
)
from nemo_gym.server_utils import ServerClient, get_server_url, raise_for_status
from nemo_gym.skills import load_skill_directory

ADDRESS: dict[str, Any] = {"host": "0.0.0.0", "port": 8080, "entrypoint": "", "name": "x"}
RESPONSE: dict[str, Any] = {
    "id": "r", "created_at": 0.0, "model": "m", "object": "response", "output": [], "parallel_tool_calls": True,
    "tool_choice": "auto", "tools": [],
}  # fmt: skip
CHAT = {
    "id": "c", "created": 1, "model": "m", "object": "chat.completion",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}  # fmt: skip
ROW = {"_ng_task_index": 1, "_ng_rollout_index": 2}
SERVERS = DictConfig({"tools": {"resources_servers": {"any": {"host": "0.0.0.0", "port": 7}}}})


class Agent(SimpleResponsesAPIAgent):
    config: BaseResponsesAPIAgentConfig

    async def responses(self) -> NeMoGymResponse:  # type: ignore[override]
        raise NotImplementedError

    async def run(self) -> BaseVerifyResponse:  # type: ignore[override]
        raise NotImplementedError


class Model(SimpleResponsesAPIModel):
    config: BaseResponsesAPIModelConfig

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        return ResponsesConverter(return_token_id_information=False).chat_completion_to_response(body, CHAT)

    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        raise NotImplementedError


class CountingModel(Model):
    REPORTS_EVERY_COUNT = True


class Verifier(SimpleResourcesServer):
    config: BaseResourcesServerConfig

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        return BaseVerifyResponse(**body.model_dump(), reward=1.0)

    def compute_repeat_metrics(self, tasks: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
        return [{"_ng_rollout_index": 0, "best": max(row["reward"] for row in tasks[0])}]


def make(kind: Any, config: Any) -> Any:
    return kind(config=config(**ADDRESS), server_client=MagicMock(spec=ServerClient))


@pytest.mark.parametrize("name", ["_model_call_capture_enabled", "_capture_correlation_enabled"])
def test_a_replaced_capture_check_changes_the_paths_of_calls(name: str) -> None:
    """Tests of agents switch captures on by replacing one of these methods."""
    agent = make(Agent, BaseResponsesAPIAgentConfig)
    assert agent.url_path_for_run("/v1/responses", ROW) == "/v1/responses"

    with patch.object(SimpleResponsesAPIAgent, name, return_value=True):
        assert agent.url_path_for_run("/v1/responses", ROW) == "/ng-rollout/1-2/v1/responses"
        assert agent.base_url_for_run("http://h:1", ROW) == "http://h:1/ng-rollout/1-2"


def test_replaced_functions_of_the_server_module_have_an_effect() -> None:
    """Tests replace the configuration, or only the lookup of a server in it."""
    module = "nemo_gym.server_utils"
    with patch(f"{module}.get_global_config_dict", return_value=SERVERS):
        assert get_server_url("tools") == "http://0.0.0.0:7"
        with patch(f"{module}.get_first_server_config_dict", return_value={"host": "q", "port": 4}):
            assert get_server_url("tools") == "http://q:4"


def test_a_model_of_a_folder_reports_unknown_counts_as_null_and_ours_as_zero() -> None:
    """The tests of model folders compare whole answers; some clients accept only numbers."""
    usages = [
        TestClient(make(kind, BaseResponsesAPIModelConfig).setup_webserver())
        .post("/v1/responses", json={"input": "x"})
        .json()["usage"]
        for kind in (Model, CountingModel)
    ]

    assert [usage["input_tokens_details"]["cached_tokens"] for usage in usages] == [None, 0]
    assert [usage["total_tokens"] for usage in usages] == [2, 2]


def test_conversations_of_existing_rows_are_converted() -> None:
    """Videos stand in a row as in Chat; empty parts of reasoning are left out."""
    video = {"type": "input_video", "video_url": {"url": "http://v"}}
    params = NeMoGymResponseCreateParamsNonStreaming(input=[{"role": "user", "content": [video]}])  # type: ignore[list-item]
    converter = ResponsesConverter(return_token_id_information=False)

    chat = converter.responses_to_chat_completion_create_params(params)

    assert chat.messages[0]["content"][0]["video_url"] == {"url": "http://v"}  # type: ignore[index,typeddict-item]
    assert converter._wrap_reasoning_in_think_tags(["a", "", "b"]) == "<think>a</think><think>b</think>"


def test_prompts_and_skills(tmp_path: Path) -> None:
    """Rows have placeholders where the prompt goes; code reads attributes of skills."""
    prompt = PromptConfig(user="{q}")
    load_prompt_config.cache_clear()  # type: ignore[attr-defined]
    (tmp_path / "edit").mkdir()
    (tmp_path / "edit" / "SKILL.md").write_text("---\nname: edit\n---\n")

    reference = load_skill_directory(tmp_path)

    assert apply_prompt_to_row({"responses_create_params": "later", "q": "?"}, prompt)["responses_create_params"] == {
        "input": [{"role": "user", "content": "?"}]
    }
    with pytest.raises(ValueError, match="mutually exclusive"):
        validate_prompt_compatibility([{"responses_create_params": {"input": "x"}}], prompt)
    assert (reference.path, [skill.name for skill in reference.skills]) == (str(tmp_path.resolve()), ["edit"])
    assert set(EXPORTER_REGISTRY) >= {"mlflow", "wandb"}


async def test_an_error_body_that_was_read_is_kept() -> None:
    """A stream can be read once."""
    with pytest.raises(ClientResponseError) as caught:
        await raise_for_status(SimpleNamespace(ok=False, status=500), b"why")  # type: ignore[arg-type]

    assert caught.value.response_content == b"why"  # type: ignore[attr-defined]


async def test_servers_answer_liveness_aliases_and_metrics_of_repeats() -> None:
    """Orchestrators ask these paths; two folders compute metrics of each repeat."""
    server = make(Verifier, BaseResourcesServerConfig)
    client = TestClient(server.prepare_webserver({}))
    rows = [{"_ng_task_index": 0, "_ng_rollout_index": index, "reward": float(index)} for index in range(2)]

    metrics = await server.aggregate_metrics(AggregateMetricsRequest(verify_responses=rows))

    assert {client.get(path).status_code for path in ("/", "/health", "/healthz", "/livez", "/readyz")} == {200}
    assert metrics.repeat_level_metrics == [{"_ng_rollout_index": 0, "best": 1.0}]
    assert "repeat_level_metrics" not in AggregateMetrics().model_dump()


async def test_metrics_of_one_repeat_are_computed_for_each() -> None:
    """Some folders return the metrics of one repeat, as `compute_metrics` does for all; an error would lose all."""

    class Best(Verifier):
        def compute_repeat_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:  # type: ignore[override]
            return {"best": max(row["reward"] for rows in tasks for row in rows)}

    rows = [
        {"_ng_task_index": task, "_ng_rollout_index": index, "reward": float(10 * task + index)}
        for task, index in ((0, 0), (0, 1), (1, 1))
    ]

    metrics = await make(Best, BaseResourcesServerConfig).aggregate_metrics(
        AggregateMetricsRequest(verify_responses=rows)
    )

    assert metrics.repeat_level_metrics == [
        {"_ng_rollout_index": 0, "sample_count": 1, "missing_count": 1, "best": 0.0},
        {"_ng_rollout_index": 1, "sample_count": 2, "missing_count": 0, "best": 11.0},
    ]


async def test_a_sandbox_is_stopped_once_and_can_be_stopped_again_after_a_failure() -> None:
    """Tests count the calls of their provider."""
    provider = AsyncMock()
    sandbox = AsyncSandbox(provider)
    await sandbox.start(SandboxSpec(image="i"))
    provider.close.side_effect = OSError("busy")
    with pytest.raises(OSError, match="busy"):
        await sandbox.stop()
    provider.close.side_effect = None

    await sandbox.stop()
    await sandbox.stop()

    assert (provider.close.await_count, provider.aclose.await_count) == (2, 1)


class OwnMask(BaseVerifyResponse):
    mask_sample: bool = False


@pytest.mark.parametrize(
    ("kind", "passed", "expected"),
    [
        (BaseVerifyResponse, {}, {"reward"}),
        (BaseVerifyResponse, {"mask_sample": False}, {"reward", "mask_sample"}),
        (BaseVerifyResponse, {"failure_reason": None}, {"reward", "failure_reason"}),
        (OwnMask, {}, {"reward", "mask_sample"}),
    ],
)
def test_an_answer_contains_the_fields_of_a_mask_that_its_verifier_passed(
    kind: Any, passed: dict[str, Any], expected: set[str]
) -> None:
    """Folders of 0.5 compare whole answers without these fields; those that know them read them from every answer."""

    class Verdicts(Verifier):
        async def verify(self, body: BaseVerifyRequest) -> kind:  # type: ignore[override, valid-type]
            return kind(**body.model_dump(), reward=1.0, **passed)

    client = TestClient(make(Verdicts, BaseResourcesServerConfig).setup_webserver())
    answer = client.post("/verify", json={"responses_create_params": {"input": "x"}, "response": RESPONSE}).json()

    assert answer.keys() - {"responses_create_params", "response"} == expected
    assert {"mask_sample", "failure_kind"} <= kind.model_json_schema(mode="serialization")["properties"].keys()


def reply(body: dict[str, Any]) -> Any:
    return MagicMock(ok=True, read=AsyncMock(return_value=json.dumps(body).encode()))


async def test_helpers_of_sandboxed_agents() -> None:
    """An agent in a sandbox reaches the tools of its run, and its failure is a verified zero."""
    client = MagicMock(spec=ServerClient)
    metadata = {"server_name": "tools", "url_path": "/mcp", "transport": "http", "headers": {"t": "1"}}
    with patch("nemo_gym.server_utils.get_global_config_dict", return_value=SERVERS):
        client.post = AsyncMock(return_value=reply({"mcp": metadata}))
        entries = await seed_mcp_servers(client, ["tools"], {}, None, timeout_s=2.5)
        with pytest.raises(ValueError, match="not reachable from another machine"):
            sandbox_server_url("tools", require_reachable=True)

    url = "http://127.0.0.1:7/mcp"
    assert entries == {"tools": {"url": url, "headers": {"t": "1"}, "enabled": True, "timeout": 2500}}
    assert restricted_network_policy("opensandbox", [url, url]) == {
        "defaultAction": "deny",
        "egress": [{"action": "allow", "target": "127.0.0.1"}],
    }
    client.post = AsyncMock(return_value=reply({"reward": 0.0}))
    verdict = await verify_agent_response(
        client, "tools", {}, {**RESPONSE, "output": [1]}, None, force_zero_reward=True
    )
    assert verdict == {"reward": 0.0, "failure_kind": "agent_run_error"}
    assert client.post.call_args.kwargs["json"]["response"]["output"] == []
    client.post = AsyncMock(return_value=reply({"reward": 1.0}))
    with pytest.raises(ValueError, match="must have the reward 0"):
        await verify_agent_response(client, "tools", {}, RESPONSE, None, force_zero_reward=True)
