"""Resources servers: tools, session state and verifier of an environment.

A subclass overrides `verify`, marks its tools with `@tool` (or adds them as `POST /<tool_name>` routes after
`super().setup_webserver()`), and stores the state of a rollout under the key `request.session[SESSION_ID_KEY]`, which
the session cookie identifies.
"""

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import Field, PrivateAttr, ValidationError

from nemo_gym.config_types import AggregateMetrics, AggregateMetricsRequest, BaseRunServerInstanceConfig
from nemo_gym.errors import InvalidReward
from nemo_gym.judge import judge_failsafe
from nemo_gym.keys import (
    CLOSE_PATH,
    MCP_METADATA_KEY,
    MCP_SESSION_TOKEN_HEADER,
    NG_FAILURE_CLASS_KEY,
    NG_FAILURE_DETAIL_KEY,
    RESERVED_MCP_TOOL_NAMES,
    SESSION_ID_KEY,
)
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.reward_profile import AggregateMetricsMixin
from nemo_gym.rollout_correlation import RolloutContextMiddleware
from nemo_gym.serve.app import create_app
from nemo_gym.serve.blocking import run_blocking
from nemo_gym.serve.endpoints import answer_error, json_endpoint
from nemo_gym.serve.openings import closing_after, with_opening
from nemo_gym.serve.session_closing import SessionCloser, is_close_hook
from nemo_gym.serve.tool_schema import SessionId
from nemo_gym.serve.tools import SessionLocks, ToolError, add_tool_routes, check_routes, tool, tool_methods
from nemo_gym.server_utils import BaseServer, SimpleServer
from nemo_gym.wire.episode import Opening, Step, image_part, session_seed, text_part
from nemo_gym.wire.run_seed_verify import (
    BaseMultiRewardVerifyResponse,
    BaseRunRequest,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    MCPServerMetadata,
    ReverifyMode,
    SeedSessionBody,
)
from nemo_gym.wire.session_requests import (
    ResourcesCloseSessionRequest,
    ResourcesCloseSessionResponse,
    ResourcesSeedSessionRequest,
    ResourcesSeedSessionResponse,
    ResourcesVerifyRequest,
)

NEMO_GYM_MCP_SESSION_TOKEN_HEADER = MCP_SESSION_TOKEN_HEADER
NEMO_GYM_MCP_METADATA_KEY = MCP_METADATA_KEY

_MCP_PREFIX = "mcp__"


def normalize_tool_name(name: str, server_name: str | None = None) -> str:
    """Return a tool name without the prefix `mcp__<server>__` that MCP clients add.

    If `server_name` is given, only the prefix of that server is removed.
    """
    if not name.startswith(_MCP_PREFIX):
        return name
    if server_name is not None:
        return name.removeprefix(f"{_MCP_PREFIX}{server_name}__")
    _, separator, tool = name.removeprefix(_MCP_PREFIX).partition("__")
    return tool if separator else name


def reward_check(verify: Callable[..., Any], server: str) -> Callable[..., Awaitable[Any]]:
    """Wrap a verify endpoint so that a reward that is not a number is an error of this server, not of its caller.

    A number that is not finite passes: it can be encoded, and the collector rejects it. A failure that `verify` reports
    in its answer is attributed to this server.
    """

    def raise_invalid_reward(error: ValidationError, *_: Any) -> None:
        problems = [problem for problem in error.errors(include_url=False) if problem["loc"] == ("reward",)]
        if not problems:
            raise error
        has_reward = problems[0]["type"] != "missing"
        raise _invalid_reward(problems[0]["input"] if has_reward else None, server) from None

    def check_reward(answer: Any) -> Any:
        is_response = isinstance(answer, Response)
        fields = _json_object(answer) if is_response else answer
        reward = fields.get("reward", 0.0) if isinstance(fields, dict) else getattr(fields, "reward", 0.0)
        if type(reward) is not float:
            if isinstance(reward, str) or (is_response and isinstance(reward, bool)):  # an agent would read 1.0
                raise _invalid_reward(reward, server)
            try:
                float(reward)  # for its error
            except (TypeError, ValueError, OverflowError):
                raise _invalid_reward(reward, server) from None
        if isinstance(answer, dict) and answer.get(NG_FAILURE_CLASS_KEY):
            return {NG_FAILURE_DETAIL_KEY: {"phase": "verify", "whom": server}, **answer}
        return answer

    return answer_error(verify, ValidationError, raise_invalid_reward, check_reward)


