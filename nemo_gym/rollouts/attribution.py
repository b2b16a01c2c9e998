"""Attribute a failed `/run` call: which kind of failure it is, in which phase, caused by which server."""

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import replace
from typing import Any

import orjson
from aiohttp import ClientResponseError
from yarl import URL

from nemo_gym.config.instances import ServerInstance, server_instances
from nemo_gym.errors import (
    CircuitOpen,
    DeadlineExceeded,
    EnvFailed,
    GymError,
    IncompleteReply,
    InvalidReply,
    InvalidReward,
    ModelAnswerTooLarge,
    ModelFailed,
    RequestCancelled,
    RolloutFailed,
    ServerUnreachable,
    SessionLost,
)
from nemo_gym.rollouts.outcome import INVALID_ANSWER, ROW_STATUSES, UNREACHABLE, Failure, FailureKind, Phase
from nemo_gym.rollouts.scoring_rules import AGENTS, MODELS, RESOURCES_SERVERS
from nemo_gym.transport.deadlines import VERIFY_PATH, ModelCallTimeout, ToolCallTimeout, VerifyTimeout
from nemo_gym.transport.error_causes import innermost_cause
from nemo_gym.transport.large_bodies import ResponseTooLong
from nemo_gym.transport.reply_log import parse_error_body
from nemo_gym.transport.response_errors import (
    ERROR_HEADER,
    FAILED_HEADER,
    FAILED_PATH_HEADER,
    RAISED_AT_HEADER,
    UPSTREAM_STATUS_HEADER,
)

ServerTypeOf = Callable[[str], str | None]
"""Returns the server type (`responses_api_models`, …) of an instance, or None for an unknown instance."""

REQUEST_DEADLINE = "request"
"""The deadline of a call without a more specific deadline (`request_timeout_seconds`)."""

_PHASE_OF_TYPE = {MODELS: Phase.MODEL, RESOURCES_SERVERS: Phase.ENVIRONMENT, AGENTS: Phase.AGENT}
_KIND_OF_PHASE = {
    Phase.MODEL: FailureKind.MODEL_REFUSED,
    Phase.ENVIRONMENT: FailureKind.VERIFIER_ERROR,  # a tool call would have a path
    Phase.VERIFY: FailureKind.VERIFIER_ERROR,
    Phase.AGENT: FailureKind.AGENT_ERROR,
}
_DEADLINE_OF_ERROR = {
    ModelCallTimeout.__name__: "model_call",
    ToolCallTimeout.__name__: "tool_call",
    VerifyTimeout.__name__: "verify",
}
_DEADLINE_OF_PHASE = {Phase.MODEL: "model_call", Phase.ENVIRONMENT: "tool_call", Phase.VERIFY: "verify"}
_TIMEOUT_STATUS = frozenset({408, 504})
_SEED_PATH = "/seed_session"
_UNREACHABLE_ERRORS = frozenset(one.__name__ for one in (ServerUnreachable, SessionLost, CircuitOpen, RequestCancelled))
_ENDPOINT_DOWN_ERRORS = frozenset(one.__name__ for one in (ServerUnreachable, CircuitOpen))
_TIMEOUT_ERRORS = frozenset({DeadlineExceeded.__name__, *_DEADLINE_OF_ERROR})
_BAD_REPLY_ERRORS = frozenset(
    {
        "ValidationError",
        "ConversionError",
        "JSONDecodeError",
        InvalidReply.__name__,
        IncompleteReply.__name__,
        ModelFailed.__name__,
    }
)


def server_types(config: Mapping[str, Any]) -> ServerTypeOf:
    """Return a lookup of the server type by instance name.

    The address of an endpoint that a model server forwards to (`*base_url`) has the type of a model server.
    """
    types: dict[str, str] = {}
    for instance in server_instances(config).values():
        types[instance.name] = instance.server_type
        if instance.server_type == MODELS:
            types.update(dict.fromkeys(_provider_addresses(instance), MODELS))

    def server_type(name: str) -> str | None:
        return types.get(name) or types.get(_host_and_port(name) or "")

    return server_type


