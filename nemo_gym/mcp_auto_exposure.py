# mypy: implicit-reexport
# ruff: noqa: F401 - the imported names are the public names of this module
"""Tools over the Model Context Protocol under their public names."""

from nemo_gym.keys import MCP_SESSION_TOKEN_HEADER as NEMO_GYM_MCP_SESSION_TOKEN_HEADER
from nemo_gym.keys import MCP_SESSION_TOKEN_HEADER as TOKEN_HEADER
from nemo_gym.serve.mcp import (
    MCPExposureError,
    MCPTool,
    bind_route,
    call_direct,
    harvest_tools,
    install_auto_exposure,
    maybe_auto_expose,
)
