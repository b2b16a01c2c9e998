"""Which rollout a request belongs to.

A rollout's id travels in the path, `/ng-rollout/<id>[/training-token-capture]/…`, because that survives clients which
only let you choose a base URL. The middleware takes it off again and remembers it while the request is served.
"""

import re
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from pydantic import BaseModel
from starlette.types import ASGIApp, Receive, Scope, Send

from nemo_gym.keys import (
    ATTEMPT_INDEX_KEY_NAME,
    ROLLOUT_ID_KEY_NAME,
    ROLLOUT_INDEX_KEY_NAME,
    ROLLOUT_PATH_PREFIX,
    TASK_INDEX_KEY_NAME,
    TOKEN_CAPTURE_PATH_SEGMENT,
)

ROLLOUT_PREFIX_SCOPE_KEY = "nemo_gym_rollout_prefix"
"""In the ASGI scope: the prefix that was taken off the path, for calls that should carry it on."""

ROLLOUT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Also a safe file name: capture files are called after it."""

_PREFIX = re.compile(
    rf"/{ROLLOUT_PATH_PREFIX}/(?P<id>{ROLLOUT_ID.pattern})(?P<tokens>/{TOKEN_CAPTURE_PATH_SEGMENT})?(?=/|$)"
)
_PREFIX_START = f"/{ROLLOUT_PATH_PREFIX}/"

_rollout_id: ContextVar[str | None] = ContextVar("nemo_gym_rollout_id", default=None)
_token_capture: ContextVar[bool] = ContextVar("nemo_gym_token_capture", default=False)


def current_rollout_id() -> str | None:
    """The id of the rollout being served, or None."""
    return _rollout_id.get()


def current_token_capture() -> bool:
    """Whether the request being served asked for its token ids to be kept for training."""
    return _token_capture.get()


def split_path(path: str) -> tuple[str, re.Match[str] | None]:
    """A path without the rollout it names, and that part, if there is one."""
    found = _PREFIX.match(path) if path.startswith(_PREFIX_START) else None
    return (path, None) if found is None else (path[found.end() :] or "/", found)


def begin_rollout(named: re.Match[str]) -> None:
    """Make the rollout that a path named the current one of this context, which is a new one."""
    _rollout_id.set(named["id"])
    _token_capture.set(named["tokens"] is not None)


class rollout_context:  # noqa: N801 - it is called like the function it replaces, once for every rollout
    """`with rollout_context(rollout_id)`: make it the current rollout for the enclosed code."""

    __slots__ = ("_before", "_said")

    def __init__(self, rollout_id: str | None, *, token_capture: bool = False) -> None:
        self._said = (rollout_id, token_capture)

    def __enter__(self) -> None:
        self._before = (_rollout_id.set(self._said[0]), _token_capture.set(self._said[1]))

    def __exit__(self, *_: object) -> None:
        _token_capture.reset(self._before[1])
        _rollout_id.reset(self._before[0])


def _field(body: Any, name: str) -> Any:
    if isinstance(body, BaseModel):
        extra = body.__pydantic_extra__ or {}
        return extra.get(name, getattr(body, name, None) if name in type(body).model_fields else None)
    if isinstance(body, Mapping):
        return body.get(name)
    return None


def _index(body: Any, name: str) -> int | None:
    value = _field(body, name)
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) else None


def maybe_rollout_id_from_run_body(body: BaseModel | Mapping[str, Any]) -> str | None:
    """The rollout id of a run request: its `_ng_rollout_id`, else `<task>-<rollout>`; later attempts add `-a<n>`.

    Raises:
        ValueError: an explicit id has characters that do not belong in a path or file name.
    """
    rollout_id = _field(body, ROLLOUT_ID_KEY_NAME)
    if rollout_id is None:
        task, rollout = _index(body, TASK_INDEX_KEY_NAME), _index(body, ROLLOUT_INDEX_KEY_NAME)
        if task is None or rollout is None:
            return None
        rollout_id = f"{task}-{rollout}"
    elif not isinstance(rollout_id, str) or not ROLLOUT_ID.fullmatch(rollout_id):
        raise ValueError(
            f"{ROLLOUT_ID_KEY_NAME} must match {ROLLOUT_ID.pattern} (letters, digits, '.', '_', '-'), "
            f"got {rollout_id!r}"
        )
    attempt = _index(body, ATTEMPT_INDEX_KEY_NAME)
    return f"{rollout_id}-a{attempt}" if attempt else rollout_id


def rollout_path_prefix(rollout_id: str | None, *, token_capture: bool = False) -> str:
    """`/ng-rollout/<id>[/training-token-capture]`, or nothing without an id."""
    if not rollout_id:
        return ""
    tokens = f"/{TOKEN_CAPTURE_PATH_SEGMENT}" if token_capture else ""
    return f"/{ROLLOUT_PATH_PREFIX}/{rollout_id}{tokens}"


def apply_rollout_prefix(base_url: str, rollout_id: str | None, *, token_capture: bool = False) -> str:
    """`base_url` with the rollout prefix between the address and its path: `http://h:1/ng-rollout/<id>/v1`."""
    prefix = rollout_path_prefix(rollout_id, token_capture=token_capture)
    if not prefix:
        return base_url
    scheme, separator, rest = base_url.partition("://")
    if not separator:
        scheme, rest = "", base_url
    authority, slash, path = rest.partition("/")
    return f"{scheme}{separator}{authority}{prefix}{slash}{path}".rstrip("/")


class RolloutContextMiddleware:
    """Take the rollout prefix off the path and make its id current while the request is served."""

    LETS_BODIES_PASS = True
    SHORT_WAY = "rollout"

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or not scope["path"].startswith(_PREFIX_START):
            await self.app(scope, receive, send)
            return
        found = _PREFIX.match(scope["path"])
        if found is None:
            await self.app(scope, receive, send)
            return
        inner = {**scope, "path": scope["path"][found.end() :] or "/", ROLLOUT_PREFIX_SCOPE_KEY: found[0]}
        if scope.get("raw_path"):
            # Ids need no quoting, so the prefix has the same length in both forms.
            inner["raw_path"] = scope["raw_path"][found.end() :] or b"/"
        with rollout_context(found["id"], token_capture=found["tokens"] is not None):
            await self.app(inner, receive, send)
