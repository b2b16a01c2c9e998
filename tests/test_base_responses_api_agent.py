"""Agents as their authors write them: subclasses driven over HTTP in process."""

from typing import Any
from unittest.mock import MagicMock

import pytest
from fastapi import Request, Response
from omegaconf import OmegaConf
from pydantic import ConfigDict
from starlette.testclient import TestClient

from nemo_gym import base_responses_api_agent as module
from nemo_gym.base_responses_api_agent import (
    AggregateMetricsRequest,
    BaseResponsesAPIAgentConfig,
    BaseRunRequest,
    BaseVerifyResponse,
    Body,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    SimpleResponsesAPIAgent,
)
from nemo_gym.keys import DEADLINE_HEADER
from nemo_gym.rollout_correlation import current_rollout_id, current_token_capture, rollout_context
from nemo_gym.server_utils import ServerClient
from nemo_gym.transport import in_process
from nemo_gym.transport.deadlines import ALLOWANCE_HEADER

RUN = {"responses_create_params": {"input": "hi"}, "_ng_task_index": 3, "_ng_rollout_index": 1}
OBSERVED = {"observability_enabled": True, "model_call_capture_dir": "/captures"}
TOKENS = {"token_id_capture": {"enabled": True}}


def answer(text: str = "") -> NeMoGymResponse:
    return NeMoGymResponse(
        id="resp_1",
        created_at=0.0,
        model="m",
        object="response",
        output=[
            {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": text, "annotations": []}],
            }
        ],
        parallel_tool_calls=True,
        tool_choice="auto",
        tools=[],
    )


class RunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")


class RunResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")


class Agent(SimpleResponsesAPIAgent):
    """Tells what it saw of its rollout."""

    config: BaseResponsesAPIAgentConfig

    async def responses(
        self, request: Request, response: Response, body: NeMoGymResponseCreateParamsNonStreaming = Body()
    ) -> NeMoGymResponse:
        response.set_cookie("from_model", "yes")
        seen = [current_rollout_id(), current_token_capture(), self.url_path_for_request("/v1/responses", request)]
        return answer(str(seen))

    async def run(self, request: Request, body: RunRequest) -> RunResponse:
        rest = {"saw": current_rollout_id(), "path": self.url_path_for_run("/v1/responses", body)}
        return RunResponse(**body.model_dump(), response=answer(), reward=1.0, **rest)


def agent(global_config: dict[str, Any] | None = None, **fields: Any) -> Agent:
    client = MagicMock(spec=ServerClient)
    if global_config is not None:
        client.global_config_dict = OmegaConf.create(global_config)
    settings = BaseResponsesAPIAgentConfig(host="0.0.0.0", port=8080, entrypoint="", name="agent", **fields)
    return Agent(config=settings, server_client=client)


def client_for(*args: Any, **fields: Any) -> TestClient:
    return TestClient(agent(*args, **fields).setup_webserver())


def text_of(reply: Any) -> str:
    return str(reply.json()["output"][0]["content"][0]["text"])


def test_a_run_returns_everything_the_agent_says() -> None:
    """Extra fields of the row and of the agent are part of the record."""
    reply = client_for().post("/run", json=RUN | {"verifier_metadata": {"a": 1}})

    row = reply.json()
    assert reply.status_code == 200
    assert (row["reward"], row["verifier_metadata"], row["_ng_task_index"]) == (1.0, {"a": 1}, 3)
    assert row["response"]["id"] == "resp_1"


def test_cookies_an_agent_sets_reach_its_caller() -> None:
    """The session of the model travels back through the agent."""
    assert client_for().post("/v1/responses", json={"input": "hi"}).cookies["from_model"] == "yes"


def test_a_request_that_does_not_fit_is_422() -> None:
    """An unknown parameter would be lost on the way to the model."""
    reply = client_for().post("/v1/responses", json={"input": "hi", "temprature": 1})

    assert reply.status_code == 422
    assert reply.json()["detail"][0]["loc"] == ["body", "temprature"]


