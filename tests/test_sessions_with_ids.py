"""Sessions whose id the caller chose, at resources servers and at agents, and the types they need."""

from typing import Any
from unittest.mock import MagicMock

import pytest
from fastapi import HTTPException, Request
from fastapi.testclient import TestClient

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ResourcesCloseSessionRequest,
    ResourcesCloseSessionResponse,
    ResourcesSeedSessionRequest,
    ResourcesSeedSessionResponse,
    SimpleResourcesServer,
)
from nemo_gym.base_responses_api_agent import (
    AgentCloseSessionResponse,
    AgentSeedSessionRequest,
    AgentSessionSetupError,
    AgentSessionState,
    BaseResponsesAPIAgentConfig,
    SimpleResponsesAPIAgent,
)
from nemo_gym.episode_types import BaseEpisodeResponse, EpisodeId, TaskId, is_materialized_task_row
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server_utils import ServerClient
from nemo_gym.single_agent_turn_types import SingleAgentTurnTaskInput
from nemo_gym.testing.session_conformance import check_resources_session_contract
from nemo_gym.tool_access import DirectHTTPToolAccess

EPISODE = {"rollout_id": "3-0", "attempt": 0}
TASK = {"taskset": "sums", "task_id": "3"}
SEED = {"resources_session_id": "s1", "episode_id": EPISODE, "task_id": TASK, "task_data": {"n": 2}}
ADDRESS: dict[str, Any] = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py", "name": "sums"}


class PlainServer(SimpleResourcesServer):
    ray_enabled = False
    config: BaseResourcesServerConfig

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        return BaseVerifyResponse(**body.model_dump(), reward=0.0)


class CountingServer(PlainServer):
    counts: dict[str, int] = {}
    closed: set[str] = set()

    async def seed_session(self, body: ResourcesSeedSessionRequest) -> ResourcesSeedSessionResponse:  # type: ignore[override]
        if body.resources_session_id in self.closed:
            raise HTTPException(409, "closed")
        self.counts.setdefault(body.resources_session_id, body.task_data["n"])
        return ResourcesSeedSessionResponse(resources_session_id=body.resources_session_id)

    async def close_resources_session(self, body: ResourcesCloseSessionRequest) -> ResourcesCloseSessionResponse:
        self.counts.pop(body.resources_session_id, None)
        self.closed.add(body.resources_session_id)
        return ResourcesCloseSessionResponse(resources_session_id=body.resources_session_id)


class ForgetfulServer(CountingServer):
    async def close_resources_session(self, body: ResourcesCloseSessionRequest) -> ResourcesCloseSessionResponse:
        return ResourcesCloseSessionResponse(resources_session_id=body.resources_session_id)


def make_server(kind: type[SimpleResourcesServer], **fields: Any) -> SimpleResourcesServer:
    return kind(config=BaseResourcesServerConfig(**ADDRESS), server_client=MagicMock(spec=ServerClient), **fields)


def test_the_default_seed_answers_in_the_form_of_the_request() -> None:
    """Rows without such sessions are seeded as before."""
    client = TestClient(make_server(PlainServer).setup_webserver())

    typed = client.post("/seed_session", json=SEED).json()

    assert typed == {"resources_session_id": "s1", "resources_tools": None, "sandbox_access": None}
    assert client.post("/seed_session", json={"responses_create_params": {"input": "x"}}).json() == {}
    assert client.post("/close_session").status_code == 200
    assert client.post("/close_session", json={"resources_session_id": "s1"}).status_code == 422


def test_the_conformance_check_accepts_servers_that_keep_the_rules_and_no_others() -> None:
    """Server folders call it in their tests."""
    seed = ResourcesSeedSessionRequest.model_validate(SEED)

    check_resources_session_contract(make_server(PlainServer).setup_webserver(), seed, keeps_state=False)
    counting = make_server(CountingServer, counts={}, closed=set())
    check_resources_session_contract(counting.setup_webserver(), seed, keeps_state=True)
    with pytest.raises(AssertionError, match="a seed after the end"):
        forgetful = make_server(ForgetfulServer, counts={}, closed=set())
        check_resources_session_contract(forgetful.setup_webserver(), seed, keeps_state=True)


class SessionAgent(SimpleResponsesAPIAgent):
    config: BaseResponsesAPIAgentConfig
    log: list[str] = []

    async def responses(self, request: Request, body: NeMoGymResponseCreateParamsNonStreaming) -> NeMoGymResponse:
        session_id = self._agent_session_id_from_request(request)
        if session_id is not None:
            self.log.append(f"turn of {self._require_agent_session(session_id).request.agent_session_id}")
        fields = {"id": "r", "created_at": 0, "model": "m", "object": "response", "output": [], "tools": []}
        return NeMoGymResponse.model_validate({**fields, "parallel_tool_calls": True, "tool_choice": "auto"})

    async def run(self) -> None:  # type: ignore[override]
        raise NotImplementedError

    async def _seed_agent_session_state(self, body: AgentSeedSessionRequest) -> AgentSessionState:
        self.log.append(f"seed {body.agent_session_id}")
        if body.agent_session_id == "half":
            raise AgentSessionSetupError(AgentSessionState(body), error=HTTPException(502, "no tools"))
        return AgentSessionState(body)

    async def _close_agent_session_state(self, state: AgentSessionState) -> AgentCloseSessionResponse:
        self.log.append(f"close {state.request.agent_session_id}")
        if self.log.count("close fails") == 1:
            self.log.remove("close fails")
            raise HTTPException(503, "again")
        return AgentCloseSessionResponse(agent_session_id=state.request.agent_session_id)


