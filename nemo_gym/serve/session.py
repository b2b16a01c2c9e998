"""Sessions: who is calling, told by a signed cookie.

`request.session` is a dictionary that always holds `session_id`. Policies:

- `per-session`: the default. The cookie carries the session; it is sent again with every response.
- `stateless`: no cookie is read or written; every request has an id of its own.
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
from uuid import NAMESPACE_URL, uuid5

import orjson
from itsdangerous import BadData, TimestampSigner, want_bytes
from itsdangerous.encoding import base64_encode, int_to_bytes
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nemo_gym.errors import ConfigError
from nemo_gym.keys import SESSION_ID_KEY

SessionPolicy = Literal["per-session", "stateless", "shared"]

SESSION_SECRET_ENV_VAR = "NEMO_GYM_SESSION_SECRET"
CELL_ENV_VAR = "NEMO_GYM_CELL"
"""The number of this process among cells that share ports; a session id then begins with it."""
MAX_AGE_SECONDS = 14 * 24 * 60 * 60
REFRESH_SECONDS = 60 * 60
"""A cookie older than this is signed anew, so that a session in use does not expire."""
REMEMBERED_COOKIES = 4096
COOKIE_ATTRIBUTES = f"path=/; Max-Age={MAX_AGE_SECONDS}; httponly; samesite=lax"

_ILLEGAL_IN_NAME = re.compile(r"[^A-Za-z0-9!#$%&'*+.^_`|~-]")


@cache
def _secret_of_this_process() -> str:
    return secrets.token_urlsafe(32)


def session_secret() -> str:
    """What cookies are signed with: `NEMO_GYM_SESSION_SECRET`, shared by the processes of a run, else random."""
    return os.environ.get(SESSION_SECRET_ENV_VAR) or _secret_of_this_process()


def session_id_prefix() -> str:
    """What session ids begin with: in a cell its number, so that others know whose session it is."""
    cell = os.environ.get(CELL_ENV_VAR)
    return f"{cell}." if cell else ""


def cell_of(session_id: str) -> int | None:
    """The number of the cell that began a session; None where there are no cells."""
    number, dot, _ = session_id.partition(".")
    return int(number) if dot and number.isdecimal() else None


def cookie_name(key: str) -> str:
    """The name of a server's session cookie, made of characters a cookie may have."""
    return _ILLEGAL_IN_NAME.sub("_", key)


def new_session_id() -> str:
    """A random UUID (version 4), written without the detour over its class: every rollout begins with one."""
    digits = os.urandom(16).hex()
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


class _Signer(TimestampSigner):
    """Derives its key once, because the secret does not change, and begins each signature where that has led.

    The signatures are those of its base class: HMAC with SHA-1, in URL-safe base 64 without padding.
    """

    _derived: bytes | None = None
    _keyed: hmac.HMAC | None = None
    _stamp: tuple[int, bytes] = (0, b"")

    def derive_key(self, secret_key: str | bytes | None = None) -> bytes:
        if secret_key is not None and secret_key != self.secret_key:
            return super().derive_key(secret_key)
        if self._derived is None:
            self._derived = super().derive_key(secret_key)
        return self._derived

    def sign(self, value: str | bytes) -> bytes:
        now = self.get_timestamp()
        if now != self._stamp[0]:  # all cookies of one second say the same
            self._stamp = (now, base64_encode(int_to_bytes(now)))
        signed = self.sep.join((want_bytes(value), self._stamp[1]))
        return self.sep.join((signed, self.get_signature(signed)))

    def get_signature(self, value: str | bytes) -> bytes:
        if self._keyed is None:
            self._keyed = hmac.new(self.derive_key(), digestmod="sha1")
        signing = self._keyed.copy()
        signing.update(want_bytes(value))
        return base64.urlsafe_b64encode(signing.digest()).rstrip(b"=")