def _json_object(response: Response) -> dict[str, Any]:
    """Return the body of a response that is a JSON object; empty for any other response."""
    try:
        content = orjson.loads(getattr(response, "body", b""))
    except (orjson.JSONDecodeError, TypeError):
        return {}
    return content if isinstance(content, dict) else {}


def _invalid_reward(reward: Any, server: str) -> InvalidReward:
    text = repr(reward)
    text = text if len(text) <= 80 else f"{text[:79]}…"
    return InvalidReward(f"verify returned the reward {text}, which is not a usable number", where=server)


class BaseResourcesServerConfig(BaseRunServerInstanceConfig):
    """Configuration fields of every resources server."""

    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.UNKNOWN

    expose_tools_over_mcp: bool = False
    """Also offer the tools of the server over MCP, on `/mcp`."""
    close_timeout_seconds: float = Field(default=30.0, gt=0)
    """A `close` hook is abandoned after this time."""
    close_idle_seconds: float = Field(default=86_400.0, gt=0)
    """A session of a server with a `close` hook is closed after this time without a seed, `@tool` or verify call."""
    tool_errors: Literal["model_sees", "fail"] = "model_sees"
    """A tool that raises: its error is the tool's output and the rollout continues, or the rollout fails."""
    reward_range: tuple[float, float] | None = None
    """Minimum and maximum reward, for example `[0, 1]`; a reward outside the range is a failure (`invalid_reward`)."""


class BaseResourcesServer(BaseServer):
    """A server whose configuration is a `BaseResourcesServerConfig`."""

    config: BaseResourcesServerConfig


