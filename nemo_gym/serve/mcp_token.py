"""The token with which an MCP client shows which session it acts for, and what it may use there."""

from collections.abc import Iterable
from dataclasses import dataclass

from itsdangerous import BadData, URLSafeTimedSerializer

from nemo_gym.serve.session import MAX_AGE_SECONDS, session_secret

SALT = "nemo-gym-mcp-session-token"


@dataclass(frozen=True)
class SessionGrant:
    """What a token says."""

    session_id: str
    tools: tuple[str, ...] | None = None
    """Names of the tools this session may use; None means all."""

    def allows(self, tool: str) -> bool:
        return self.tools is None or tool in self.tools


class TokenSigner:
    """Grants to tokens and back, with the secret that session cookies are signed with.

    `key` tells the servers of a run apart: a token is good for the one that gave it.
    """

    def __init__(self, key: str, secret: str | None = None) -> None:
        self._serializer = URLSafeTimedSerializer(secret or session_secret(), salt=f"{SALT}:{key}")

    def sign(self, session_id: str, tools: Iterable[str] | None = None) -> str:
        """A token for one session."""
        return str(self._serializer.dumps({"sid": session_id, "tools": None if tools is None else list(tools)}))

    def verify(self, token: str) -> SessionGrant | None:
        """What the token grants; None if this server did not give it in the last days."""
        try:
            said = self._serializer.loads(token, max_age=MAX_AGE_SECONDS)
        except BadData:
            return None
        tools = said["tools"]
        return SessionGrant(session_id=said["sid"], tools=None if tools is None else tuple(tools))
