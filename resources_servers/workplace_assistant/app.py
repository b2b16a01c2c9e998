"""Workplace assistant: 27 tools over an office, which has to end up as the reference calls would leave it."""

import json
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

from nemo_gym.authoring.verifier_fixture import VerifierFixture, offline_server
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
)
from nemo_gym.openai_utils import NeMoGymResponseFunctionToolCall
from nemo_gym.reward_profile import compute_pass_majority_metrics, compute_subset_metrics, highest_k_metrics
from nemo_gym.serve.session_store import SessionStore
from nemo_gym.server_utils import SESSION_ID_KEY
from resources_servers.workplace_assistant import business, desk
from resources_servers.workplace_assistant.office import Office, differing_tables
from resources_servers.workplace_assistant.tool import Refused, Tool, as_text

TOOLS: dict[str, Tool] = {tool.name: tool for tool in (*desk.TOOLS, *business.TOOLS)}
MOST_CALLS = 1000
"""Calls of one reply that are played again; whoever needs more has not understood the task."""


def after(calls: Iterable[tuple[str, str]]) -> tuple[Office, list[str]]:
    """A fresh office after these calls (name, arguments as JSON), and what was wrong with those that were refused."""
    office, problems = Office.fresh(), []
    for name, arguments in calls:
        tool = TOOLS.get(name)
        if tool is not None and not tool.changes:
            continue
        try:
            if tool is None:
                raise Refused(f"there is no tool {name!r}")
            tool.run(office, _object(arguments))
        except Refused as problem:
            problems.append(f"{name}: {problem}")
    return office, problems


def _object(arguments: str) -> dict[str, Any]:
    try:
        found = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        raise Refused("the arguments are not JSON") from None
    if not isinstance(found, dict):
        raise Refused("the arguments are not an object")
    return found


class WorkplaceConfig(BaseResourcesServerConfig):
    REVERIFY_MODE = ReverifyMode.STATELESS

    max_sessions: int = Field(default=10_000, ge=1)
    """Offices kept at once; beyond it the one left alone longest is dropped."""
    session_idle_seconds: float = Field(default=3600.0, gt=0)
    """An office without a call for so long is dropped."""


class ReferenceCall(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str
    arguments: str
    """A JSON object."""


class WorkplaceRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")

    ground_truth: list[ReferenceCall]
    """Calls that do what the row asks for."""

    @model_validator(mode="after")
    def _can_be_done(self) -> "WorkplaceRunRequest":
        _, problems = after((call.name, call.arguments) for call in self.ground_truth)
        if problems:
            raise ValueError(f"`ground_truth` cannot be done: {'; '.join(problems[:3])}")
        return self


class WorkplaceVerifyRequest(WorkplaceRunRequest, BaseVerifyRequest):
    pass


class WorkplaceVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")

    differing_tables: list[str]
    """Where the office differs from what was asked for."""
    refused_calls: list[str] = []
    """Calls of the model that changed nothing because they could not be done."""


class WorkplaceServer(SimpleResourcesServer):
    HOSTING = "cell"

    config: WorkplaceConfig
    _offices: SessionStore[Office] = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        self._offices = SessionStore(most=self.config.max_sessions, idle_seconds=self.config.session_idle_seconds)

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        for name, tool in TOOLS.items():
            app.post(f"/{name}", name=name, description=tool.description)(self._endpoint(tool))
        return app

    def _endpoint(self, tool: Tool) -> Callable[[Request, dict[str, Any]], Awaitable[dict[str, str]]]:
        async def run(request: Request, body: dict[str, Any]) -> dict[str, str]:
            office = self._offices.get(request.session[SESSION_ID_KEY])
            if office is None:
                raise HTTPException(409, "this session was not seeded, or it was left alone for too long")
            try:
                return {"output": as_text(tool.run(office, body))}
            except Refused as problem:
                return {"output": f"Error: {problem}."}

        return run

    async def seed_session(self, request: Request, body: BaseSeedSessionRequest) -> BaseSeedSessionResponse:  # noqa: ARG002
        """A fresh office for this session."""
        self._offices.put(request.session[SESSION_ID_KEY], Office.fresh())
        return BaseSeedSessionResponse()

    async def verify(self, request: Request, body: WorkplaceVerifyRequest) -> WorkplaceVerifyResponse:
        """Play the model's calls and the reference calls from fresh offices and compare. The session ends here."""
        self._offices.pop(request.session[SESSION_ID_KEY])
        calls = [
            (self.normalize_tool_name(item.name), item.arguments)
            for item in body.response.output
            if isinstance(item, NeMoGymResponseFunctionToolCall)
        ]
        done, refused = after(calls[:MOST_CALLS])
        wanted, _ = after((call.name, call.arguments) for call in body.ground_truth)
        differing = differing_tables(done, wanted)
        verdict = {
            "differing_tables": differing,
            "refused_calls": refused[:20],
            "reward": float(not differing and len(calls) <= MOST_CALLS),
        }
        return WorkplaceVerifyResponse.model_validate({**dict(body), **verdict})  # parts that are checked stay so

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        return compute_pass_majority_metrics(tasks)[0] | compute_subset_metrics(tasks, "category")

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        means = {key: agent_metrics[key] for key in ("mean/reward",) if key in agent_metrics}
        return means | highest_k_metrics(agent_metrics, "pass@{k}")


VERIFIER_FIXTURE = VerifierFixture(
    server_factory=lambda: offline_server(WorkplaceServer),
    request_model=WorkplaceVerifyRequest,
    cases_path=Path(__file__).parent / "tests" / "verifier_cases.jsonl",
)


if __name__ == "__main__":
    WorkplaceServer.run_webserver()
