"""Routes of the head server: configuration, instances and metrics of a run, and pending calls of its rollouts."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

import orjson
from fastapi import FastAPI, Response
from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, Field

from nemo_gym.config.secrets import mask_secrets
from nemo_gym.errors import GymError, ServerUnreachable
from nemo_gym.keys import NODES_PATH
from nemo_gym.metrics.prometheus_text import CONTENT_TYPE, MetricFamily, format_metrics
from nemo_gym.serve.app import add_liveness, create_app
from nemo_gym.serve.failures import FailureMiddleware
from nemo_gym.transport.blocking_get import get_blocking
from nemo_gym.transport.run_token import RUN_TOKEN_ENV_VAR
from nemo_gym.wire.stored_rollout import RolloutId

WAITING_PATH = "/rollouts_waiting_for"
MAX_ROLLOUTS = 1024
"""Maximum rollouts per status request; the live file of a run asks for `live_file.MAX_QUERIED`."""

MetricSource = Callable[[], Iterable[MetricFamily]]
_metric_sources: list[MetricSource] = []
"""Sources that other parts of this process added with `showing_metrics`."""

ServerStatus = Literal["success", "connection_error", "timeout", "unknown_error"]


class ServerInstanceDisplayConfig(BaseModel):
    """One line of `gym env status`."""

    config_path: str | None = None
    dir_path: str | None = None
    entrypoint: str | None = None
    host: str | None = None
    name: str | None = None
    pid: int | None = None
    port: int | None = None
    process_name: str | None = None
    server_type: str | None = None
    start_time: float | None = None
    status: ServerStatus | None = None
    uptime_seconds: float | None = None
    url: str | None = None


@dataclass(frozen=True)
class NodeState:
    """A node of a run on several machines, as `gym env status` shows it."""

    name: str
    address: str
    cells: int = 0
    in_flight: int = 0
    """Rollouts, or `/run` requests, without an answer."""
    load: float = 0.0
    """Load average of the machine for each of its processors."""
    servers: Mapping[str, str] = field(default_factory=dict)
    """Instance -> base URL."""


class HeadServerUnreachable(ServerUnreachable, ValueError):
    """The head server cannot be reached, or another program answers at its address."""


def fetch_config_yaml(host: str, port: int, timeout: float) -> str:
    """Fetch the configuration from the head server at this address.

    Raises:
        HeadServerUnreachable: no answer within `timeout` seconds, a refusal, or the answer of another program.
    """
    try:
        status, body = get_blocking(host, port, "/global_config_dict_yaml", timeout=timeout, callee="head server")
    except GymError as error:
        raise _unreachable(host, port, str(error)) from error
    if status == 401:
        raise HeadServerUnreachable(
            f"the head server at {host}:{port} requires the token of its run",
            where="head_server",
            fix=f"set {RUN_TOKEN_ENV_VAR} to that token, or run as the user who started the servers",
        )
    try:
        text = orjson.loads(body) if status == 200 else None
    except ValueError:
        text = None
    if not isinstance(text, str):
        raise _unreachable(host, port, f"the answer, status {status}, is not that of a head server")
    return text


def _unreachable(host: str, port: int, reason: str) -> HeadServerUnreachable:
    return HeadServerUnreachable(
        f"could not connect to the head server at {host}:{port} ({reason})",
        where="head_server",
        fix="start the servers first, or set head_server.host and head_server.port to where they run",
    )


class WaitingFor(BaseModel):
    """The pending call of one rollout: server and path."""

    task: int
    rollout: int
    call: str


async def _no_waiting_calls(rollouts: Sequence[RolloutId]) -> dict[RolloutId, str]:  # noqa: ARG001 - signature of `waiting_for`
    return {}


def head_app(
    config: Callable[[], DictConfig],
    instances: Callable[[], list[dict[str, Any]]],
    waiting_for: Callable[[Sequence[RolloutId]], Awaitable[dict[RolloutId, str]]] = _no_waiting_calls,
    nodes: Callable[[], Sequence[NodeState]] = tuple,
    metrics: MetricSource = tuple,
) -> FastAPI:
    """Build the app of the head server. The arguments are called at each request and return the current values."""
    app = create_app("NeMo Gym head server")

    @app.get("/global_config_dict_yaml")
    async def global_config_dict_yaml() -> str:
        return OmegaConf.to_yaml(mask_secrets(config()))

    @app.get("/server_instances")
    async def server_instances() -> list[dict[str, Any]]:
        return instances()

    @app.post(WAITING_PATH)
    async def rollouts_waiting_for(
        body: Annotated[list[RolloutId], Field(max_length=MAX_ROLLOUTS)],
    ) -> list[WaitingFor]:
        calls = await waiting_for(body)
        return [WaitingFor(task=task, rollout=rollout, call=call) for (task, rollout), call in calls.items()]

    @app.get("/metrics")
    async def metrics_of_run() -> Response:
        return Response(_metrics_page(metrics()), media_type=CONTENT_TYPE)

    @app.get(NODES_PATH)
    async def run_nodes() -> list[dict[str, Any]]:
        return [asdict(node) for node in nodes()]

    add_liveness(app)
    app.add_middleware(FailureMiddleware, server_name="head_server")
    return app


@contextmanager
def showing_metrics(source: MetricSource) -> Iterator[None]:
    """Show the metrics of `source` at `/metrics` of this process's head server during the block."""
    _metric_sources.append(source)
    try:
        yield
    finally:
        _metric_sources.remove(source)


def _metrics_page(more: Iterable[MetricFamily]) -> str:
    """Return the current metrics of all sources, and `more`, as the text that Prometheus reads."""
    return format_metrics([*(family for source in _metric_sources for family in source()), *more])