class SimpleResourcesServer(BaseResourcesServer, AggregateMetricsMixin, SimpleServer):
    """Base class of resources servers: routes for sessions, verification and metrics."""

    _locks: SessionLocks = PrivateAttr(default_factory=SessionLocks)
    _closer: SessionCloser | None = PrivateAttr(default=None)

    def setup_webserver(self) -> FastAPI:
        """Build the app with the routes of every resources server. Subclasses call this first, then add their tools."""
        app = create_app(title=type(self).__name__)
        self.setup_session_middleware(app)
        app.add_middleware(RolloutContextMiddleware)
        seed: Callable[..., Any] = self.seed_session
        verify = judge_failsafe(reward_check(self.verify, self.config.name))
        tools = self.tool_definitions()
        if self._has_close_hook():
            self._closer = self._make_closer(app)
            verify = closing_after(verify, self._closer)
        if self._closer is not None or tools or type(self).seed_session is not SimpleResourcesServer.seed_session:
            seed = with_opening(seed, tools, self._closer)
        app.post("/seed_session")(json_endpoint(seed))
        app.post("/verify")(json_endpoint(verify))
        app.post("/aggregate_metrics")(json_endpoint(self.aggregate_metrics))
        app.get("/reverify_mode")(self.reverify_mode)
        if self._closer is None:
            app.post(CLOSE_PATH, include_in_schema=False)(json_endpoint(self._close_resources_session))
        add_tool_routes(app, self, self._locks, self._closer)
        return app

    def prepare_webserver(self, global_config: Mapping[str, Any]) -> FastAPI:
        """Build the complete app; refuse a route with the path of a tool."""
        app = super().prepare_webserver(global_config)
        check_routes(app, tool_methods(type(self)), self.config.name)
        return app

    @classmethod
    def tool_definitions(cls, *names: str) -> list[dict[str, Any]]:
        """Return the definitions of the methods with `@tool`, as a model request lists them; all, or those named."""
        methods = tool_methods(cls)
        return [methods[name].definition for name in names or methods]

    async def close(self, session_id: str) -> None:
        """End a session: free what it holds. Called once, after verification, failure, cancellation or shutdown.

        The default is never called. An override may be synchronous and has `close_timeout_seconds`.
        """

    def _has_close_hook(self) -> bool:
        return type(self).close is not SimpleResourcesServer.close and is_close_hook(self.close)

    def _close_hook(self) -> Callable[..., Any]:
        return self.close

    def _make_closer(self, app: FastAPI) -> SessionCloser:
        """Return the object that calls `close`, and add the route by which agents end a session."""
        config = self.config
        closer = SessionCloser(
            self._close_hook(),
            name=config.name,
            timeout=config.close_timeout_seconds,
            idle_seconds=config.close_idle_seconds,
        )
        closer.close_at_shutdown(app)
        app.post(CLOSE_PATH, include_in_schema=False)(self._close_session)
        return closer

    async def _close_session(self, request: Request) -> dict[str, str]:
        """Close the session of an episode that is not verified. Idempotent."""
        if self._closer is not None:
            self._closer.close_later(request.session[SESSION_ID_KEY])
        return {"status": "closing"}

    async def seed_session(self, body: SeedSessionBody) -> BaseSeedSessionResponse | ResourcesSeedSessionResponse:
        """Prepare a session before the first turn. Return an `Opening` to add messages or tools to the conversation.

        A caller that chose the session id sends a `ResourcesSeedSessionRequest` and gets its response.
        """
        session_id = getattr(body, "resources_session_id", None)
        if session_id is None:
            return BaseSeedSessionResponse()
        return ResourcesSeedSessionResponse(resources_session_id=session_id)

    async def close_resources_session(self, body: ResourcesCloseSessionRequest) -> ResourcesCloseSessionResponse:
        """End a session whose id the caller chose. To end an unknown or closed session must succeed.

        An override that cannot free what the session holds must raise, so that the caller tries again.
        """
        return ResourcesCloseSessionResponse(resources_session_id=body.resources_session_id)

    async def _close_resources_session(self, request: Request) -> Any:
        """Answer `POST /close_session` of a server without a `close` hook."""
        fields = await request.json() if await request.body() else {}
        if not fields:
            return {"status": "closed"}
        try:
            body = ResourcesCloseSessionRequest.model_validate(fields)
        except ValidationError as error:
            raise RequestValidationError(error.errors(include_url=False), body=fields) from None
        return await self.close_resources_session(body)

    @abstractmethod
    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        """Return the reward of a finished rollout. An override may also take `request` before `body`."""

    async def reverify_mode(self) -> dict[str, str]:
        """Return the reverify mode: whether stored responses can be verified again without their sessions."""
        return {"reverify_mode": ReverifyMode(self.config.REVERIFY_MODE).value}

    async def get_reverify_mode(self) -> dict[str, str]:
        """Do the same as `reverify_mode`, under its name in NeMo Gym."""
        return await self.reverify_mode()

    def mcp_tools(self, route_tools: list[Any], catchall: Any = None) -> Iterable[Any]:  # noqa: ARG002
        """Return the tools to offer over MCP. The default is `route_tools`, the tools found in the routes."""
        return route_tools

    def mcp_allowed_tools_for_session(self, seed_body: Any) -> Iterable[str] | None:  # noqa: ARG002
        """Return the names of the tools that a session may use over MCP; None means all."""
        return None

    def normalize_tool_name(self, name: str) -> str:
        """Return a tool name without the MCP prefix of this server."""
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
    "Opening",
    "ResourcesCloseSessionRequest",
    "ResourcesCloseSessionResponse",
    "ResourcesSeedSessionRequest",
    "ResourcesSeedSessionResponse",
    "ResourcesVerifyRequest",
    "ReverifyMode",
    "SessionId",
    "SimpleResourcesServer",
    "Step",
    "ToolError",
    "image_part",
    "judge_failsafe",
    "normalize_tool_name",
    "run_blocking",
    "session_seed",
    "text_part",
    "tool",
]
