"""Sessions: signed cookies that identify the session of a request, and a store of values per session.

`request.session` is a dict that always contains `session_id`. Session policies:

- `per-session` (default): the session cookie contains the session and is sent with every response. The server may keep
  state for it in memory, so the session ends with the process: the session id names the life of the process.
- `cookie-only`: the same cookie, but the server keeps no state in memory, so any later process continues the session.
- `stateless`: no cookie is read or written; every request has a new session id.
- `shared`: no cookie is read or written; every request has the same session id.
"""

import base64
import hmac
import os
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Generic, Literal, TypeVar, get_args
from uuid import NAMESPACE_URL, uuid5

import orjson
from itsdangerous import BadData, TimestampSigner
from itsdangerous.signer import SigningAlgorithm
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nemo_gym.errors import ConfigError, SessionLost
from nemo_gym.keys import SESSION_ID_KEY
from nemo_gym.processes import start_ticks

ValueT = TypeVar("ValueT")
SessionPolicy = Literal["per-session", "stateless", "shared", "cookie-only"]

SESSION_SECRET_ENV_VAR = "NEMO_GYM_SESSION_SECRET"
CELL_ENV_VAR = "NEMO_GYM_CELL"
"""Number of this cell among the cells that share ports; the prefix of its session ids."""
MAX_AGE_SECONDS = 14 * 24 * 60 * 60
REFRESH_SECONDS = 60 * 60
"""Age after which a cookie is signed again, so that an active session does not expire."""
CACHED_COOKIES = 4096
FIRST_PATHS = frozenset({"/seed_session", "/run"})
"""Paths whose requests begin a rollout: with a lost session they get a new one instead of an error."""
LIFE_KEY = "_ng_life"
"""Key in a signed session, never in `request.session`: the life, if a handler replaced the session id."""
COOKIE_ATTRIBUTES = f"path=/; Max-Age={MAX_AGE_SECONDS}; httponly; samesite=lax"

_LIFE = re.compile(r"(?P<cell>\d+\.)?(?P<pid>[0-9a-f]+)-(?P<ticks>[0-9a-f]+)\.")
_ILLEGAL_IN_NAME = re.compile(r"[^A-Za-z0-9!#$%&'*+.^_`|~-]")


@cache
def _random_secret() -> str:
    return secrets.token_urlsafe(32)


def session_secret() -> str:
    """Return the signing secret: `NEMO_GYM_SESSION_SECRET`, shared by the processes of a run, or a random secret."""
    return os.environ.get(SESSION_SECRET_ENV_VAR) or _random_secret()


def session_id_prefix() -> str:
    """Return the prefix of session ids: the cell number, for routing between cells, and the life of this process."""
    cell, pid = os.environ.get(CELL_ENV_VAR), os.getpid()
    return (f"{cell}." if cell else "") + f"{pid:x}-{start_ticks(pid):x}."


def is_current(session_id: str, prefix: str) -> bool:
    """Return True if the process that created a session lives: this process, or another worker of the same server.

    `prefix` is that of this process. Sessions of other cells are not current: a cell does not have their state.
    """
    if session_id.startswith(prefix):
        return True
    life = _LIFE.match(session_id)
    if life is None:  # an id that a handler of this process chose; another process would have signed its life with it
        return True
    if life["cell"] or cell_of(prefix) is not None:
        return False
    ticks = int(life["ticks"], 16)
    return not ticks or start_ticks(int(life["pid"], 16)) == ticks  # systems without start ticks: assume it lives


def cell_of(session_id: str) -> int | None:
    """Return the number of the cell that stores a session; None if the session id has no cell number."""
    number, dot, _ = session_id.partition(".")
    return int(number) if dot and number.isdecimal() else None


def cookie_name(key: str) -> str:
    """Return the name of a session cookie: `key` with invalid characters replaced by `_`."""
    return _ILLEGAL_IN_NAME.sub("_", key)


def new_session_id() -> str:
    """Return 32 random hexadecimal digits; a UUID takes four times as long to create."""
    return secrets.token_hex(16)