class SessionCodec:
    """Sessions to cookie values and back; remembers the plain ones, because signing costs more than looking up."""

    def __init__(self, secret: str, salt: str, clock: Any = time.time) -> None:
        self._signer = _Signer(secret, salt=f"nemo-gym-session:{salt}")
        self._clock = clock
        self._cookies: OrderedDict[str, tuple[str, float]] = OrderedDict()  # session id -> cookie, signed at
        self._ids: dict[str, str] = {}  # cookie -> session id

    def decode(self, cookie: str) -> dict[str, Any] | None:
        """The session in a cookie; None if it was not signed by us, is too old or is not a session."""
        known = self._ids.get(cookie)
        if known is not None and self._clock() - self._cookies[known][1] < MAX_AGE_SECONDS:
            return {SESSION_ID_KEY: known}
        try:
            payload = self._signer.unsign(cookie, max_age=MAX_AGE_SECONDS)
            session = orjson.loads(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)))
        except (BadData, ValueError):
            return None
        return session if isinstance(session, dict) and isinstance(session.get(SESSION_ID_KEY), str) else None

    def encode(self, session: dict[str, Any]) -> str:
        """The cookie value of a session."""
        if len(session) != 1:
            return self._sign(session)
        session_id = session.get(SESSION_ID_KEY)
        if not isinstance(session_id, str):
            return self._sign(session)
        known = self._cookies.get(session_id)
        now = self._clock()
        if known is not None and now - known[1] < REFRESH_SECONDS:
            self._cookies.move_to_end(session_id)
            return known[0]
        cookie = self._sign(session)
        self._remember(session_id, cookie, now)
        return cookie

    def _sign(self, session: dict[str, Any]) -> str:
        # Padding is dropped because `=` would make cookie jars quote the value.
        return self._signer.sign(base64.urlsafe_b64encode(orjson.dumps(session)).rstrip(b"=")).decode("ascii")

    def _remember(self, session_id: str, cookie: str, now: float) -> None:
        old = self._cookies.pop(session_id, None)
        if old is not None:
            self._ids.pop(old[0], None)
        self._cookies[session_id] = (cookie, now)
        self._ids[cookie] = session_id
        if len(self._cookies) > REMEMBERED_COOKIES:
            _, (oldest, _) = self._cookies.popitem(last=False)
            self._ids.pop(oldest, None)


def cookie_values(scope: Scope, name: str) -> list[str]:
    """The values the request gives for a cookie, in order."""
    found: list[str] = []
    start = f"{name}="
    for header, value in scope["headers"]:
        if header == b"cookie":
            parts = (part.strip() for part in value.decode("latin-1").split(";"))
            found.extend(part[len(start) :].strip('"') for part in parts if part.startswith(start))
    return found


class SessionMiddleware:
    """Give every request its session according to the policy. `key` names the cookie."""

    LETS_BODIES_PASS = True
    SHORT_WAY = "session"

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
            scope["session"] = self.session_of(())
            await self.app(scope, receive, send)

    def _new_id(self) -> str:
        return f"{self.prefix}{new_session_id()}"

    def session_of(self, cookies: Iterable[str]) -> dict[str, Any]:
        """The session of a request that came with these cookies; a new one if none of them is ours."""
        if self.policy == "shared":
            return {SESSION_ID_KEY: self.shared_id}
        session: dict[str, Any] | None = None
        if self.policy == "per-session":
            for cookie in cookies:
                session = self.codec.decode(cookie) or session
        return session if session is not None else {SESSION_ID_KEY: self._new_id()}

    async def _serve_with_cookie(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["session"] = self.session_of(cookie_values(scope, self.cookie_name))

        async def send_with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), (b"set-cookie", self._set_cookie(scope["session"]))]
                message = {**message, "headers": headers}
            await send(message)

        await self.app(scope, receive, send_with_cookie)

    def _set_cookie(self, session: dict[str, Any]) -> bytes:
        if session:
            value = f"{self.codec.encode(session)}; {COOKIE_ATTRIBUTES}"
        else:  # the handler emptied it: forget the caller
            value = "null; path=/; expires=Thu, 01 Jan 1970 00:00:00 GMT; httponly; samesite=lax"
        return f"{self.cookie_name}={value}".encode("latin-1")
