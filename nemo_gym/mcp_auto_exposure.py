"""Tools over the Model Context Protocol (MCP). Re-exports `nemo_gym.serve.mcp`."""

from nemo_gym.serve.mcp import (
    MCPExposureError,
    MCPTool,
    bind_route,
    call_direct,
    harvest_tools,
    install_auto_exposure,
    maybe_auto_expose,
)

__all__ = [
    "MCPExposureError",
    "MCPTool",
    "bind_route",
    "call_direct",
    "harvest_tools",
    "install_auto_exposure",
    "maybe_auto_expose",
]