class PrekeyedHMAC(SigningAlgorithm):
    """HMAC-SHA1 that processes the key once, not for every signature as the implementation of itsdangerous does."""

    def __init__(self, key: bytes) -> None:
        self._keyed = hmac.new(key, digestmod="sha1")

    def get_signature(self, key: bytes, value: bytes) -> bytes:  # noqa: ARG002 - always the key of the constructor
        signature = self._keyed.copy()
        signature.update(value)
        return signature.digest()


class SessionCodec:
    """Encodes sessions as signed cookie values and decodes them.

    Sessions that contain only `session_id` are cached, because signing costs 8 % of a rollout's CPU. `life` is signed
    with sessions whose id does not name a life.
    """

    def __init__(self, secret: str, salt: str, clock: Any = time.time, life: str = "") -> None:
        key = TimestampSigner(secret, salt=f"nemo-gym-session:{salt}").derive_key()
        self._signer = TimestampSigner(key, key_derivation="none", algorithm=PrekeyedHMAC(key))
        self._clock = clock
        self._life = life
        # Cookie and time of signing, by session id; least recently used first.
        self._cookie_by_id: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._id_by_cookie: dict[str, str] = {}

    def decode(self, cookie: str) -> dict[str, Any] | None:
        """Return the session in a cookie; None if the signature is wrong or expired, or the content is no session."""
        cached_id = self._id_by_cookie.get(cookie)
        if cached_id is not None and self._clock() - self._cookie_by_id[cached_id][1] < MAX_AGE_SECONDS:
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
        cached = self._cookie_by_id.get(session_id)
        now = self._clock()
        if cached is not None and now - cached[1] < REFRESH_SECONDS:
            self._cookie_by_id.move_to_end(session_id)
            return cached[0]
        cookie = self._sign(session)
        self._cache(session_id, cookie, now)
        return cookie

    def _sign(self, session: dict[str, Any]) -> str:
        if self._life and not _LIFE.match(str(session.get(SESSION_ID_KEY))):
            session = {**session, LIFE_KEY: self._life}
        # Without padding, because cookie jars quote values that contain `=`.
        return self._signer.sign(base64.urlsafe_b64encode(orjson.dumps(session)).rstrip(b"=")).decode("ascii")

    def _cache(self, session_id: str, cookie: str, now: float) -> None:
        """Cache a cookie in place of the session's previous cookie; evict the least recently used session."""
        previous = self._cookie_by_id.pop(session_id, None)
        if previous is not None:
            self._id_by_cookie.pop(previous[0], None)
        self._cookie_by_id[session_id] = (cookie, now)
        self._id_by_cookie[cookie] = session_id
        if len(self._cookie_by_id) > CACHED_COOKIES:
            _, (oldest_cookie, _) = self._cookie_by_id.popitem(last=False)
            self._id_by_cookie.pop(oldest_cookie, None)


def cookie_values(scope: Scope, name: str) -> list[str]:
    """Return all values of the cookie `name` in a request, in order."""
    values: list[str] = []
    start = f"{name}="
    for header, value in scope["headers"]:
        if header == b"cookie":
            parts = (part.strip() for part in value.decode("latin-1").split(";"))
            values.extend(part[len(start) :].strip('"') for part in parts if part.startswith(start))
    return values


