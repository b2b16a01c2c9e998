"""Routes of the head server: the instances of a run, its configuration, and the calls its rollouts wait for."""

import os
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Literal

import orjson
from fastapi import FastAPI, Request
from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, Field

from nemo_gym.config.secrets import mask_secrets
from nemo_gym.errors import GymError, ServerUnreachable
from nemo_gym.serve.app import add_liveness, create_app
from nemo_gym.serve.failures import FailureMiddleware
from nemo_gym.transport.blocking_get import get_blocking
from nemo_gym.wire.stored_rollout import RolloutId

RUN_TOKEN_ENV_VAR = "NEMO_GYM_RUN_TOKEN"
RUN_TOKEN_HEADER = "x-nemo-gym-run-token"
"""Processes of one run share this token; the head server shows secrets only to them."""

WAITING_PATH = "/rollouts_waiting_for"
MAX_ROLLOUTS = 100
"""Rollouts per question."""

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


class HeadServerUnreachable(ServerUnreachable, ValueError):
    """No head server answers at its address."""


def run_token_headers() -> dict[str, str]:
    """Return the header that proves membership of the run, if this process has the token."""
    token = os.environ.get(RUN_TOKEN_ENV_VAR)
    return {RUN_TOKEN_HEADER: token} if token else {}


def fetch_config_yaml(host: str, port: int, patience: float) -> str:
    """Fetch the configuration from the head server at this address.

    Raises:
        HeadServerUnreachable: there is no answer, or not that of a head server.
    """
    try:
        status, body = get_blocking(
            host, port, "/global_config_dict_yaml", timeout=patience, headers=run_token_headers(), where="head server"
        )
    except GymError as error:
        raise _unreachable(host, port, str(error)) from error
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


def is_of_this_run(request: Request) -> bool:
    """Return whether the request carries the token of the run; never true without a token."""
    expected = os.environ.get(RUN_TOKEN_ENV_VAR)
    token = request.headers.get(RUN_TOKEN_HEADER)
    return bool(expected and token) and secrets.compare_digest(str(expected).encode(), str(token).encode())


def config_yaml(config: DictConfig, *, with_secrets: bool) -> str:
    """Write the whole configuration as YAML; interpolations stay as written."""
    return OmegaConf.to_yaml(config if with_secrets else mask_secrets(config))


class WaitingFor(BaseModel):
    """The call that one rollout waits for: a server and a path."""

    task: int
    rollout: int
    call: str


async def _no_waiting_calls(rollouts: Sequence[RolloutId]) -> dict[RolloutId, str]:  # noqa: ARG001 - a default
    return {}


def head_app(
    config: Callable[[], DictConfig],
    instances: Callable[[], list[dict[str, Any]]],
    waiting_for: Callable[[Sequence[RolloutId]], Awaitable[dict[RolloutId, str]]] = _no_waiting_calls,
) -> FastAPI:
    """Build the app of the head server. All arguments are called at every request."""
    app = create_app("NeMo Gym head server")

    @app.get("/global_config_dict_yaml")
    async def global_config_dict_yaml(request: Request) -> str:
        return config_yaml(config(), with_secrets=is_of_this_run(request))

    @app.get("/server_instances")
    async def server_instances() -> list[dict[str, Any]]:
        return instances()

    @app.post(WAITING_PATH)
    async def rollouts_waiting_for(
        body: Annotated[list[RolloutId], Field(max_length=MAX_ROLLOUTS)],
    ) -> list[WaitingFor]:
        calls = await waiting_for(body)
        return [WaitingFor(task=task, rollout=rollout, call=call) for (task, rollout), call in calls.items()]

    add_liveness(app)
    app.add_middleware(FailureMiddleware, server_name="head_server")
    return app
