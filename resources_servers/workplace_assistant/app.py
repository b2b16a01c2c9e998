"""Workplace assistant: 27 tools change an office, whose final state must equal that after the reference calls."""

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

from nemo_gym.authoring.verifier_cases import VerifierFixture, offline_server
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
from nemo_gym.reward_profile import compute_pass_majority_metrics, compute_subset_metrics, headline_metrics
from nemo_gym.serve.session import SessionStore
from nemo_gym.server_utils import SESSION_ID_KEY
from nemo_gym.wire.call_reply import parse_tool_arguments
from resources_servers.workplace_assistant import business, desk
from resources_servers.workplace_assistant.office import Office, differing_tables
from resources_servers.workplace_assistant.tool import Tool, ToolError, as_text

TOOLS: dict[str, Tool] = {tool.name: tool for tool in (*desk.TOOLS, *business.TOOLS)}
MOST_CALLS = 1000
"""Largest number of calls of one reply; no task needs as many."""


def replay_calls(calls: Iterable[tuple[str, str]]) -> tuple[Office, list[str]]:
    """Return a new office after these calls (name, arguments as JSON) and the errors of calls that failed."""
    office, problems = Office.new(), []
    for name, arguments in calls:
        tool = TOOLS.get(name)
        if tool is not None and not tool.changes:
            continue
        try:
            if tool is None:
                raise ToolError(f"there is no tool {name!r}")
            tool.run(office, _parse_arguments(arguments))
        except ToolError as problem:
            problems.append(f"{name}: {problem}")
    return office, problems


def _parse_arguments(arguments: str) -> dict[str, Any]:
    try:
        return parse_tool_arguments(arguments)
    except ValueError as problem:
        raise ToolError(str(problem)) from None


class WorkplaceConfig(BaseResourcesServerConfig):
    REVERIFY_MODE = ReverifyMode.STATELESS

    max_sessions: int = Field(default=10_000, ge=1)
    """Largest number of offices; beyond it, the office without a call for the longest time is dropped."""
    session_idle_seconds: float = Field(default=3600.0, gt=0)
    """Seconds without a call after which an office is dropped."""


class ReferenceCall(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str
    arguments: str
    """A JSON object."""


class WorkplaceRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")

    ground_truth: list[ReferenceCall]
    """Calls that solve the task."""

    @model_validator(mode="after")
    def _check_reference(self) -> "WorkplaceRunRequest":
        _, problems = replay_calls((call.name, call.arguments) for call in self.ground_truth)
        if problems:
            problem = f"`ground_truth` cannot be done in the office of this folder: {'; '.join(problems[:3])}"
            raise ValueError(f"{problem}; rows for the data of another office need a folder with that data")
        return self


class WorkplaceVerifyRequest(WorkplaceRunRequest, BaseVerifyRequest):
    pass


class WorkplaceVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")

    differing_tables: list[str]
    """Tables in which the office differs from that after the reference calls."""
    refused_calls: list[str] = []
    """Calls of the model that failed and changed nothing."""


class WorkplaceServer(SimpleResourcesServer):
    HOSTING = "cell"

    config: WorkplaceConfig
    _offices: SessionStore[Office] = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        self._offices = SessionStore(
            max_sessions=self.config.max_sessions, idle_seconds=self.config.session_idle_seconds
        )

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        for name, tool in TOOLS.items():
            app.post(f"/{name}", name=name, description=tool.description)(self._endpoint(tool))
        return app

    def _endpoint(self, tool: Tool) -> Callable[[Request, dict[str, Any]], Awaitable[dict[str, str]]]:
        async def run(request: Request, body: dict[str, Any]) -> dict[str, str]:
            office = self._offices.get(request.session[SESSION_ID_KEY])
            if office is None:
                raise HTTPException(409, "this session was not seeded, or it was idle for too long")
            try:
                return {"output": as_text(tool.run(office, body))}
            except ToolError as problem:
                return {"output": f"Error: {problem}."}

        return run

    async def seed_session(self, request: Request, body: BaseSeedSessionRequest) -> BaseSeedSessionResponse:  # noqa: ARG002
        """Give the session a new office."""
        self._offices.put(request.session[SESSION_ID_KEY], Office.new())
        return BaseSeedSessionResponse()

    async def verify(self, request: Request, body: WorkplaceVerifyRequest) -> WorkplaceVerifyResponse:
        """Replay the calls of the model and the reference calls on new offices, compare these and close the session."""
        self._offices.pop(request.session[SESSION_ID_KEY])
        calls = [
            (self.normalize_tool_name(item.name), item.arguments)
            for item in body.response.output
            if isinstance(item, NeMoGymResponseFunctionToolCall)
        ]
        office, problems = replay_calls(calls[:MOST_CALLS])
        expected, _ = replay_calls((call.name, call.arguments) for call in body.ground_truth)
        differing = differing_tables(office, expected)
        verdict = {
            "differing_tables": differing,
            "refused_calls": problems[:20],
            "reward": float(not differing and len(calls) <= MOST_CALLS),
        }
        # The parts of `body` are models already, so that they are not validated again.
        return WorkplaceVerifyResponse.model_validate({**dict(body), **verdict})

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        return compute_pass_majority_metrics(tasks)[0] | compute_subset_metrics(tasks, "category")

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        return headline_metrics(agent_metrics)


VERIFIER_FIXTURE = VerifierFixture(
    server_factory=lambda: offline_server(WorkplaceServer),
    request_model=WorkplaceVerifyRequest,
    cases_path=Path(__file__).parent / "tests" / "verifier_cases.jsonl",
)


# The names of these classes in NeMo Gym, for folders that import or subclass them.
WorkplaceAssistantResourcesServer = WorkplaceServer
WorkplaceAssistantResourcesServerConfig = WorkplaceConfig


if __name__ == "__main__":
    WorkplaceServer.run_webserver()
