"""The provider's own status, told beside ours.

A refused call reaches the caller as 500 (the contract's answer to a failed inner call). The status that the provider
gave is in a header, so that a rate limit can be told from a bug.
"""

import aiohttp
from starlette.types import ASGIApp, Message, Receive, Scope, Send

UPSTREAM_STATUS_HEADER = b"x-nemo-gym-upstream-status"

_SCOPE_KEY = "nemo_gym_upstream_status"


class NoteUpstreamStatus:
    """Inside: remember the status of a refusal on its way out as an exception."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.app(scope, receive, send)
        except aiohttp.ClientResponseError as refusal:
            scope.get(_SCOPE_KEY, []).append(refusal.status)
            raise


class TellUpstreamStatus:
    """Outside, around whatever answers for the exception: put the remembered status on that answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        noted: list[int] = []  # shared by every copy of the scope that is made further in

        async def telling(message: Message) -> None:
            if message["type"] == "http.response.start" and noted:
                header = (UPSTREAM_STATUS_HEADER, str(noted[0]).encode("ascii"))
                message = {**message, "headers": [*message.get("headers", ()), header]}
            await send(message)

        await self.app({**scope, _SCOPE_KEY: noted}, receive, telling)