def needed_servers(config: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """Return, for each instance, the instance itself and those that its block names, directly or indirectly."""
    instances = server_instances(config)
    references = {name: _texts(block.fields) & instances.keys() for name, block in instances.items()}
    needed: dict[str, frozenset[str]] = {}
    for name in instances:
        names, pending = {name}, [name]
        while pending:
            added = references[pending.pop()] - names
            names |= added
            pending += added
        needed[name] = frozenset(names)
    return needed


def _texts(node: Any) -> set[str]:
    """Return every text in a tree."""
    if isinstance(node, str):
        return {node}
    children = node.values() if isinstance(node, Mapping) else node if isinstance(node, list | tuple) else ()
    return set().union(*map(_texts, children))


def _provider_addresses(model: ServerInstance) -> Iterator[str]:
    """Yield host and port of each endpoint that a model server forwards to."""
    for key, value in model.fields.items():
        if str(key).endswith("base_url"):
            for url in [value] if isinstance(value, str) else value or ():
                address = _host_and_port(str(url))
                if address is not None:
                    yield address


def _host_and_port(text: str) -> str | None:
    """Return `host:port` of a URL or of text that already has this form."""
    try:
        url = URL(text if "://" in text else f"http://{text}")
        return f"{url.host}:{url.port}" if url.host and url.port else None
    except ValueError:
        return None


def classify_error(error: Exception, agent: str, server_type: ServerTypeOf, *, judges: Container[str] = ()) -> Failure:
    """Return the failure that describes an error of a `/run` call to `agent`.

    For an error response, the failed server is read from the headers, never from the text. `judges` are the models that
    only the verifier calls.
    """
    if isinstance(error, ClientResponseError):
        failure = _failure_of_status(error, agent, server_type, judges)
        headers: Mapping[str, str] = error.headers or {}
        is_incomplete = headers.get(ERROR_HEADER) == IncompleteReply.__name__
        return replace(failure, is_incomplete=True) if is_incomplete else failure
    if isinstance(error, RolloutFailed):
        return _failure_of_rollout_error(error, agent)
    message = str(error)
    server = (error.where if isinstance(error, GymError) else None) or agent
    if isinstance(error, ServerUnreachable | CircuitOpen | ConnectionError):
        return Failure(FailureKind.SERVER_DIED, Phase.DISPATCH, message, server)
    if isinstance(error, DeadlineExceeded | TimeoutError):
        message = message or "the call took too long"
        deadline_name = _passed_deadline(type(error).__name__)
        return Failure(FailureKind.TIMEOUT, Phase.DISPATCH, message, server, deadline_name=deadline_name)
    if isinstance(error, ResponseTooLong):
        return Failure(FailureKind.AGENT_ERROR, Phase.AGENT, f"/run: {message}", agent, retryable=False)
    if isinstance(error, InvalidReply):
        is_incomplete = isinstance(error, IncompleteReply)
        return Failure(FailureKind.AGENT_ERROR, Phase.AGENT, message, server, is_incomplete=is_incomplete)
    if isinstance(error, orjson.JSONDecodeError):
        return Failure(FailureKind.AGENT_ERROR, Phase.AGENT, f"/run did not answer with JSON: {message}", agent)
    return Failure(FailureKind.INTERNAL, Phase.DISPATCH, f"{type(error).__name__}: {message}", "collector")


def is_call_timeout(error: Exception) -> bool:
    """Return whether the error is the timeout of a model call, tool call or verification."""
    if isinstance(error, ClientResponseError):
        headers: Mapping[str, str] = error.headers or {}
        return headers.get(ERROR_HEADER, "") in _DEADLINE_OF_ERROR
    return type(error).__name__ in _DEADLINE_OF_ERROR


def _failure_of_status(
    error: ClientResponseError, agent: str, server_type: ServerTypeOf, judges: Container[str]
) -> Failure:
    """Classify an error response by its status and by the headers that name the failed server and its error."""
    headers: Mapping[str, str] = error.headers or {}
    server = headers.get(FAILED_HEADER) or agent
    phase = _PHASE_OF_TYPE.get(server_type(server) or "", Phase.AGENT)
    path = headers.get(FAILED_PATH_HEADER, "")
    if phase is Phase.ENVIRONMENT and path.endswith(VERIFY_PATH):
        phase = Phase.VERIFY
    body = innermost_cause(response_text(error))
    raised_at = f" (raised at {location})" if (location := headers.get(RAISED_AT_HEADER)) else ""
    upstream = headers.get(UPSTREAM_STATUS_HEADER, "")
    status = int(upstream) if upstream.isdecimal() else error.status
    cause = headers.get(ERROR_HEADER, "")
    is_too_large = cause == ModelAnswerTooLarge.__name__
    is_transient = _is_transient(status) and not is_too_large
    is_model = phase is Phase.MODEL or server in judges
    subject = path if path and server != agent else f"/run of {agent}"
    subject = "the endpoint" if is_model and upstream.isdecimal() else subject
    # The fields of an invalid request to these paths come from the row; tools get arguments from the model.
    is_invalid_row = status == 422 and not is_model and path in ("", VERIFY_PATH, _SEED_PATH)
    # `/verify` also gets the response, which is the agent's.
    is_invalid_row = is_invalid_row and not (path == VERIFY_PATH and body.startswith("response."))
    answer = f"refuses the row ({status})" if is_invalid_row else f"answered {status}"
    message = f"{subject} {answer}" + (f": {body}" if body else "") + raised_at
    # An error of the model server itself, not a status of its endpoint; or one in which the agent names the server.
    if cause and body and (is_model or (not path and body.startswith(f"{server}: "))):
        message = body.removeprefix(f"{server}: ") + raised_at
    is_refusal = not is_transient and not is_too_large and status >= 300 and is_model  # 3xx: redirected to some page
    is_endpoint_error = is_model and not cause and upstream.isdecimal() and status >= 500
    refusal_status = status if is_refusal or is_endpoint_error else None
    if is_model and cause in _BAD_REPLY_ERRORS:
        refusal_status = INVALID_ANSWER
    # With a path, the model server itself reports it; without, the model server is what does not answer.
    if is_model and cause in _ENDPOINT_DOWN_ERRORS and (path or ":" in server):
        refusal_status = UNREACHABLE
    # A refusal is permanent only if the content of the row can be its reason; a wrong key can be replaced.
    is_retryable = is_transient or (is_refusal and status not in ROW_STATUSES)
    if server in judges:
        kind, phase = FailureKind.JUDGE_FAILED, Phase.VERIFY
        return Failure(kind, phase, message, server, retryable=is_retryable, refusal_status=refusal_status)
    if is_too_large:
        return Failure(FailureKind.MODEL_ANSWER_TOO_LARGE, Phase.MODEL, message, server, retryable=False)
    if status == 429:
        return Failure(FailureKind.RATE_LIMITED, phase, message, server)
    if status in _TIMEOUT_STATUS or cause in _TIMEOUT_ERRORS:
        return Failure(FailureKind.TIMEOUT, phase, message, server, deadline_name=_passed_deadline(cause, phase))
    if cause in _UNREACHABLE_ERRORS:
        kind = FailureKind.MODEL_UNREACHABLE if phase is Phase.MODEL else FailureKind.SERVER_DIED
        is_counted = cause != RequestCancelled.__name__
        return Failure(kind, phase, message, server, is_counted=is_counted, refusal_status=refusal_status)
    if phase is Phase.MODEL and cause in _BAD_REPLY_ERRORS:
        return Failure(FailureKind.MODEL_BAD_REPLY, phase, message, server, refusal_status=refusal_status)
    if phase in (Phase.VERIFY, Phase.ENVIRONMENT) and cause == InvalidReward.__name__:
        return Failure(FailureKind.INVALID_REWARD, Phase.VERIFY, message, server)
    kind = FailureKind.TOOL_ERROR if phase is Phase.ENVIRONMENT and path else _KIND_OF_PHASE[phase]
    return Failure(kind, phase, message, server, retryable=is_retryable, refusal_status=refusal_status)


def _is_transient(status: int) -> bool:
    """Return whether a retry in the same run can succeed; a 422 (malformed row) or a 401 would only come again."""
    return status >= 500 or status in (408, 425, 429)


def _passed_deadline(cause: str, phase: Phase | None = None) -> str:
    """Return the name of the deadline that passed, by the error class `cause`, else by the phase."""
    return _DEADLINE_OF_ERROR.get(cause) or (_DEADLINE_OF_PHASE.get(phase) if phase else None) or REQUEST_DEADLINE


def _failure_of_rollout_error(error: RolloutFailed, agent: str) -> Failure:
    """Classify a `RolloutFailed` by its class."""
    if isinstance(error, ModelAnswerTooLarge):
        kind = FailureKind.MODEL_ANSWER_TOO_LARGE
        return Failure(kind, Phase.MODEL, str(error), error.where or agent, retryable=False)
    if isinstance(error, ModelFailed):
        kind, phase = FailureKind.MODEL_REFUSED, Phase.MODEL
    elif isinstance(error, InvalidReward):
        kind, phase = FailureKind.INVALID_REWARD, Phase.VERIFY
    elif isinstance(error, EnvFailed):
        kind, phase = FailureKind.VERIFIER_ERROR, Phase.ENVIRONMENT
    else:
        kind, phase = FailureKind.AGENT_ERROR, Phase.AGENT
    return Failure(kind, phase, str(error), error.where or agent)


def response_text(error: ClientResponseError) -> str:
    """Return the body of an error response as text; a JSON string is decoded."""
    content = getattr(error, "response_content", b"")
    if not isinstance(content, bytes):
        return str(content)
    text = _error_parts(content)[0]
    return text if isinstance(text, str) else content.decode("utf-8", errors="replace")


def generated_response(error: Exception) -> dict[str, Any] | None:
    """Return what the model generated before a `/run` failed, if the error response contains it."""
    content = getattr(error, "response_content", b"")
    return _error_parts(content)[1] if isinstance(content, bytes) else None


def _error_parts(content: bytes) -> tuple[Any, dict[str, Any] | None]:
    try:
        return parse_error_body(content)
    except ValueError:
        return None, None
