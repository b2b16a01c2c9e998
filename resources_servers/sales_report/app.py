"""Sales report: find the files, compute the figures, write the report, send it to the right person."""

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_validator

from nemo_gym.authoring.verifier_cases import VerifierFixture, offline_server
from nemo_gym.base_resources_server import (
    BaseMultiRewardVerifyResponse,
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    ReverifyMode,
    SimpleResourcesServer,
)
from nemo_gym.openai_utils import NeMoGymResponseFunctionToolCall
from nemo_gym.reward_profile import compute_pass_majority_metrics, headline_metrics
from nemo_gym.serve.session import SessionStore
from nemo_gym.server_utils import SESSION_ID_KEY
from nemo_gym.wire.call_reply import parse_tool_arguments
from resources_servers.sales_report.desk import TOOLS, Desk, ToolError
from resources_servers.sales_report.world import QUARTERS, REGIONS, expected_figures, expected_recipient

MOST_CALLS = 1000
ROUNDING = 0.0501
"""Largest distance of `change_percent` from the exact value; the task asks for one decimal."""
COMPONENTS = (
    "written",
    "revenue",
    "orders",
    "best_product",
    "change_percent",
    "recipient",
    "sent_once",
    "nothing_else",
)


def run_tool(desk: Desk, name: str, arguments: Any) -> Any:
    """Run a tool and return its result.

    Raises:
        ToolError: the call fails; the message helps the model to correct it.
    """
    if name not in TOOLS:
        raise ToolError(f"there is no tool {name!r}")
    model, method, _ = TOOLS[name]
    try:
        checked_arguments = model.model_validate(arguments)
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_input=False)[0]
        raise ToolError(f"{'.'.join(map(str, first['loc'])) or name}: {first['msg']}") from None
    return method(desk, checked_arguments)


def replay_calls(seed: int, calls: Iterable[tuple[str, str]]) -> Desk:
    """Return a new desk after these calls; calls that fail change nothing."""
    desk = Desk(seed)
    for name, arguments in calls:
        if name not in TOOLS or not TOOLS[name][2]:
            continue
        try:
            run_tool(desk, name, parse_tool_arguments(arguments))
        except (ToolError, ValueError):
            continue
    return desk


def grade_components(desk: Desk, seed: int, region: str, quarter: str) -> dict[str, float]:
    """Grade the parts of the work: on the report that was sent, or on its draft if none was sent."""
    expected = expected_figures(seed, region, quarter)
    key = (region, quarter)
    sent = [one for one in desk.sent if (one.region, one.quarter) == key]
    figures = sent[0].figures if sent else desk.drafts.get(key)
    is_done = {
        "written": figures is not None,
        "revenue": figures is not None and figures.revenue == expected.revenue,
        "orders": figures is not None and figures.orders == expected.orders,
        "best_product": figures is not None and figures.best_product == expected.best_product,
        "change_percent": figures is not None and abs(figures.change_percent - expected.change_percent) <= ROUNDING,
        "recipient": bool(sent) and all(one.recipient == expected_recipient(seed, region) for one in sent),
        "sent_once": len(sent) == 1,
        "nothing_else": figures is not None and set(desk.drafts) <= {key} and len(desk.sent) == len(sent),
    }
    return {name: float(is_done[name]) for name in COMPONENTS}


class SalesReportConfig(BaseResourcesServerConfig):
    REVERIFY_MODE = ReverifyMode.STATELESS

    max_sessions: int = Field(default=10_000, ge=1)
    """Largest number of desks; beyond it, the desk without a call for the longest time is dropped."""
    session_idle_seconds: float = Field(default=3600.0, gt=0)
    """Seconds without a call after which a desk is dropped."""


class SalesTask(BaseModel):
    world_seed: int = Field(ge=0, lt=2**63)
    """Determines the files and people of the company."""
    region: str
    quarter: str

    @field_validator("region")
    @classmethod
    def _check_region(cls, value: str) -> str:
        if value not in REGIONS:
            raise ValueError(f"{value!r} is not one of {', '.join(REGIONS)}")
        return value

    @field_validator("quarter")
    @classmethod
    def _check_quarter(cls, value: str) -> str:
        if value not in QUARTERS[1:]:
            raise ValueError(f"{value!r} is not one of {', '.join(QUARTERS[1:])}")
        return value


class SalesSeedRequest(SalesTask, BaseSeedSessionRequest):
    pass


class SalesRunRequest(SalesTask, BaseRunRequest):
    model_config = ConfigDict(extra="allow")


class SalesVerifyRequest(SalesRunRequest, BaseVerifyRequest):
    pass


class SalesVerifyResponse(BaseMultiRewardVerifyResponse):
    model_config = ConfigDict(extra="allow")


class SalesReportServer(SimpleResourcesServer):
    HOSTING = "cell"

    config: SalesReportConfig
    _desks: SessionStore[Desk] = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        self._desks = SessionStore(max_sessions=self.config.max_sessions, idle_seconds=self.config.session_idle_seconds)

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        for name, (model, _, _) in TOOLS.items():
            app.post(f"/{name}", name=name, description=model.__doc__)(self._endpoint(name))
        return app

    def _endpoint(self, name: str) -> Callable[[Request, dict[str, Any]], Awaitable[dict[str, Any]]]:
        async def run(request: Request, body: dict[str, Any]) -> dict[str, Any]:
            desk = self._desks.get(request.session[SESSION_ID_KEY])
            if desk is None:
                raise HTTPException(409, "this session was not seeded, or it was idle for too long")
            try:
                return {"output": run_tool(desk, name, body)}
            except ToolError as problem:
                return {"error": str(problem)}

        return run

    async def seed_session(self, request: Request, body: SalesSeedRequest) -> BaseSeedSessionResponse:
        """Give the session a new desk in the company of the row."""
        self._desks.put(request.session[SESSION_ID_KEY], Desk(body.world_seed))
        return BaseSeedSessionResponse()

    async def verify(self, request: Request, body: SalesVerifyRequest) -> SalesVerifyResponse:
        """Replay the calls of the model on a new desk and grade its final state; all parts must be right."""
        self._desks.pop(request.session[SESSION_ID_KEY])
        calls = [
            (self.normalize_tool_name(item.name), item.arguments)
            for item in body.response.output
            if isinstance(item, NeMoGymResponseFunctionToolCall)
        ]
        desk = replay_calls(body.world_seed, calls[:MOST_CALLS])
        parts = grade_components(desk, body.world_seed, body.region, body.quarter)
        is_right = all(parts.values()) and len(calls) <= MOST_CALLS
        return SalesVerifyResponse.model_validate({**dict(body), "reward_components": parts, "reward": float(is_right)})

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        """Return pass@k and the share of rollouts in which each part was right."""
        parts = [rollout["reward_components"] for task in tasks for rollout in task if "reward_components" in rollout]
        shares = {f"component/{name}": sum(one[name] for one in parts) / len(parts) for name in COMPONENTS if parts}
        return compute_pass_majority_metrics(tasks)[0] | shares

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        shares = {key: agent_metrics[key] for key in agent_metrics if key.startswith("component/")}
        return headline_metrics(agent_metrics) | shares


VERIFIER_FIXTURE = VerifierFixture(
    server_factory=lambda: offline_server(SalesReportServer),
    request_model=SalesVerifyRequest,
    cases_path=Path(__file__).parent / "tests" / "verifier_cases.jsonl",
)


if __name__ == "__main__":
    SalesReportServer.run_webserver()
