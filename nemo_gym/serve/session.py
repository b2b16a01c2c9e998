"""Sessions: callers identified by a signed cookie.

`request.session` is a dictionary that always holds `session_id`. Policies:

- `per-session`: the default. The cookie carries the session; it is sent again with every response.
- `stateless`: no cookie is read or written; every request has a new id.
- `shared`: no cookie; every request has the same id.
"""

import base64
import hmac
import os
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterable
from functools import cache
from typing import Any, Literal, get_args
from uuid import NAMESPACE_URL, uuid4, uuid5

import orjson
from itsdangerous import BadData, TimestampSigner
from itsdangerous.signer import SigningAlgorithm
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nemo_gym.errors import ConfigError
from nemo_gym.keys import SESSION_ID_KEY

SessionPolicy = Literal["per-session", "stateless", "shared"]

SESSION_SECRET_ENV_VAR = "NEMO_GYM_SESSION_SECRET"
CELL_ENV_VAR = "NEMO_GYM_CELL"
"""Number of this process among the cells that share ports; session ids begin with it."""
MAX_AGE_SECONDS = 14 * 24 * 60 * 60
REFRESH_SECONDS = 60 * 60
"""A cookie older than this is signed again, so that a session in use does not expire."""
CACHED_COOKIES = 4096
COOKIE_ATTRIBUTES = f"path=/; Max-Age={MAX_AGE_SECONDS}; httponly; samesite=lax"

_ILLEGAL_IN_NAME = re.compile(r"[^A-Za-z0-9!#$%&'*+.^_`|~-]")


@cache
def _random_secret() -> str:
    return secrets.token_urlsafe(32)


def session_secret() -> str:
    """Return the signing secret: `NEMO_GYM_SESSION_SECRET`, shared by the processes of a run, else a random one."""
    return os.environ.get(SESSION_SECRET_ENV_VAR) or _random_secret()


def session_id_prefix() -> str:
    """Return the prefix of session ids: the number of this cell, so that other cells know where the session lives."""
    cell = os.environ.get(CELL_ENV_VAR)
    return f"{cell}." if cell else ""


def cell_of(session_id: str) -> int | None:
    """Return the number of the cell that began a session; None without cells."""
    number, dot, _ = session_id.partition(".")
    return int(number) if dot and number.isdecimal() else None


def cookie_name(key: str) -> str:
    """Return the name of a server's session cookie, in characters that cookie names allow."""
    return _ILLEGAL_IN_NAME.sub("_", key)


def new_session_id() -> str:
    return str(uuid4())


class OneShotHMAC(SigningAlgorithm):
    """HMAC with SHA-1 in one call of OpenSSL, in half the time of itsdangerous' own."""

    def get_signature(self, key: bytes, value: bytes) -> bytes:
        return hmac.digest(key, value, "sha1")


