"""Requests of a session reach the cell that has its state, whichever cell accepted the connection."""

from types import SimpleNamespace
from typing import Any

import pytest

from nemo_gym.keys import SESSION_ID_KEY
from nemo_gym.launch.cell import SessionRouter
from nemo_gym.serve.mcp import TokenSigner
from nemo_gym.serve.session import SessionCodec, session_secret
from nemo_gym.transport.cell_link import CellLink

KEY = "weather"
COOKIE = SessionCodec(session_secret(), KEY).encode({SESSION_ID_KEY: "1.ab-cd.x"})
TOKEN = TokenSigner(KEY).sign("1.ab-cd.x")


@pytest.mark.parametrize(
    ("headers", "cell"),
    [
        ([(b"cookie", f"{KEY}={COOKIE}".encode())], 1),
        ([(b"x-nemo-gym-session-token", TOKEN.encode())], 1),
        ([(b"x-nemo-gym-session-token", TokenSigner("other").sign("1.ab-cd.x").encode())], 0),
        ([(b"x-nemo-gym-session-token", TokenSigner(KEY).sign("7.ab-cd.x").encode())], 0),
        ([(b"x-nemo-gym-session-token", b"\xff forged")], 0),
        ([], 0),
    ],
)
async def test_a_request_goes_to_the_cell_of_its_cookie_or_mcp_token(
    headers: list[tuple[bytes, bytes]], cell: int
) -> None:
    """Programs that call tools over MCP have no cookie, and half of their calls arrive at the wrong cell of two."""
    links = [CellLink(f"/nowhere/{number}", "token", f"cell {number}") for number in range(2)]
    server: Any = SimpleNamespace(config=SimpleNamespace(name=KEY), get_session_middleware_key=lambda: KEY)

    async def app(*_: Any) -> None:
        """Serve nothing."""

    router = SessionRouter(app, server, 0, links)

    assert router._owner({"type": "http", "headers": headers}) == cell
