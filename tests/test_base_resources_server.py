"""Resources servers as their authors write them: subclasses driven over HTTP in process."""

from __future__ import annotations

import json
import math
from typing import Any, ClassVar
from unittest.mock import MagicMock

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, PrivateAttr
from starlette.testclient import TestClient

from nemo_gym import base_resources_server as module
from nemo_gym.base_resources_server import (
    AggregateMetricsRequest,
    BaseMultiRewardVerifyResponse,
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    NeMoGymResponse,
    ReverifyMode,
    SimpleResourcesServer,
    normalize_tool_name,
)
from nemo_gym.judge import JudgeError
from nemo_gym.rollout_correlation import current_rollout_id
from nemo_gym.rollouts.outcome import FailedRollout, Job, classify_result
from nemo_gym.server_utils import SESSION_ID_KEY, ServerClient
from nemo_gym.wire.stored_rollout import RolloutKey

RESPONSE = {
    "id": "resp_1",
    "created_at": 0.0,
    "model": "m",
    "object": "response",
    "output": [
        {
            "id": "msg_1",
            "content": [{"annotations": [], "text": "42", "type": "output_text"}],
            "role": "assistant",
            "status": "completed",
            "type": "message",
        }
    ],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}
VERIFY = {"responses_create_params": {"input": [{"role": "user", "content": "6*7?"}]}, "response": RESPONSE}


class SumsConfig(BaseResourcesServerConfig):
    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.STATELESS
    tolerance: float = 0.0


class SumsRunRequest(BaseRunRequest):
    expected: float


class SumsVerifyRequest(SumsRunRequest, BaseVerifyRequest):
    pass


class SumsVerifyResponse(SumsVerifyRequest, BaseVerifyResponse):
    answer: float | None


class Sums(SimpleResourcesServer):
    """Verifies from the body alone; annotations are postponed in this module."""

    config: SumsConfig

    async def verify(self, body: SumsVerifyRequest) -> SumsVerifyResponse:
        answer = float(body.response.output_text)
        reward = float(abs(answer - body.expected) <= self.config.tolerance)
        return SumsVerifyResponse(**body.model_dump(), answer=answer, reward=reward)


class CountRequest(BaseModel):
    by: int


class CountResponse(BaseModel):
    total: int


class Counter(SimpleResourcesServer):
    """Keeps a number per session; verify wants the request."""

    config: BaseResourcesServerConfig
    _totals: dict[str, int] = PrivateAttr(default_factory=dict)

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/count")(self.count)
        return app

    async def seed_session(self, request: Request, body: CounterSeed) -> BaseSeedSessionResponse:
        self._totals[request.session[SESSION_ID_KEY]] = body.start
        return BaseSeedSessionResponse()

    async def count(self, request: Request, body: CountRequest) -> CountResponse:
        self._totals[request.session[SESSION_ID_KEY]] += body.by
        return CountResponse(total=self._totals[request.session[SESSION_ID_KEY]])

    async def verify(self, request: Request, body: BaseVerifyRequest) -> BaseVerifyResponse:
        return BaseVerifyResponse(**body.model_dump(), reward=float(self._totals[request.session[SESSION_ID_KEY]]))


class CounterSeed(BaseSeedSessionRequest):
    start: int = 0


def config(kind: type[BaseResourcesServerConfig] = BaseResourcesServerConfig, **fields: Any) -> Any:
    return kind(host="0.0.0.0", port=8080, entrypoint="", name="sums", **fields)


def client_for(kind: type[SimpleResourcesServer], **fields: Any) -> TestClient:
    declared: Any = kind.model_fields["config"].annotation
    server = kind(config=config(declared, **fields), server_client=MagicMock(spec=ServerClient))
    return TestClient(server.setup_webserver())


