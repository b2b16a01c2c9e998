"""Resources servers: the tools of an environment, the state of each session, and the verifier.

A subclass overrides `verify`, adds tools as `POST /<tool_name>` routes after `super().setup_webserver()`, and keeps
the state of one rollout under `request.session[SESSION_ID_KEY]`.
"""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

from fastapi import FastAPI

from nemo_gym.config_types import AggregateMetrics, AggregateMetricsRequest, BaseRunServerInstanceConfig
from nemo_gym.judge import judge_failsafe
from nemo_gym.keys import MCP_METADATA_KEY, MCP_SESSION_TOKEN_HEADER, RESERVED_MCP_TOOL_NAMES
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.reward_profile import AggregateMetricsMixin
from nemo_gym.rollout_correlation import RolloutContextMiddleware
from nemo_gym.serve.app import create_app
from nemo_gym.serve.endpoints import json_endpoint
from nemo_gym.server_utils import BaseServer, SimpleServer
from nemo_gym.wire.tasks import (
    BaseMultiRewardVerifyResponse,
    BaseRunRequest,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    MCPServerMetadata,
    ReverifyMode,
)

NEMO_GYM_MCP_SESSION_TOKEN_HEADER = MCP_SESSION_TOKEN_HEADER
NEMO_GYM_MCP_METADATA_KEY = MCP_METADATA_KEY

_MCP_PREFIX = "mcp__"


def normalize_tool_name(name: str, server_name: str | None = None) -> str:
    """Return the name of a tool without the `mcp__<server>__` that MCP clients put before it.

    With `server_name` only that server's prefix is removed; without, any server's.
    """
    if not name.startswith(_MCP_PREFIX):
        return name
    if server_name is not None:
        return name.removeprefix(f"{_MCP_PREFIX}{server_name}__")
    _, separator, tool = name.removeprefix(_MCP_PREFIX).partition("__")
    return tool if separator else name


class BaseResourcesServerConfig(BaseRunServerInstanceConfig):
    """Configuration fields of every resources server."""

    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.UNKNOWN

    expose_tools_over_mcp: bool = False
    """Offer the server's tools on `/mcp` as well."""
    reward_range: tuple[float, float] | None = None
    """Lowest and highest reward, like `[0, 1]`; a rollout with another is a failure (`invalid_reward`)."""


class BaseResourcesServer(BaseServer):
    """A server with the configuration of a resources server."""

    config: BaseResourcesServerConfig


class SimpleResourcesServer(BaseResourcesServer, AggregateMetricsMixin, SimpleServer):
    """The base of resources servers: sessions, verification and metrics behind HTTP."""

    def setup_webserver(self) -> FastAPI:
        """Build the app with the routes of every resources server. Subclasses call this first, then add their tools."""
        app = create_app(title=type(self).__name__)
        self.setup_session_middleware(app)
        app.add_middleware(RolloutContextMiddleware)
        app.post("/seed_session")(json_endpoint(self.seed_session))
        app.post("/verify")(json_endpoint(judge_failsafe(self.verify)))
        app.post("/aggregate_metrics")(json_endpoint(self.aggregate_metrics))
        app.get("/reverify_mode")(self.reverify_mode)
        return app

    async def seed_session(self, body: BaseSeedSessionRequest) -> BaseSeedSessionResponse:  # noqa: ARG002
        """Prepare a session before the first turn. Does nothing unless overridden."""
        return BaseSeedSessionResponse()

    @abstractmethod
    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        """Give the finished rollout its reward. May also take `request` before `body`."""

    async def reverify_mode(self) -> dict[str, str]:
        """Report whether stored responses can be verified again without their sessions."""
        return {"reverify_mode": ReverifyMode(self.config.REVERIFY_MODE).value}

    def mcp_tools(self, harvested: list[Any], catchall: Any = None) -> Iterable[Any]:  # noqa: ARG002
        """Return the tools to offer over MCP: those of the routes, unless overridden."""
        return harvested

    def mcp_allowed_tools_for_session(self, seed_body: Any) -> Iterable[str] | None:  # noqa: ARG002
        """Return the names of the tools one session may use over MCP; None means all."""
        return None

    def normalize_tool_name(self, name: str) -> str:
        """Return the name of a tool without this server's MCP prefix."""
        return normalize_tool_name(name, self.config.name)


__all__ = [
    "NEMO_GYM_MCP_METADATA_KEY",
    "NEMO_GYM_MCP_SESSION_TOKEN_HEADER",
    "RESERVED_MCP_TOOL_NAMES",
    "AggregateMetrics",
    "AggregateMetricsRequest",
    "BaseMultiRewardVerifyResponse",
    "BaseResourcesServer",
    "BaseResourcesServerConfig",
    "BaseRunRequest",
    "BaseSeedSessionRequest",
    "BaseSeedSessionResponse",
    "BaseVerifyRequest",
    "BaseVerifyResponse",
    "MCPServerMetadata",
    "NeMoGymResponse",
    "NeMoGymResponseCreateParamsNonStreaming",
    "ReverifyMode",
    "SimpleResourcesServer",
    "judge_failsafe",
    "normalize_tool_name",
]
