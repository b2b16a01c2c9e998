"""Sales report: find the files, compute the figures, write the report, send it to the right person."""

import json
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_validator

from nemo_gym.authoring.verifier_fixture import VerifierFixture, offline_server
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
from nemo_gym.reward_profile import compute_pass_majority_metrics, highest_k_metrics
from nemo_gym.serve.session_store import SessionStore
from nemo_gym.server_utils import SESSION_ID_KEY
from resources_servers.sales_report.desk import TOOLS, Desk, Refused
from resources_servers.sales_report.world import QUARTERS, REGIONS, right_figures, right_recipient

MOST_CALLS = 1000
ROUNDING = 0.0501
"""How far `change_percent` may be from the exact value: one decimal is asked for."""
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


def used(desk: Desk, name: str, arguments: Any) -> Any:
    """What a tool answers.

    Raises:
        Refused: with a sentence the model can act on.
    """
    if name not in TOOLS:
        raise Refused(f"there is no tool {name!r}")
    takes, does, _ = TOOLS[name]
    try:
        given = takes.model_validate(arguments)
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_input=False)[0]
        raise Refused(f"{'.'.join(map(str, first['loc'])) or name}: {first['msg']}") from None
    return does(desk, given)


def after(seed: int, calls: Iterable[tuple[str, str]]) -> Desk:
    """A fresh desk after these calls; those that cannot be done change nothing."""
    desk = Desk(seed)
    for name, arguments in calls:
        if name not in TOOLS or not TOOLS[name][2]:
            continue
        try:
            used(desk, name, json.loads(arguments or "{}"))
        except (Refused, ValueError, RecursionError):
            continue
    return desk


def components(desk: Desk, seed: int, region: str, quarter: str) -> dict[str, float]:
    """Which parts of the work are done: the report as it was sent, or its draft when nothing was."""
    wanted = right_figures(seed, region, quarter)
    about = (region, quarter)
    sent = [one for one in desk.sent if (one.region, one.quarter) == about]
    found = sent[0].figures if sent else desk.drafts.get(about)
    done = {
        "written": found is not None,
        "revenue": found is not None and found.revenue == wanted.revenue,
        "orders": found is not None and found.orders == wanted.orders,
        "best_product": found is not None and found.best_product == wanted.best_product,
        "change_percent": found is not None and abs(found.change_percent - wanted.change_percent) <= ROUNDING,
        "recipient": bool(sent) and all(one.recipient == right_recipient(seed, region) for one in sent),
        "sent_once": len(sent) == 1,
        "nothing_else": found is not None and set(desk.drafts) <= {about} and len(desk.sent) == len(sent),
    }
    return {name: float(done[name]) for name in COMPONENTS}


class SalesReportConfig(BaseResourcesServerConfig):
    REVERIFY_MODE = ReverifyMode.STATELESS

    max_sessions: int = Field(default=10_000, ge=1)
    """Desks kept at once; beyond it the one left alone longest is dropped."""
    session_idle_seconds: float = Field(default=3600.0, gt=0)
    """A desk without a call for so long is dropped."""


class SalesTask(BaseModel):
    world_seed: int = Field(ge=0, lt=2**63)
    """Decides the company's files and people."""
    region: str
    quarter: str

    @field_validator("region")
    @classmethod
    def _is_a_region(cls, value: str) -> str:
        if value not in REGIONS:
            raise ValueError(f"{value!r} is not one of {', '.join(REGIONS)}")
        return value

    @field_validator("quarter")
    @classmethod
    def _has_one_before(cls, value: str) -> str:
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
        self._desks = SessionStore(most=self.config.max_sessions, idle_seconds=self.config.session_idle_seconds)

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        for name, (takes, _, _) in TOOLS.items():
            app.post(f"/{name}", name=name, description=takes.__doc__)(self._endpoint(name))
        return app

    def _endpoint(self, name: str) -> Callable[[Request, dict[str, Any]], Awaitable[dict[str, Any]]]:
        async def run(request: Request, body: dict[str, Any]) -> dict[str, Any]:
            desk = self._desks.get(request.session[SESSION_ID_KEY])
            if desk is None:
                raise HTTPException(409, "this session was not seeded, or it was left alone for too long")
            try:
                return {"output": used(desk, name, body)}
            except Refused as problem:
                return {"error": str(problem)}

        return run

    async def seed_session(self, request: Request, body: SalesSeedRequest) -> BaseSeedSessionResponse:
        """A fresh desk in the row's company."""
        self._desks.put(request.session[SESSION_ID_KEY], Desk(body.world_seed))
        return BaseSeedSessionResponse()

    async def verify(self, request: Request, body: SalesVerifyRequest) -> SalesVerifyResponse:
        """Play the model's calls from a fresh desk and look at what is left. All parts have to be right."""
        self._desks.pop(request.session[SESSION_ID_KEY])
        calls = [
            (self.normalize_tool_name(item.name), item.arguments)
            for item in body.response.output
            if isinstance(item, NeMoGymResponseFunctionToolCall)
        ]
        desk = after(body.world_seed, calls[:MOST_CALLS])
        parts = components(desk, body.world_seed, body.region, body.quarter)
        right = all(parts.values()) and len(calls) <= MOST_CALLS
        return SalesVerifyResponse.model_validate({**dict(body), "reward_components": parts, "reward": float(right)})

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        """pass@k, and how often each part was right."""
        parts = [rollout["reward_components"] for task in tasks for rollout in task if "reward_components" in rollout]
        shares = {f"component/{name}": sum(one[name] for one in parts) / len(parts) for name in COMPONENTS if parts}
        return compute_pass_majority_metrics(tasks)[0] | shares

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        shown = {key: agent_metrics[key] for key in agent_metrics if key.startswith("component/")}
        means = {key: agent_metrics[key] for key in ("mean/reward",) if key in agent_metrics}
        return means | highest_k_metrics(agent_metrics, "pass@{k}") | shown


VERIFIER_FIXTURE = VerifierFixture(
    server_factory=lambda: offline_server(SalesReportServer),
    request_model=SalesVerifyRequest,
    cases_path=Path(__file__).parent / "tests" / "verifier_cases.jsonl",
)


if __name__ == "__main__":
    SalesReportServer.run_webserver()