def agent_client(**config: Any) -> tuple[SessionAgent, TestClient]:
    settings = BaseResponsesAPIAgentConfig.model_validate({**ADDRESS, **config})
    agent = SessionAgent(config=settings, server_client=MagicMock(spec=ServerClient), log=[])
    return agent, TestClient(agent.setup_webserver())


def seed_body(session_id: str = "a1", **fields: Any) -> dict[str, Any]:
    return {"agent_session_id": session_id, "episode_id": EPISODE, "task_id": TASK, **fields}


CLOSE = {"agent_session_id": "a1", "episode_id": EPISODE}


def test_a_session_of_an_agent_begins_once_and_ends_once() -> None:
    """A caller whose connection broke sends the same request again."""
    agent, client = agent_client()

    statuses = [client.post("/v1/agent_sessions", json=seed_body()).status_code for _ in range(2)]
    turn = client.post("/v1/responses", json={"input": "x"})
    closes = [client.post("/v1/agent_sessions/close", json=CLOSE).json() for _ in range(2)]

    assert (statuses, turn.status_code) == ([200, 200], 200)
    assert closes[0] == closes[1]
    assert agent.log == ["seed a1", "turn of a1", "close a1"]
    assert client.post("/v1/responses", json={"input": "x"}).status_code == 409  # a stale cookie is no plain call
    assert client.post("/v1/agent_sessions", json=seed_body()).status_code == 409


def test_requests_that_contradict_a_session_are_refused() -> None:
    """Two episodes must not share an agent's session."""
    _, client = agent_client()
    client.post("/v1/agent_sessions", json=seed_body())
    other = {"rollout_id": "4-0"}
    access = {"kind": "direct_http", "name": "t", "required": True, "base_url": "http://x"}

    assert client.post("/v1/agent_sessions", json=seed_body(tool_accesses=[access])).status_code == 409
    assert client.post("/v1/agent_sessions", json=seed_body("a2")).status_code == 409  # the cookie names a1
    assert client.post("/v1/agent_sessions/close", json={**CLOSE, "episode_id": other}).status_code == 409
    assert client.post("/v1/agent_sessions", json=seed_body(tool_accesses=[access, access])).status_code == 422


def test_a_failing_end_can_be_tried_again_and_a_half_built_session_can_be_closed() -> None:
    """Otherwise a sandbox would stay."""
    agent, client = agent_client()
    client.post("/v1/agent_sessions", json=seed_body())
    agent.log.append("close fails")

    assert client.post("/v1/agent_sessions/close", json=CLOSE).status_code == 503
    assert client.post("/v1/agent_sessions/close", json=CLOSE).status_code == 200
    _, client = half_agent, half_client = agent_client()
    assert client.post("/v1/agent_sessions", json=seed_body("half")).status_code == 502
    assert half_client.post("/v1/agent_sessions/close", json={**CLOSE, "agent_session_id": "half"}).status_code == 200
    assert half_agent.log == ["seed half", "close half"]


def test_the_end_of_an_unknown_session_blocks_its_late_seed() -> None:
    """The seed and the close of a caller that gave up may arrive in the other order."""
    _, client = agent_client()

    assert client.post("/v1/agent_sessions/close", json=CLOSE).status_code == 200
    assert client.post("/v1/agent_sessions", json=seed_body()).status_code == 409


def test_open_sessions_end_when_the_server_stops(caplog: pytest.LogCaptureFixture) -> None:
    """A run that is interrupted must not leave the sandboxes of its agents behind."""
    agent, client = agent_client()
    with client:
        client.post("/v1/agent_sessions", json=seed_body())
        client.cookies.clear()
        client.post("/v1/agent_sessions", json=seed_body("a2"))
        client.post("/v1/agent_sessions/close", json=CLOSE)
        agent.log.append("close fails")

    assert agent.log == ["seed a1", "seed a2", "close a1", "close a2"]
    assert "a2 was not ended" in caplog.text


def test_tools_of_the_request_replace_those_of_the_configuration() -> None:
    """A session may bring another address of the same tools."""
    tools = [DirectHTTPToolAccess(name=name, required=True, base_url="http://config") for name in ("a", "b")]
    agent, _ = agent_client(tool_accesses=[tool.model_dump() for tool in tools])
    own = DirectHTTPToolAccess(name="b", required=False, base_url="http://request")
    seed = AgentSeedSessionRequest.model_validate(seed_body(tool_accesses=[own.model_dump()]))

    assert agent.effective_tool_accesses(seed) == [tools[0], own]


def test_identities() -> None:
    """An attempt is part of the identity, not of the rollout id."""
    assert EpisodeId(rollout_id="3-0", attempt=2).capture_key == "3-0-a2"
    assert len({EpisodeId(rollout_id="3-0"), EpisodeId(rollout_id="3-0")}) == 1
    assert is_materialized_task_row({"task_id": {}, "task_input": None})
    assert not is_materialized_task_row({"task_id": "3", "task_input": {}})
    for wrong in ("3-0-a1", "-x", ""):
        with pytest.raises(ValueError):
            EpisodeId(rollout_id=wrong)
    with pytest.raises(ValueError, match="exactly one"):
        BaseEpisodeResponse[dict[str, Any]](episode_id=EpisodeId(rollout_id="x"), task_id=TaskId(**TASK))


def test_flat_fields_of_a_turn_belong_to_its_task() -> None:
    """Rows have their fields beside the request."""
    row = {"responses_create_params": {"input": "x"}, "n": 2, "task_data": {"m": 1}}

    assert SingleAgentTurnTaskInput.model_validate(row).task_data == {"n": 2, "m": 1}
    with pytest.raises(ValueError, match="different values"):
        SingleAgentTurnTaskInput.model_validate({**row, "m": 3})
    with pytest.raises(ValueError, match="task_data"):
        SingleAgentTurnTaskInput.model_validate({**row, "task_data": 5})
