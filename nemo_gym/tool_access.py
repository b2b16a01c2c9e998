"""How an agent reaches the tools of a session: the public names."""

from nemo_gym.wire.session_access import DirectHTTPToolAccess as DirectHTTPToolAccess
from nemo_gym.wire.session_access import MCPStreamableHTTPConnection as MCPStreamableHTTPConnection
from nemo_gym.wire.session_access import MCPToolAccess as MCPToolAccess
from nemo_gym.wire.session_access import ToolAccess as ToolAccess
