"""How an agent reaches the tools of a session: over HTTP directly, or over the Model Context Protocol."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

_NAME = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class _AccessModel(BaseModel):
    model_config = ConfigDict(extra="forbid")


class DirectHTTPToolAccess(_AccessModel):
    """Tools at `<base_url>/<tool name>`. A required access that cannot be established fails the seed."""

    kind: Literal["direct_http"] = "direct_http"
    name: _NAME
    required: bool
    base_url: str
    cookies: dict[str, str] = {}
    headers: dict[str, str] = {}


class MCPStreamableHTTPConnection(_AccessModel):
    transport: Literal["streamable_http"] = "streamable_http"
    url: str
    headers: dict[str, str] = {}


class MCPToolAccess(_AccessModel):
    """Tools of an MCP server."""

    kind: Literal["mcp"] = "mcp"
    name: _NAME
    required: bool
    connection: MCPStreamableHTTPConnection


ToolAccess = Annotated[DirectHTTPToolAccess | MCPToolAccess, Field(discriminator="kind")]