def test_a_verdict_comes_back_with_the_request_and_the_server_s_own_fields() -> None:
    """The record of a rollout is what verify returns; nothing of it may be lost."""
    answer = client_for(Sums).post("/verify", json=VERIFY | {"expected": 42.0})

    verdict = answer.json()
    assert answer.status_code == 200
    assert (verdict["reward"], verdict["answer"], verdict["expected"]) == (1.0, 42.0, 42.0)
    assert verdict["responses_create_params"]["input"] == [{"content": "6*7?", "role": "user", "type": "message"}]
    assert verdict["response"]["output"][0]["content"][0]["text"] == "42"


def test_fields_beyond_the_annotated_class_are_kept() -> None:
    """Many verifiers are annotated with the base class and return a subclass."""

    class Generous(SimpleResourcesServer):
        async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
            return BaseMultiRewardVerifyResponse(**body.model_dump(), reward=1.0, reward_components={"style": 0.5})

    assert client_for(Generous).post("/verify", json=VERIFY).json()["reward_components"] == {"style": 0.5}


def test_fields_a_request_allows_reach_the_verifier() -> None:
    """Half of the environments declare `extra="allow"` instead of fields."""

    class Open(BaseVerifyRequest):
        model_config = ConfigDict(extra="allow")

    class OpenResponse(Open, BaseVerifyResponse):
        pass

    class Server(SimpleResourcesServer):
        async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
            return OpenResponse(**body.model_dump(), reward=1.0)

    # What postponed annotations cannot name, because it is local, is written as a type.
    Server.verify.__annotations__["body"] = Open

    verdict = client_for(Server).post("/verify", json=VERIFY | {"verifier_metadata": {"a": [1, None]}}).json()

    assert verdict["verifier_metadata"] == {"a": [1, None]}


def test_state_belongs_to_the_session_in_the_cookie() -> None:
    """Two rollouts on one server must not see each other's state."""
    client = client_for(Counter)
    mine, yours = TestClient(client.app), TestClient(client.app)

    for caller, start in ((mine, 1), (yours, 100)):
        caller.post("/seed_session", json={"start": start})
    mine.post("/count", json={"by": 4})
    total = yours.post("/count", json={"by": 1}).json()

    assert total == {"total": 101}
    assert mine.post("/verify", json=VERIFY).json()["reward"] == 5.0
    assert yours.post("/verify", json=VERIFY).json()["reward"] == 101.0


def test_a_server_may_do_without_sessions() -> None:
    """A stateless server is spared the cookie, and any copy of it may answer."""

    class Stateless(Sums):
        SESSION_POLICY: ClassVar[Any] = "stateless"

    answer = client_for(Stateless).post("/verify", json=VERIFY | {"expected": 42.0})

    assert answer.status_code == 200
    assert "set-cookie" not in answer.headers


def test_seeding_needs_nothing_unless_the_server_says_so() -> None:
    """An agent seeds every server with the whole row."""
    answer = client_for(Sums).post("/seed_session", json=VERIFY | {"expected": 1})

    assert (answer.status_code, answer.json()) == (200, {})


@pytest.mark.parametrize(
    ("body", "location"),
    [
        (VERIFY, ["body", "expected"]),
        (VERIFY | {"expected": "a lot"}, ["body", "expected"]),
        ({"expected": 1.0, "response": RESPONSE}, ["body", "responses_create_params"]),
        (VERIFY | {"expected": 1.0, "response": {**RESPONSE, "output": 3}}, ["body", "response", "output"]),
        ([], ["body"]),
    ],
)
def test_a_request_that_does_not_fit_is_422_and_says_where(body: Any, location: list[str]) -> None:
    """The place is what a person needs to mend their data."""
    answer = client_for(Sums).post("/verify", json=body)

    assert answer.status_code == 422
    assert location in [problem["loc"] for problem in answer.json()["detail"]]


@pytest.mark.parametrize("body", [b"{", b"", b"\xff", b"NaN", b'{"expected": NaN}', b"[" * 10_000, b'"\\ud800"'])
def test_a_body_that_is_not_json_is_a_clear_refusal(body: bytes) -> None:
    """Never a traceback, whatever is sent."""
    answer = client_for(Sums).post("/verify", content=body, headers={"content-type": "application/json"})

    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"][0] == "body"


