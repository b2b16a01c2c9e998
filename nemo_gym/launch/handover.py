"""Sessions live in the cell that began them; a request that reaches another cell is handed to the right one.

Cells share their ports, so the kernel decides who accepts a connection. The session id in the signed cookie begins
with the number of its cell, and every cell has a door where the others knock.
"""

from collections.abc import Callable, Sequence
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from nemo_gym.keys import SESSION_ID_KEY
from nemo_gym.launch.link import Link, LinkedApp
from nemo_gym.serve.failures import FailureMiddleware
from nemo_gym.serve.session import SessionCodec, cell_of, cookie_name, cookie_values, session_secret
from nemo_gym.server_utils import SimpleServer


class Handover:
    """Serves what belongs to this cell and passes on what belongs to another."""

    def __init__(self, app: ASGIApp, server: SimpleServer, cell: int, links: Sequence[Link]) -> None:
        self._app = app
        self._cell = cell
        key = server.get_session_middleware_key()
        self._cookie = cookie_name(key)
        self._codec = SessionCodec(session_secret(), key)
        name = server.config.name
        self._others = [FailureMiddleware(LinkedApp(name, _always(link)), server_name=name) for link in links]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        owner = self._owner(scope) if scope["type"] == "http" else self._cell
        await (self._app if owner == self._cell else self._others[owner])(scope, receive, send)

    def _owner(self, scope: Scope) -> int:
        """The cell that began the request's session; this one when there is no session yet."""
        owner = self._cell
        for cookie in cookie_values(scope, self._cookie):
            session: dict[str, Any] = self._codec.decode(cookie) or {}
            found = cell_of(session.get(SESSION_ID_KEY, ""))
            owner = found if found is not None and found < len(self._others) else owner
        return owner


def _always(link: Link) -> Callable[[], Link]:
    return lambda: link
