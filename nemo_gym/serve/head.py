"""The head server's routes: who is there, and what the configuration says."""

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
from nemo_gym.net import blocking
from nemo_gym.serve.app import create_app
from nemo_gym.serve.failures import FailureMiddleware
from nemo_gym.serve.health import add_liveness

RUN_TOKEN_ENV_VAR = "NEMO_GYM_RUN_TOKEN"
RUN_TOKEN_HEADER = "x-nemo-gym-run-token"
"""Processes of one run share this token; only with it the head server shows secrets."""


WAITING_PATH = "/rollouts_waiting_for"
MOST_PLACES = 100
"""Rollouts asked about at once: cells look through all they have under way for each."""

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
    """No head server answers where one is expected."""


def run_token_headers() -> dict[str, str]:
    """The header that proves membership of the run, if this process was given the token."""
    token = os.environ.get(RUN_TOKEN_ENV_VAR)
    return {RUN_TOKEN_HEADER: token} if token else {}


def fetch_config_yaml(host: str, port: int, patience: float) -> str:
    """The configuration that the head server at this address tells.

    Raises:
        HeadServerUnreachable: nobody answers there, or not as a head server would.
    """
    try:
        status, body = blocking.get(
            host, port, "/global_config_dict_yaml", timeout=patience, headers=run_token_headers(), where="head server"
        )
    except GymError as error:
        raise _unreachable(host, port, str(error)) from error
    try:
        text = orjson.loads(body) if status == 200 else None
    except ValueError:
        text = None
    if not isinstance(text, str):
        raise _unreachable(host, port, f"the answer, status {status}, is not a head server's")
    return text


def _unreachable(host: str, port: int, reason: str) -> HeadServerUnreachable:
    return HeadServerUnreachable(
        f"could not connect to the head server at {host}:{port} ({reason})",
        where="head_server",
        fix="start the servers first, or set head_server.host and head_server.port to where they run",
    )


def is_of_this_run(request: Request) -> bool:
    """Whether the request carries the run's token; never true when there is no token."""
    expected = os.environ.get(RUN_TOKEN_ENV_VAR)
    given = request.headers.get(RUN_TOKEN_HEADER)
    return bool(expected and given) and secrets.compare_digest(str(expected).encode(), str(given).encode())


def config_yaml(config: DictConfig, *, with_secrets: bool) -> str:
    """The whole configuration as YAML; interpolations stay as written."""
    return OmegaConf.to_yaml(config if with_secrets else mask_secrets(config))


Place = tuple[int, int]
"""Task and rollout index."""


class WaitingFor(BaseModel):
    """What one rollout waits for right now: a server and a path."""

    task: int
    rollout: int
    call: str


async def _unknown(places: Sequence[Place]) -> dict[Place, str]:  # noqa: ARG001 - the signature of what is asked
    return {}


def head_app(
    config: Callable[[], DictConfig],
    instances: Callable[[], list[dict[str, Any]]],
    waiting_for: Callable[[Sequence[Place]], Awaitable[dict[Place, str]]] = _unknown,
) -> FastAPI:
    """The head server's app. All arguments are asked at every request."""
    app = create_app("NeMo Gym head server")

    @app.get("/global_config_dict_yaml")
    async def global_config_dict_yaml(request: Request) -> str:
        return config_yaml(config(), with_secrets=is_of_this_run(request))

    @app.get("/server_instances")
    async def server_instances() -> list[dict[str, Any]]:
        return instances()

    @app.post(WAITING_PATH)
    async def rollouts_waiting_for(body: Annotated[list[Place], Field(max_length=MOST_PLACES)]) -> list[WaitingFor]:
        found = await waiting_for(body)
        return [WaitingFor(task=task, rollout=rollout, call=call) for (task, rollout), call in found.items()]

    add_liveness(app)
    app.add_middleware(FailureMiddleware, server_name="head_server")
    return app