def test_a_whole_number_of_any_size_stays_exact() -> None:
    """An expected answer with thirty digits must not be rounded on the way in."""

    class Exact(SimpleResourcesServer):
        async def verify(self, body: ExactRequest) -> BaseVerifyResponse:
            return BaseVerifyResponse(**body.model_dump(), reward=float(body.expected == 10**30 + 1))

    assert client_for(Exact).post("/verify", json=VERIFY | {"expected": 10**30 + 1}).json()["reward"] == 1.0


class ExactRequest(BaseVerifyRequest):
    expected: int


@pytest.mark.parametrize(
    ("reward", "wrap"),
    [("0.5", JSONResponse), (True, JSONResponse), (False, JSONResponse), (None, JSONResponse), ([1], JSONResponse),
     ("1e3", dict), ("NaN", dict)],
)  # fmt: skip
def test_a_reward_that_only_looks_like_a_number_is_an_error_of_the_verifier(reward: Any, wrap: Any) -> None:
    """An agent reads "0.5" and true as numbers, so that the bug of the verifier would be scored."""

    class RawServer(SimpleResourcesServer):
        async def verify(self, body: BaseVerifyRequest) -> Any:
            return wrap({**body.model_dump(mode="json"), "reward": reward})

    server = RawServer(config=config(), server_client=MagicMock(spec=ServerClient))
    answer = TestClient(server.prepare_webserver({})).post("/verify", json=VERIFY)

    assert (answer.status_code, answer.headers["x-nemo-gym-error"]) == (500, "InvalidReward")
    assert answer.headers["x-nemo-gym-failed"] == "sums"


@pytest.mark.parametrize(
    ("detail", "whom"), [({}, "sums"), ({"_ng_failure": {"whom": "gpu", "phase": "model"}}, "gpu")]
)
def test_a_failure_that_verify_reports_is_attributed_to_its_server(detail: dict[str, Any], whom: str) -> None:
    """The agent only passes it on and must not be blamed."""

    class FailingServer(SimpleResourcesServer):
        async def verify(self, body: BaseVerifyRequest) -> Any:
            return {**body.model_dump(), "reward": 0.0, "_ng_failure_class": "flaky_gpu", **detail}

    record = client_for(FailingServer).post("/verify", json=VERIFY).json()
    outcome = classify_result(Job(RolloutKey(0, 0), {"agent_ref": {"name": "agent"}}), record)

    assert isinstance(outcome, FailedRollout)
    assert (outcome.failure.kind, outcome.failure.server) == ("flaky_gpu", whom)


@pytest.mark.parametrize("reward", [None, [0.5], {"a": 1}, "good", 10**400])
@pytest.mark.parametrize("form", ["model", "unchecked", "dictionary"])
def test_a_verifier_without_a_usable_reward_is_named(reward: Any, form: str) -> None:
    """Otherwise the agent, which cannot read the answer, is blamed."""

    class BrokenServer(SimpleResourcesServer):
        async def verify(self, body: BaseVerifyRequest) -> Any:
            fields = {**body.model_dump(), "reward": reward}
            if form == "dictionary":
                return fields
            return BaseVerifyResponse(**fields) if form == "model" else BaseVerifyResponse.model_construct(**fields)

    server = BrokenServer(config=config(), server_client=MagicMock(spec=ServerClient))
    answer = TestClient(server.prepare_webserver({})).post("/verify", json=VERIFY)

    assert (answer.status_code, answer.headers["x-nemo-gym-error"]) == (500, "InvalidReward")
    assert answer.headers["x-nemo-gym-failed"] == "sums"
    assert "usable number" in answer.text


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_not_a_number_is_told_and_not_a_crash(reward: float) -> None:
    """It travels as text that reads back as the same float; the collector turns it into a failure."""

    class BrokenServer(SimpleResourcesServer):
        async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
            return BaseVerifyResponse(**body.model_dump(), reward=reward)

    answer = client_for(BrokenServer).post("/verify", json=VERIFY)

    assert answer.status_code == 200
    assert answer.json()["reward"] in ("NaN", "Infinity")
    assert not math.isfinite(BaseVerifyResponse.model_validate(answer.json()).reward)