class SessionMiddleware:
    """Sets `scope["session"]` of every request according to the session policy. `key` is the name of the cookie."""

    LAYER = "session"

    def __init__(
        self, app: ASGIApp, key: str, policy: SessionPolicy = "per-session", secret: str | None = None
    ) -> None:
        if policy not in get_args(SessionPolicy):
            raise ConfigError(
                f"unknown session_policy {policy!r}", where=key, fix="one of " + ", ".join(get_args(SessionPolicy))
            )
        self.app = app
        self.policy = policy
        self.cookie_name = cookie_name(key)
        self.prefix = session_id_prefix()
        self.codec = SessionCodec(secret or session_secret(), key, life=self.prefix)
        self.has_cookie = policy in ("per-session", "cookie-only")
        self.shared_id = str(uuid5(NAMESPACE_URL, f"nemo-gym:{key}"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request with its session; set the session cookie if the policy has one."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
        elif self.has_cookie:
            await self._serve_with_cookie(scope, receive, send)
        else:
            scope["session"] = self.open_session(())
            await self.app(scope, receive, send)

    def _new_id(self) -> str:
        return f"{self.prefix}{new_session_id()}"

    def open_session(self, cookies: Iterable[str], path: str = "") -> dict[str, Any]:
        """Return the session of the last valid cookie, or a new session. `path` is the request's path.

        Raises:
            SessionLost: the process that created the session has ended, and its state with it.
        """
        if self.policy == "shared":
            return {SESSION_ID_KEY: self.shared_id}
        session: dict[str, Any] | None = None
        if self.has_cookie:
            for cookie in cookies:
                session = self.codec.decode(cookie) or session
        if session is None:
            return {SESSION_ID_KEY: self._new_id()}
        life = session.pop(LIFE_KEY, session[SESSION_ID_KEY])
        if self.policy == "cookie-only" or is_current(life, self.prefix):
            return session
        if path in FIRST_PATHS:
            return {SESSION_ID_KEY: self._new_id()}
        raise SessionLost(
            "the process that kept this session has ended, and its state is lost", fix="begin a new session"
        )

    async def _serve_with_cookie(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request with the session of its cookie and add `Set-Cookie` to the response."""
        cookies = cookie_values(scope, self.cookie_name)
        scope["session"] = self.open_session(cookies, scope["path"])

        async def send_with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), (b"set-cookie", self._set_cookie(scope["session"]))]
                message = {**message, "headers": headers}
            await send(message)

        await self.app(scope, receive, send_with_cookie)

    def _set_cookie(self, session: dict[str, Any]) -> bytes:
        """Return the value of the `Set-Cookie` header; an empty session deletes the cookie."""
        if session:
            value = f"{self.codec.encode(session)}; {COOKIE_ATTRIBUTES}"
        else:
            value = "null; path=/; expires=Thu, 01 Jan 1970 00:00:00 GMT; httponly; samesite=lax"
        return f"{self.cookie_name}={value}".encode("latin-1")


class SessionStore(Generic[ValueT]):
    """Maps session ids to values.

    Evicts sessions that were not used for `idle_seconds` and, above `max_sessions`, the least recently used session, so
    that crashed agents do not leak memory.
    """

    def __init__(
        self, *, max_sessions: int = 10_000, idle_seconds: float = 3600.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_sessions, self._idle_seconds, self._clock = max_sessions, idle_seconds, clock
        self._entries: OrderedDict[str, tuple[ValueT, float]] = OrderedDict()  # least recently used first

    def put(self, session_id: str, value: ValueT) -> None:
        """Set the value of a session."""
        self._entries[session_id] = (value, self._clock())
        self._entries.move_to_end(session_id)
        self._evict()

    def get(self, session_id: str) -> ValueT | None:
        """Return the value of a session and mark the session as used; None if it has no value or was evicted."""
        self._evict()
        entry = self._entries.get(session_id)
        if entry is None:
            return None
        self._entries[session_id] = (entry[0], self._clock())
        self._entries.move_to_end(session_id)
        return entry[0]

    def pop(self, session_id: str) -> ValueT | None:
        """Remove a session and return its value; None if it has no value or was evicted."""
        self._evict()
        entry = self._entries.pop(session_id, None)
        return entry[0] if entry else None

    def session_ids(self) -> list[str]:
        """Return the ids of the sessions that have a value, least recently used first."""
        self._evict()
        return list(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def _evict(self) -> None:
        """Evict idle sessions and those above `max_sessions`, least recently used first."""
        oldest_allowed = self._clock() - self._idle_seconds
        while self._entries:
            oldest_id = next(iter(self._entries))
            if len(self._entries) <= self._max_sessions and self._entries[oldest_id][1] >= oldest_allowed:
                return
            del self._entries[oldest_id]