@pytest.mark.parametrize(
    ("prefix", "seen"),
    [
        ("", "[None, False, '/v1/responses']"),
        ("/ng-rollout/3-1", "['3-1', False, '/ng-rollout/3-1/v1/responses']"),
        (
            "/ng-rollout/3-1/training-token-capture",
            "['3-1', True, '/ng-rollout/3-1/training-token-capture/v1/responses']",
        ),
    ],
)
def test_an_episode_under_a_rollout_prefix_knows_its_rollout_and_passes_it_on(prefix: str, seen: str) -> None:
    """Model calls of the episode must be found again under the rollout's id."""
    assert text_of(client_for().post(f"{prefix}/v1/responses", json={"input": "hi"})) == seen


def test_an_invalid_rollout_id_is_refused() -> None:
    """It becomes part of file names further on."""
    reply = client_for().post("/ng-rollout/.hidden/v1/responses", json={"input": "hi"})

    assert reply.status_code == 422


@pytest.mark.parametrize(
    ("global_config", "saw", "path"),
    [
        (None, None, "/v1/responses"),
        ({}, None, "/v1/responses"),
        ({"observability_enabled": False}, None, "/v1/responses"),
        (OBSERVED, "3-1", "/ng-rollout/3-1/v1/responses"),
        (TOKENS, None, "/v1/responses"),
        (
            {"token_id_capture": {"enabled": True, "all_agents": True}},
            "3-1",
            "/ng-rollout/3-1/training-token-capture/v1/responses",
        ),
    ],
    ids=["a mock", "nothing", "off", "observed", "tokens for other agents", "tokens for all"],
)
def test_a_run_carries_its_rollout_id_only_with_observability(
    global_config: dict[str, Any] | None, saw: str | None, path: str
) -> None:
    """Without observability the paths stay plain."""
    row = client_for(global_config).post("/run", json=RUN).json()

    assert (row["saw"], row["path"]) == (saw, path)


def test_an_agent_may_ask_for_its_token_ids() -> None:
    """Capture is switched on for the run and chosen per agent."""
    row = client_for(TOKENS, token_id_capture=True).post("/run", json=RUN).json()

    assert row["path"] == "/ng-rollout/3-1/training-token-capture/v1/responses"


def test_later_attempts_have_separate_ids() -> None:
    """What the first attempt captured is not mixed with the second."""
    row = client_for(OBSERVED).post("/run", json=RUN | {"_ng_attempt_index": 2}).json()

    assert row["saw"] == "3-1-a2"


def test_a_run_with_an_impossible_id_is_refused_with_the_reason() -> None:
    """The row is at fault, not the server."""
    reply = client_for(OBSERVED).post("/run", json=RUN | {"_ng_rollout_id": "../../etc"})

    assert reply.status_code == 422
    assert "_ng_rollout_id" in reply.json()["detail"]


def test_a_base_url_gets_the_rollout_between_address_and_path() -> None:
    """Agents that are other people's programs only accept a base URL."""
    observed, plain = agent(OBSERVED), agent({})

    assert observed.base_url_for_run("http://h:1/v1", RUN) == "http://h:1/ng-rollout/3-1/v1"
    assert plain.base_url_for_run("http://h:1/v1", RUN) == "http://h:1/v1"


def test_the_base_url_of_a_model_is_found_by_its_name() -> None:
    """The address of a server is known only at run time."""
    config = {"policy": {"responses_api_models": {"impl": {"host": "10.0.0.1", "port": 8001, "entrypoint": "app.py"}}}}
    server = agent(config)
    head = {"host": "127.0.0.1", "port": 11000}
    server.server_client = ServerClient(head_server_config=head, global_config_dict=OmegaConf.create(config))  # type: ignore[arg-type]

    assert server.resolve_model_base_url("policy") == "http://10.0.0.1:8001/v1"
    assert server.resolve_model_base_url("policy", "3-1") == "http://10.0.0.1:8001/ng-rollout/3-1/v1"
    assert server.resolve_model_base_url("policy", version_path="") == "http://10.0.0.1:8001"
    with rollout_context("4-0"):
        assert server.resolve_model_base_url("policy") == "http://10.0.0.1:8001/ng-rollout/4-0/v1"
        assert server.resolve_model_base_url("policy", version_path="") == "http://10.0.0.1:8001/ng-rollout/4-0"