def test_a_judge_that_fails_makes_a_failure_row_and_no_verdict() -> None:
    """A failed judge is never a wrong answer: the row says so and keeps what is needed to try again."""

    class JudgedServer(SimpleResourcesServer):
        async def verify(self, request: Request, body: SumsVerifyRequest) -> BaseVerifyResponse:
            raise JudgeError("ClientResponseError: 429")

    answer = client_for(JudgedServer).post("/verify", json=VERIFY | {"expected": 1.0})

    row = answer.json()
    assert answer.status_code == 200
    assert (row["reward"], row["_ng_failure_class"]) == (0.0, "judge_failed")
    assert row["_ng_failure_judge_error"] == "ClientResponseError: 429"
    assert (row["expected"], row["response"]["id"]) == (1.0, "resp_1")
    assert row["responses_create_params"] == VERIFY["responses_create_params"]


def test_another_failure_of_a_verifier_is_not_a_verdict_either() -> None:
    """Answered 200, a bug in a verifier would look like a score."""
    with pytest.raises(ValueError, match="could not convert"):
        client_for(Sums).post(
            "/verify",
            json=VERIFY | {"expected": 1.0, "response": {**RESPONSE, "output": []}},
        )


def test_a_verifier_that_is_not_asynchronous_works() -> None:
    """Beginners write `def`; it runs in a thread."""

    class PlainServer(SimpleResourcesServer):
        def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:  # type: ignore[override]
            return BaseVerifyResponse(**body.model_dump(), reward=0.25)

    assert client_for(PlainServer).post("/verify", json=VERIFY).json()["reward"] == 0.25


def test_a_verifier_may_set_cookies_and_answer_itself() -> None:
    """FastAPI's own means stay at hand."""

    class Free(SimpleResourcesServer):
        async def verify(self, body: BaseVerifyRequest, response: Response) -> BaseVerifyResponse:
            response.set_cookie("mood", "good")
            return BaseVerifyResponse(**body.model_dump(), reward=1.0)

        async def seed_session(self, body: dict[str, Any]) -> Response:  # type: ignore[override]
            return Response(json.dumps({"seen": sorted(body)}), status_code=201, media_type="application/json")

    client = client_for(Free)

    assert client.post("/verify", json=VERIFY).cookies["mood"] == "good"
    assert (client.post("/seed_session", json={"b": 1, "a": 2}).json()) == {"seen": ["a", "b"]}
    assert client.post("/seed_session", json={}).status_code == 201


# FastAPI silences this warning only while a route is made; our request types are built later, when first used.
@pytest.mark.filterwarnings("ignore::pydantic.warnings.UnsupportedFieldAttributeWarning")
def test_the_schema_shows_the_server_s_own_classes() -> None:
    """People read /docs to learn what an environment wants."""
    schema = client_for(Sums).get("/openapi.json").json()

    verify = schema["paths"]["/verify"]["post"]
    assert verify["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/SumsVerifyRequest")
    answer = verify["responses"]["200"]["content"]["application/json"]["schema"]
    assert answer["$ref"].endswith("/SumsVerifyResponse")


def test_metrics_use_what_the_server_overrides() -> None:
    """Environments add their own figures and choose the headline."""

    class MeasuredSums(Sums):
        def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
            return {"tasks": len(tasks)}

        def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
            return {"headline": agent_metrics["tasks"]}

    rows = [{"_ng_task_index": task, "_ng_rollout_index": 0, "reward": float(task)} for task in (0, 1)]
    metrics = client_for(MeasuredSums).post("/aggregate_metrics", json={"verify_responses": rows}).json()

    assert metrics["key_metrics"] == {"headline": 2}
    assert metrics["agent_metrics"]["mean/reward"] == 0.5
    assert len(metrics["group_level_metrics"]) == 2


