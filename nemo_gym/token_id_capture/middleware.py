"""ASGI middleware of model servers for requests under the capture prefix that reach no generating endpoint.

Such a request could generate tokens that the capture does not see, so it marks its rollout, unless the server declares
that the route generates nothing. Redirects keep the capture prefix.
"""

from collections.abc import Collection
from urllib.parse import urlsplit

from nemo_gym.serve.correlation import (
    ROLLOUT_PREFIX_SCOPE_KEY,
    ROLLOUT_PREFIX_START,
    current_rollout_id,
    current_token_capture,
    is_model_endpoint,
)
from nemo_gym.token_id_capture.context import CaptureContext, context_for, mark_incomplete
from nemo_gym.transport.asgi import ASGIApp, Message, Receive, Send

UNSERVED_STATUSES = (404, 405, 307, 308)
"""Answers of a router that called no handler: no such route, or the same request is to be sent elsewhere."""


class UncapturedRequestMiddleware:
    """Marks the rollouts of requests that may have generated tokens outside the capture."""

    def __init__(
        self, app: ASGIApp, template: CaptureContext, non_generating: Collection[tuple[str, str]] = frozenset()
    ) -> None:
        self.app = app
        self.template = template
        self.non_generating = frozenset((method.upper(), path) for method, path in non_generating)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve a request; mark its rollout if a handler may have answered it."""
        rollout_id = current_rollout_id()
        if scope["type"] != "http" or not current_token_capture() or rollout_id is None:
            await self.app(scope, receive, send)
            return
        statuses: list[int] = []

        async def send_and_note(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
                message = {**message, "headers": _with_prefix(message.get("headers", []), scope)}
            await send(message)

        method, path = scope["method"], scope["path"]
        is_known = (method == "POST" and is_model_endpoint(path)) or (method, path) in self.non_generating
        try:
            await self.app(scope, receive, send_and_note)
        except BaseException:
            if not is_known:
                await self._mark(rollout_id, f"{method} {path} failed outside the capture")
            raise
        if not is_known and (not statuses or statuses[0] not in UNSERVED_STATUSES):
            await self._mark(rollout_id, f"{method} {path} is not captured and may have generated tokens")

    async def _mark(self, rollout_id: str, reason: str) -> None:
        await mark_incomplete(context_for(self.template, rollout_id), reason)


def _with_prefix(headers: list[tuple[bytes, bytes]], scope: Message) -> list[tuple[bytes, bytes]]:
    """Return the headers with the capture prefix in a `Location` on this server."""
    prefix = scope.get(ROLLOUT_PREFIX_SCOPE_KEY)
    if not prefix or not any(name.lower() == b"location" for name, _ in headers):
        return headers
    host = next((value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"host"), "")
    return [
        (name, _relocate(value.decode("latin-1"), prefix, host).encode("latin-1"))
        if name.lower() == b"location"
        else (name, value)
        for name, value in headers
    ]


def _relocate(location: str, prefix: str, host: str) -> str:
    parts = urlsplit(location)
    is_here = parts.netloc == host if parts.netloc else location.startswith("/")
    if not is_here or parts.path.startswith(ROLLOUT_PREFIX_START):
        return location
    return parts._replace(path=prefix + parts.path).geturl()
