"""Which failure an exception from a call to `/run` is, and whose."""

from collections.abc import Callable, Container, Mapping

import orjson
from aiohttp import ClientResponseError

from nemo_gym.errors import (
    CircuitOpen,
    DeadlineExceeded,
    EnvFailed,
    GymError,
    ModelFailed,
    RolloutFailed,
    ServerUnreachable,
)
from nemo_gym.net.allowance import VERIFY_PATH, ModelCallTimeout, ToolCallTimeout, VerifyTimeout
from nemo_gym.net.status import ERROR_HEADER, FAILED_HEADER, FAILED_PATH_HEADER, UPSTREAM_STATUS_HEADER
from nemo_gym.rollouts.outcome import Failure, FailureKind, Phase

TypeOf = Callable[[str], str | None]
"""The server type (`responses_api_models`, …) of an instance, or None if it is not known."""

_PHASE_OF_TYPE = {
    "responses_api_models": Phase.MODEL,
    "resources_servers": Phase.ENVIRONMENT,
    "responses_api_agents": Phase.AGENT,
}
_KIND_OF_PHASE = {
    Phase.MODEL: FailureKind.MODEL_REFUSED,
    Phase.ENVIRONMENT: FailureKind.VERIFIER_ERROR,  # where nobody says what it was asked
    Phase.VERIFY: FailureKind.VERIFIER_ERROR,
    Phase.AGENT: FailureKind.AGENT_ERROR,
}
_WHICH_DEADLINE = {
    ModelCallTimeout.__name__: "model_call",
    ToolCallTimeout.__name__: "tool_call",
    VerifyTimeout.__name__: "verify",
}
_WHICH_OF_PHASE = {Phase.MODEL: "model_call", Phase.ENVIRONMENT: "tool_call", Phase.VERIFY: "verify"}
REQUEST_DEADLINE = "request"
"""What a call may take where nothing else says (`request_timeout_seconds`)."""

_TIMEOUT_STATUS = frozenset({408, 504})
_UNREACHABLE = frozenset({ServerUnreachable.__name__, CircuitOpen.__name__})
_LATE = frozenset({DeadlineExceeded.__name__, *_WHICH_DEADLINE})
_BAD_REPLY = frozenset({"ValidationError", "ConversionError", "JSONDecodeError", ModelFailed.__name__})


def failure_of(error: Exception, agent: str, type_of: TypeOf, *, judges: Container[str] = ()) -> Failure:
    """The failure that `error`, raised by a call to `agent`, stands for.

    The client and the servers name whom they called; nothing here guesses that from text. `judges` are models that
    the verifier calls.
    """
    if isinstance(error, ClientResponseError):
        return _of_status(error, agent, type_of, judges)
    if isinstance(error, RolloutFailed):
        return _of_rollout_failed(error, agent)
    message = str(error)
    if isinstance(error, ServerUnreachable | CircuitOpen | ConnectionError):
        return Failure(FailureKind.SERVER_DIED, Phase.DISPATCH, message, _where(error) or agent)
    if isinstance(error, DeadlineExceeded | TimeoutError):
        message = message or "the call took too long"
        return Failure(
            FailureKind.TIMEOUT, Phase.DISPATCH, message, _where(error) or agent, which=_which(type(error).__name__)
        )
    if isinstance(error, orjson.JSONDecodeError):
        return Failure(FailureKind.AGENT_ERROR, Phase.AGENT, f"/run did not answer with JSON: {message}", agent)
    return Failure(FailureKind.INTERNAL, Phase.DISPATCH, f"{type(error).__name__}: {message}", "collector")


def is_limit_of_call(error: Exception) -> bool:
    """Whether it was the limit of one kind of call that ended it, as told by the one who held the call to it."""
    if isinstance(error, ClientResponseError):
        headers: Mapping[str, str] = error.headers or {}
        return headers.get(ERROR_HEADER, "") in _WHICH_DEADLINE
    return type(error).__name__ in _WHICH_DEADLINE


def _of_status(error: ClientResponseError, agent: str, type_of: TypeOf, judges: Container[str]) -> Failure:
    headers: Mapping[str, str] = error.headers or {}
    whom = headers.get(FAILED_HEADER) or agent
    phase = _PHASE_OF_TYPE.get(type_of(whom) or "", Phase.AGENT)
    path = headers.get(FAILED_PATH_HEADER, "")
    if phase is Phase.ENVIRONMENT and path.endswith(VERIFY_PATH):
        phase = Phase.VERIFY
    said = _said(error)
    message = f"/run of {agent} answered {error.status}" + (f": {said}" if said else "")
    upstream = headers.get(UPSTREAM_STATUS_HEADER, "")
    status = int(upstream) if upstream.isdecimal() else error.status
    cause = headers.get(ERROR_HEADER, "")
    if whom in judges:
        return Failure(FailureKind.JUDGE_FAILED, Phase.VERIFY, message, whom, retryable=_is_transient(status))
    if status == 429:
        return Failure(FailureKind.RATE_LIMITED, phase, message, whom)
    if status in _TIMEOUT_STATUS or cause in _LATE:
        return Failure(FailureKind.TIMEOUT, phase, message, whom, which=_which(cause, phase))
    if cause in _UNREACHABLE:
        died = FailureKind.MODEL_UNREACHABLE if phase is Phase.MODEL else FailureKind.SERVER_DIED
        return Failure(died, phase, message, whom)
    if phase is Phase.MODEL and cause in _BAD_REPLY:
        return Failure(FailureKind.MODEL_BAD_REPLY, phase, message, whom)
    kind = FailureKind.TOOL_ERROR if phase is Phase.ENVIRONMENT and path else _KIND_OF_PHASE[phase]
    return Failure(kind, phase, message, whom, retryable=_is_transient(status))


def _is_transient(status: int) -> bool:
    """What was refused as wrong (422 for a malformed row, 401 for a key) would be refused again."""
    return status >= 500 or status in (408, 409, 425, 429)


def _which(cause: str, phase: Phase | None = None) -> str:
    """The deadline that passed: told by the exception, else that of the phase."""
    return _WHICH_DEADLINE.get(cause) or (_WHICH_OF_PHASE.get(phase) if phase else None) or REQUEST_DEADLINE


def _of_rollout_failed(error: RolloutFailed, agent: str) -> Failure:
    if isinstance(error, ModelFailed):
        kind, phase = FailureKind.MODEL_REFUSED, Phase.MODEL
    elif isinstance(error, EnvFailed):
        kind, phase = FailureKind.VERIFIER_ERROR, Phase.ENVIRONMENT
    else:
        kind, phase = FailureKind.AGENT_ERROR, Phase.AGENT
    return Failure(kind, phase, str(error), error.where or agent)


def _where(error: Exception) -> str | None:
    return error.where if isinstance(error, GymError) else None


def _said(error: ClientResponseError) -> str:
    """What the server answered, as text."""
    content = getattr(error, "response_content", b"")
    if not isinstance(content, bytes):
        return str(content)
    try:
        parsed = orjson.loads(content)
    except orjson.JSONDecodeError:
        parsed = None
    return parsed if isinstance(parsed, str) else content.decode("utf-8", errors="replace")