class SessionCodec:
    """Sessions to cookie values and back. Plain sessions are cached: signing costs 8 % of a rollout's CPU."""

    def __init__(self, secret: str, salt: str, clock: Any = time.time) -> None:
        key = TimestampSigner(secret, salt=f"nemo-gym-session:{salt}").derive_key()
        self._signer = TimestampSigner(key, key_derivation="none", algorithm=OneShotHMAC())
        self._clock = clock
        self._cookies: OrderedDict[str, tuple[str, float]] = OrderedDict()  # session id -> cookie, signed at
        self._ids: dict[str, str] = {}  # cookie -> session id

    def decode(self, cookie: str) -> dict[str, Any] | None:
        """Return the session in a cookie; None if the signature is wrong or too old, or it is not a session."""
        cached_id = self._ids.get(cookie)
        if cached_id is not None and self._clock() - self._cookies[cached_id][1] < MAX_AGE_SECONDS:
            return {SESSION_ID_KEY: cached_id}
        try:
            payload = self._signer.unsign(cookie, max_age=MAX_AGE_SECONDS)
            session = orjson.loads(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)))
        except (BadData, ValueError):
            return None
        return session if isinstance(session, dict) and isinstance(session.get(SESSION_ID_KEY), str) else None

    def encode(self, session: dict[str, Any]) -> str:
        """Return the cookie value of a session."""
        if len(session) != 1:
            return self._sign(session)
        session_id = session.get(SESSION_ID_KEY)
        if not isinstance(session_id, str):
            return self._sign(session)
        cached = self._cookies.get(session_id)
        now = self._clock()
        if cached is not None and now - cached[1] < REFRESH_SECONDS:
            self._cookies.move_to_end(session_id)
            return cached[0]
        cookie = self._sign(session)
        self._cache(session_id, cookie, now)
        return cookie

    def _sign(self, session: dict[str, Any]) -> str:
        # Padding is dropped because `=` would make cookie jars quote the value.
        return self._signer.sign(base64.urlsafe_b64encode(orjson.dumps(session)).rstrip(b"=")).decode("ascii")

    def _cache(self, session_id: str, cookie: str, now: float) -> None:
        old = self._cookies.pop(session_id, None)
        if old is not None:
            self._ids.pop(old[0], None)
        self._cookies[session_id] = (cookie, now)
        self._ids[cookie] = session_id
        if len(self._cookies) > CACHED_COOKIES:
            _, (oldest, _) = self._cookies.popitem(last=False)
            self._ids.pop(oldest, None)


def cookie_values(scope: Scope, name: str) -> list[str]:
    """Return the values a request gives for a cookie, in order."""
    values: list[str] = []
    start = f"{name}="
    for header, value in scope["headers"]:
        if header == b"cookie":
            parts = (part.strip() for part in value.decode("latin-1").split(";"))
            values.extend(part[len(start) :].strip('"') for part in parts if part.startswith(start))
    return values


class SessionMiddleware:
    """Give every request its session according to the policy. `key` names the cookie."""

    LAYER = "session"

    def __init__(
        self, app: ASGIApp, key: str, policy: SessionPolicy = "per-session", secret: str | None = None
    ) -> None:
        if policy not in get_args(SessionPolicy):
            raise ConfigError(
                f"session_policy {policy!r} is unknown", where=key, fix="one of " + ", ".join(get_args(SessionPolicy))
            )
        self.app = app
        self.policy = policy
        self.cookie_name = cookie_name(key)
        self.codec = SessionCodec(secret or session_secret(), key)
        self.prefix = session_id_prefix()
        self.shared_id = str(uuid5(NAMESPACE_URL, f"nemo-gym:{key}"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
        elif self.policy == "per-session":
            await self._serve_with_cookie(scope, receive, send)
        else:
            scope["session"] = self.open_session(())
            await self.app(scope, receive, send)

    def _new_id(self) -> str:
        return f"{self.prefix}{new_session_id()}"

    def open_session(self, cookies: Iterable[str]) -> dict[str, Any]:
        """Return the session that one of these cookies carries, else a new one."""
        if self.policy == "shared":
            return {SESSION_ID_KEY: self.shared_id}
        session: dict[str, Any] | None = None
        if self.policy == "per-session":
            for cookie in cookies:
                session = self.codec.decode(cookie) or session
        return session if session is not None else {SESSION_ID_KEY: self._new_id()}

    async def _serve_with_cookie(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["session"] = self.open_session(cookie_values(scope, self.cookie_name))

        async def send_with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), (b"set-cookie", self._set_cookie(scope["session"]))]
                message = {**message, "headers": headers}
            await send(message)

        await self.app(scope, receive, send_with_cookie)

    def _set_cookie(self, session: dict[str, Any]) -> bytes:
        if session:
            value = f"{self.codec.encode(session)}; {COOKIE_ATTRIBUTES}"
        else:  # the handler emptied the session: delete the cookie
            value = "null; path=/; expires=Thu, 01 Jan 1970 00:00:00 GMT; httponly; samesite=lax"
        return f"{self.cookie_name}={value}".encode("latin-1")
