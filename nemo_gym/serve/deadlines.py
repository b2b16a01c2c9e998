"""The caller's deadline and allowance, taken from their headers and kept for everything this request calls."""

from starlette.types import ASGIApp, Receive, Scope, Send

from nemo_gym.errors import DeadlineExceeded
from nemo_gym.keys import DEADLINE_HEADER
from nemo_gym.net import allowance, deadline
from nemo_gym.net.handed import LOCAL_CALL

_HEADER = DEADLINE_HEADER.encode("ascii")
_ALLOWANCE = allowance.ALLOWANCE_HEADER.encode("ascii")


class DeadlineMiddleware:
    """Serve a request only as long as its caller waits for it.

    When the time is over the handler is cancelled and `DeadlineExceeded` raised: nobody would read its answer.
    """

    LETS_BODIES_PASS = True
    SHORT_WAY = "deadline"

    def __init__(self, app: ASGIApp, server_name: str = "") -> None:
        self.app = app
        self.server_name = server_name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        seconds = _seconds_left(scope) if scope["type"] == "http" else None
        if seconds is None:
            await self.app(scope, receive, send)
            return
        with allowance.using(_allowance(scope)):
            await self._serve(seconds, scope, receive, send)

    async def _serve(self, seconds: float, scope: Scope, receive: Receive, send: Send) -> None:
        if LOCAL_CALL in scope:  # the caller's own clock cancels this very task
            with deadline.within(seconds):
                await self.app(scope, receive, send)
            return
        try:
            with deadline.Timer(seconds) as timer:
                await self.app(scope, receive, send)
        except TimeoutError as error:
            if not timer.has_rung:
                raise
            raise DeadlineExceeded(
                f"{scope['method']} {scope['path']} was not done within the {seconds:.1f} s its caller allowed",
                where=self.server_name or None,
            ) from error


def _seconds_left(scope: Scope) -> float | None:
    for name, value in scope["headers"]:
        if name == _HEADER:
            return deadline.from_header(value)
    return None


def _allowance(scope: Scope) -> allowance.Allowance | None:
    for name, value in scope["headers"]:
        if name == _ALLOWANCE:
            return allowance.from_header(value)
    return None