@pytest.mark.asyncio
async def test_metrics_can_be_asked_for_directly() -> None:
    """Tests of server folders call the method."""
    server = Sums(config=config(SumsConfig), server_client=MagicMock(spec=ServerClient))

    metrics = await server.aggregate_metrics(AggregateMetricsRequest(verify_responses=[{"reward": 1.0}]))

    assert metrics.key_metrics["mean/reward"] == 1.0


@pytest.mark.parametrize(("kind", "mode"), [(Sums, "stateless"), (Counter, "unknown")])
def test_a_server_says_whether_it_can_verify_again(kind: type[SimpleResourcesServer], mode: str) -> None:
    """Reverifying needs to know before it starts."""
    assert client_for(kind).get("/reverify_mode").json() == {"reverify_mode": mode}


def test_a_call_under_a_rollout_prefix_knows_its_rollout() -> None:
    """Tools that call on (a judge, another server) pass the rollout along."""

    class RecordingServer(SimpleResourcesServer):
        async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
            return BaseVerifyResponse(**body.model_dump(), reward=float(current_rollout_id() == "7-2"))

    client = client_for(RecordingServer)

    assert client.post("/ng-rollout/7-2/verify", json=VERIFY).json()["reward"] == 1.0
    assert client.post("/verify", json=VERIFY).json()["reward"] == 0.0


@pytest.mark.parametrize(
    ("name", "server", "plain"),
    [
        ("mcp__sums__add", None, "add"),
        ("mcp__sums__add", "sums", "add"),
        ("mcp__sums__add", "other", "mcp__sums__add"),
        ("mcp__sums__add__twice", None, "add__twice"),
        ("mcp__my__server__add", "my__server", "add"),
        ("add", "sums", "add"),
        ("mcp__add", None, "mcp__add"),
        ("", None, ""),
    ],
)
def test_a_tool_name_loses_its_mcp_prefix(name: str, server: str | None, plain: str) -> None:
    """A model that saw the tools over MCP calls them by the long name; verifiers compare the short one."""
    assert normalize_tool_name(name, server) == plain


def test_a_server_knows_its_own_prefix() -> None:
    """The instance id is part of the prefix, and only the server knows it."""
    server = Sums(config=config(SumsConfig), server_client=MagicMock(spec=ServerClient))

    assert server.normalize_tool_name("mcp__sums__add") == "add"
    assert server.normalize_tool_name("mcp__other__add") == "mcp__other__add"
    assert server.mcp_tools(["a"], None) == ["a"]
    assert server.mcp_allowed_tools_for_session({}) is None


def test_servers_want_a_process_of_their_own_unless_they_say_otherwise() -> None:
    """Code written for one process per server must not find itself sharing one."""
    assert SimpleResourcesServer.HOSTING == "process"


def test_a_server_without_a_verifier_cannot_be_made() -> None:
    """The one thing an environment must have."""
    with pytest.raises(TypeError, match="verify"):
        SimpleResourcesServer(config=config(), server_client=MagicMock(spec=ServerClient))  # type: ignore[abstract]


def test_what_others_import_from_here_is_here() -> None:
    """Names re-exported by accident upstream are relied on."""
    assert module.NEMO_GYM_MCP_SESSION_TOKEN_HEADER == "X-NeMo-Gym-Session-Token"
    assert module.NEMO_GYM_MCP_METADATA_KEY == "mcp"
    names = {"verify", "seed_session", "close_session", "aggregate_metrics", "mcp"}
    assert set(module.RESERVED_MCP_TOOL_NAMES) == names
    assert module.MCPServerMetadata(server_name="s").url_path == "/mcp"
    assert NeMoGymResponse.model_validate(RESPONSE).output_text == "42"
    assert config(expose_tools_over_mcp=True).expose_tools_over_mcp is True
