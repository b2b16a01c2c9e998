"""What a session lends to an agent: tools over HTTP or over the Model Context Protocol, and a sandbox."""

from typing import Annotated, Any, Literal

from pydantic import Field

from nemo_gym.wire.episode_task import NAME_PATTERN, EpisodeModel

_NAME = Annotated[str, Field(pattern=NAME_PATTERN)]


class DirectHTTPToolAccess(EpisodeModel):
    """Tools at `<base_url>/<tool name>`. A required access that cannot be established fails the seed."""

    kind: Literal["direct_http"] = "direct_http"
    name: _NAME
    required: bool
    base_url: str
    cookies: dict[str, str] = {}
    headers: dict[str, str] = {}


class MCPStreamableHTTPConnection(EpisodeModel):
    transport: Literal["streamable_http"] = "streamable_http"
    url: str
    headers: dict[str, str] = {}


class MCPToolAccess(EpisodeModel):
    """Tools of an MCP server."""

    kind: Literal["mcp"] = "mcp"
    name: _NAME
    required: bool
    connection: MCPStreamableHTTPConnection


ToolAccess = Annotated[DirectHTTPToolAccess | MCPToolAccess, Field(discriminator="kind")]


class DirectSandboxConnection(EpisodeModel):
    """A sandbox of the provider in a top-level sandbox block; `descriptor` is from `AsyncSandbox.serialize`."""

    kind: Literal["direct"] = "direct"
    provider_config_ref: str
    descriptor: dict[str, Any]


class SandboxAccess(EpisodeModel):
    """A sandbox that another server started: the borrower uses it, its creator stops it."""

    connection: DirectSandboxConnection
    workdir: str | None = None
