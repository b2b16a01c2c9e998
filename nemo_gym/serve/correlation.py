"""Rollout id of a request, sent as a path prefix: `/ng-rollout/<id>[/training-token-capture][/budget/<budget>]/…`.

The id is in the path because many clients can only be configured with a base URL. The middleware removes the prefix and
sets the current rollout id while the request is served. The budget is that of a program which calls a model outside of
its agent server (`serve.rollout_budgets`).
"""

import re
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from pydantic import BaseModel
from starlette.types import ASGIApp, Receive, Scope, Send

from nemo_gym.keys import (
    ATTEMPT_INDEX_KEY_NAME,
    BUDGET_PATH_SEGMENT,
    ROLLOUT_ID_KEY_NAME,
    ROLLOUT_INDEX_KEY_NAME,
    ROLLOUT_PATH_PREFIX,
    TASK_INDEX_KEY_NAME,
    TOKEN_CAPTURE_PATH_SEGMENT,
)
from nemo_gym.wire.stored_rollout import RolloutId

ROLLOUT_PREFIX_SCOPE_KEY = "nemo_gym_rollout_prefix"
"""Key in the ASGI scope: the prefix that was removed from the path, for nested calls."""

ROLLOUT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Pattern of rollout ids, which are also safe file names, because capture files are named after them."""

_PREFIX = re.compile(
    rf"/{ROLLOUT_PATH_PREFIX}/(?P<id>{ROLLOUT_ID.pattern})(?P<tokens>/{TOKEN_CAPTURE_PATH_SEGMENT})?"
    rf"(?:/{BUDGET_PATH_SEGMENT}/(?P<budget>[a-z0-9-]+))?(?=/|$)"
)
ROLLOUT_PREFIX_START = f"/{ROLLOUT_PATH_PREFIX}/"
MODEL_ENDPOINTS = frozenset({"/v1/responses", "/v1/chat/completions", "/v1/messages"})
_GEMINI_METHODS = (":generateContent", ":streamGenerateContent")

_rollout_id: ContextVar[str | None] = ContextVar("nemo_gym_rollout_id", default=None)
_token_capture: ContextVar[bool] = ContextVar("nemo_gym_token_capture", default=False)
_budget: ContextVar[str | None] = ContextVar("nemo_gym_rollout_budget", default=None)


current_rollout_id = _rollout_id.get
"""Return the rollout id of the request being served; None without one."""
current_token_capture = _token_capture.get
"""Return True if the token ids of the request being served are captured for training."""
current_budget_text = _budget.get
"""Return the budget in the path of the request being served, as text; None without one."""


def is_model_endpoint(path: str) -> bool:
    """Return True if a POST to this path generates tokens, which are captured."""
    return path in MODEL_ENDPOINTS or path.endswith(_GEMINI_METHODS)


def split_path(path: str) -> tuple[str, re.Match[str] | None]:
    """Return the path without its rollout prefix, and the match of the prefix (None without one)."""
    prefix = _PREFIX.match(path) if path.startswith(ROLLOUT_PREFIX_START) else None
    return (path, None) if prefix is None else (path[prefix.end() :] or "/", prefix)


def adopt_rollout(prefix: re.Match[str]) -> None:
    """Set the current rollout id from a path prefix. The current context must be new."""
    _rollout_id.set(prefix["id"])
    _token_capture.set(prefix["tokens"] is not None)
    if prefix["budget"] is not None:
        _budget.set(prefix["budget"])


class rollout_context:  # noqa: N801 - called like a function, once for every rollout
    """`with rollout_context(rollout_id)`: set the current rollout id inside the block."""

    __slots__ = ("_reset_tokens", "_values")

    def __init__(self, rollout_id: str | None, *, token_capture: bool = False) -> None:
        self._values = (rollout_id, token_capture)

    def __enter__(self) -> None:
        self._reset_tokens = (_rollout_id.set(self._values[0]), _token_capture.set(self._values[1]))

    def __exit__(self, *_: object) -> None:
        _token_capture.reset(self._reset_tokens[1])
        _rollout_id.reset(self._reset_tokens[0])


def _field(body: Any, name: str) -> Any:
    """Return a field of a mapping or model, including extra fields; None if it is missing."""
    if type(body) is dict:
        return body.get(name)
    if isinstance(body, BaseModel):
        extra = body.__pydantic_extra__
        return extra[name] if extra and name in extra else body.__dict__.get(name)
    if isinstance(body, Mapping):
        return body.get(name)
    return None


def _index(body: Any, name: str) -> int | None:
    """Return a field as an integer; None if it is missing or not a whole number."""
    value = _field(body, name)
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) else None


def rollout_index_from_run_body(body: BaseModel | Mapping[str, Any]) -> RolloutId | None:
    """Return the task index and rollout index of a run request; None if either is missing."""
    task, rollout = _index(body, TASK_INDEX_KEY_NAME), _index(body, ROLLOUT_INDEX_KEY_NAME)
    return None if task is None or rollout is None else (task, rollout)


def maybe_rollout_id_from_run_body(body: BaseModel | Mapping[str, Any]) -> str | None:
    """Return the rollout id of a run request: `_ng_rollout_id`, else `<task>-<rollout>`; None without either.

    Attempts after the first add `-a<n>`.

    Raises:
        ValueError: `_ng_rollout_id` has characters that are not safe in a path or file name.
    """
    rollout_id = _field(body, ROLLOUT_ID_KEY_NAME)
    if rollout_id is None:
        rollout_id = _field(body, "capture_rollout_id")  # the field of `BaseRunRequest`
    if rollout_id is None:
        index = rollout_index_from_run_body(body)
        if index is None:
            return None
        rollout_id = f"{index[0]}-{index[1]}"
    elif not isinstance(rollout_id, str) or not ROLLOUT_ID.fullmatch(rollout_id):
        raise ValueError(
            f"{ROLLOUT_ID_KEY_NAME} must match {ROLLOUT_ID.pattern} (letters, digits, '.', '_', '-'), "
            f"got {rollout_id!r}"
        )
    attempt = _index(body, ATTEMPT_INDEX_KEY_NAME)
    return f"{rollout_id}-a{attempt}" if attempt else rollout_id


def rollout_path_prefix(rollout_id: str | None, *, token_capture: bool = False, budget: str | None = None) -> str:
    """Return `/ng-rollout/<id>[/training-token-capture][/budget/<budget>]`; empty without an id."""
    if not rollout_id:
        return ""
    tokens = f"/{TOKEN_CAPTURE_PATH_SEGMENT}" if token_capture else ""
    return f"/{ROLLOUT_PATH_PREFIX}/{rollout_id}{tokens}" + (f"/{BUDGET_PATH_SEGMENT}/{budget}" if budget else "")


def needs_rollout_ids(config: Mapping[str, Any]) -> bool:
    """Return True if calls must carry a rollout id, because model calls or token ids are captured."""
    tokens = config.get("token_id_capture")
    return bool(config.get("observability_enabled")) or bool(isinstance(tokens, Mapping) and tokens.get("enabled"))


def prefix_for_call(server_type: str, url_path: str, body: Any) -> str:
    """Return the rollout prefix for a call to a server; empty if the path already has a prefix or needs none."""
    if url_path.startswith(ROLLOUT_PREFIX_START):
        return ""
    rollout_id = current_rollout_id()
    if server_type == "resources_servers":
        if rollout_id is None and url_path == "/verify" and body is not None:
            rollout_id = maybe_rollout_id_from_run_body(body)
        return rollout_path_prefix(rollout_id)
    if server_type == "responses_api_models" and url_path in MODEL_ENDPOINTS:
        return rollout_path_prefix(rollout_id, token_capture=current_token_capture())
    return ""


def apply_rollout_prefix(
    base_url: str, rollout_id: str | None, *, token_capture: bool = False, budget: str | None = None
) -> str:
    """Return `base_url` with the rollout prefix between the address and its path: `http://h:1/ng-rollout/<id>/v1`."""
    prefix = rollout_path_prefix(rollout_id, token_capture=token_capture, budget=budget)
    if not prefix:
        return base_url
    scheme, separator, rest = base_url.partition("://")
    if not separator:
        scheme, rest = "", base_url
    authority, slash, path = rest.partition("/")
    return f"{scheme}{separator}{authority}{prefix}{slash}{path}".rstrip("/")


class RolloutContextMiddleware:
    """Remove the rollout prefix from the path and set the current rollout id while the request is served."""

    LAYER = "rollout"

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to the app without its rollout prefix."""
        path, prefix = split_path(scope["path"]) if scope["type"] in ("http", "websocket") else ("", None)
        if prefix is None:
            await self.app(scope, receive, send)
            return
        inner_scope = {**scope, "path": path, ROLLOUT_PREFIX_SCOPE_KEY: prefix[0]}
        if scope.get("raw_path"):
            # Rollout ids need no percent-encoding, so the prefix has the same length in both paths.
            inner_scope["raw_path"] = scope["raw_path"][prefix.end() :] or b"/"
        reset_token = _budget.set(prefix["budget"])
        try:
            with rollout_context(prefix["id"], token_capture=prefix["tokens"] is not None):
                await self.app(inner_scope, receive, send)
        finally:
            _budget.reset(reset_token)