def test_names_the_agent_uses_can_be_replaced_in_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of server folders patch them there."""
    monkeypatch.setattr(module, "get_first_server_config_dict", lambda config, name: {"host": name, "port": 1})
    server = agent({})
    server.server_client._build_server_base_url.side_effect = lambda server: f"http://{server['host']}:{server['port']}"  # type: ignore[attr-defined]

    assert server.resolve_model_base_url("patched") == "http://patched:1/v1"


def test_metrics_are_computed_from_the_rollouts() -> None:
    """An agent without a proxy to its resources server still has metrics."""
    rows = [{"_ng_task_index": 0, "_ng_rollout_index": n, "reward": float(n)} for n in (0, 1)]

    metrics = client_for().post("/aggregate_metrics", json={"verify_responses": rows}).json()

    assert metrics["key_metrics"]["mean/reward"] == 0.5


@pytest.mark.asyncio
async def test_unverified_rollouts_have_no_metrics_and_a_warning() -> None:
    """A placeholder reward must not be averaged."""
    request = AggregateMetricsRequest(verify_responses=[{"reward": 0.0}])

    with pytest.warns(RuntimeWarning, match="verification was skipped"):
        metrics = await agent(skip_verification=True).aggregate_metrics(request)

    assert (metrics.agent_metrics, metrics.key_metrics, metrics.group_level_metrics) == ({}, {}, [])


def test_the_configuration_has_the_documented_defaults() -> None:
    """Existing configurations leave these out."""
    config = agent().config

    assert (config.skip_verification, config.skip_verification_reward, config.token_id_capture) == (False, 0.0, False)
    assert SimpleResponsesAPIAgent.HOSTING == "process"


def test_an_agent_may_take_the_row_as_a_dictionary() -> None:
    """Some agents pass rows on without a class for them."""

    class Loose(Agent):
        async def run(self, body: dict[str, Any] = Body()) -> dict[str, Any]:  # type: ignore[override]
            return {**body, "saw": current_rollout_id()}

    loose = Loose(config=agent().config, server_client=agent(OBSERVED).server_client)

    assert TestClient(loose.setup_webserver()).post("/run", json=RUN).json() == RUN | {"saw": "3-1"}


class ClosedAgent(Agent):
    """Answers with a class that has room for nothing but its own fields, and sets a cookie."""

    async def run(self, request: Request, response: Response, body: RunRequest) -> BaseVerifyResponse:  # type: ignore[override]
        response.set_cookie("own", "yes")
        return BaseVerifyResponse(
            responses_create_params=body.responses_create_params, response=answer(), reward=float("nan")
        )


def closed_agent() -> ClosedAgent:
    settings = BaseResponsesAPIAgentConfig(host="0.0.0.0", port=8080, entrypoint="", name="agent")
    return ClosedAgent(config=settings, server_client=MagicMock(spec=ServerClient))


TIMED = {ALLOWANCE_HEADER: "steps=3"}


@pytest.mark.parametrize("way", ["http", "in memory"])
async def test_timings_are_added_to_an_answer_of_any_class(way: str) -> None:
    """A collector gets the same from every agent, however its author wrote the classes."""
    app = closed_agent().prepare_webserver(OmegaConf.create({}))
    if way == "http":
        reply: Any = TestClient(app).post("/run", json=RUN, headers=TIMED | {DEADLINE_HEADER: "60"})
        row, cookies = reply.json(), dict(reply.cookies)
    else:
        response = await in_process.request(app, "POST", "http://127.0.0.1:8080", "/run", json=RUN, headers=TIMED)
        row, cookies = await response.json(), response.cookie_values

    assert row["reward"] == "NaN"
    assert len(row["_ng_phases"]) == 5
    assert cookies["own"] == "yes"


def test_timings_are_left_out_unless_requested() -> None:
    """Clients that validate the answer strictly would refuse an unknown field."""
    assert "_ng_phases" not in TestClient(closed_agent().setup_webserver()).post("/run", json=RUN).json()
