"""Exceptions of model servers as errors of the API: what the client did wrong, or what the endpoint answered."""

from collections.abc import Callable, Mapping
from typing import Any

import orjson
from aiohttp import ClientResponseError
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from nemo_gym.convert.error_bodies import ApiError
from nemo_gym.errors import DeadlineExceeded, GymError, ModelFailed, SessionLost, UnsupportedRequest
from nemo_gym.transport.event_reader import status_of_problem
from nemo_gym.wire.observations import Dialect

DIALECT_OF_PATH: dict[str, Dialect] = {
    "/v1/responses": "responses",
    "/v1/chat/completions": "chat",
    "/v1/messages": "messages",
    "/v1/messages/count_tokens": "messages",
    "/v1/messages/batches": "messages",
    ":generateContent": "gemini",
    ":embedContent": "gemini",
    ":batchEmbedContents": "gemini",
    ":streamGenerateContent": "gemini",
    ":countTokens": "gemini",
}
"""The dialects by the end of a path."""
MAX_MESSAGE = 4000

Redact = Callable[[str], str]


def dialect_of_path(path: str) -> Dialect | None:
    """Return the dialect of an endpoint, whose path may have a rollout prefix; None for another endpoint."""
    return next((dialect for end, dialect in DIALECT_OF_PATH.items() if path.endswith(end)), None)


def api_error(error: BaseException, redact: Redact) -> ApiError:
    """Describe an exception for a client. A permanent refusal of the endpoint keeps its status; others are 500."""
    if isinstance(error, ClientResponseError) and hasattr(error, "response_content"):
        return _endpoint_error(error, redact)
    message, param, status = _text(error), None, 500
    if isinstance(error, UnsupportedRequest):
        status, param = 400, error.where
    elif isinstance(error, HTTPException):
        status, message = error.status_code, str(error.detail)
    elif isinstance(error, RequestValidationError | ValidationError):
        problems, body = error.errors(), getattr(error, "body", None)
        status, message = 422, "; ".join(_problem_text(problem, body) for problem in problems[:5])
        param = _location(problems[0], body) if problems else None
    elif isinstance(error, DeadlineExceeded):
        status = 504
    elif isinstance(error, SessionLost):
        status = 410
    return ApiError(status, redact(message[:MAX_MESSAGE]), param=param)


def check_not_failed(answer: dict[str, Any], where: str) -> None:
    """Raise the error of a response that failed at the endpoint; only the Responses API has such answers.

    Raises:
        HTTPException: the endpoint refused the request.
        ModelFailed: the endpoint failed.
    """
    if answer.get("status") != "failed":
        return
    error = answer.get("error")
    problem: dict[str, Any] = error if isinstance(error, dict) else {}
    message = str(problem.get("message") or "the response failed at the endpoint")
    status = status_of_problem(problem)
    if status < 500:
        raise HTTPException(status, message)
    raise ModelFailed(message, where=where)


def _endpoint_error(error: ClientResponseError, redact: Redact) -> ApiError:
    """Describe an error answer of an endpoint: with its status if that is 4xx, its message, code and field."""
    content = getattr(error, "response_content", b"")
    text = content.decode("utf-8", "replace") if isinstance(content, bytes) else str(content)
    message, code, param = text, None, None
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        body = None
    if isinstance(body, dict):
        fields: Any = body.get("error", body)
        if isinstance(fields, dict):
            message = str(fields.get("message") or fields.get("detail") or text)
            code, param = fields.get("code"), fields.get("param")
        elif isinstance(fields, str):
            message = fields
    status = error.status if 400 <= error.status < 500 else 500
    message = message or f"the endpoint answered {error.status}"
    return ApiError(status, redact(message[:MAX_MESSAGE]), code, param if isinstance(param, str) else None)


def _text(error: BaseException) -> str:
    return str(error) if isinstance(error, GymError) else repr(error)


def _location(problem: Any, body: Any) -> str:
    """Return the JSON path of a problem in the request, without the members of unions that pydantic puts between."""
    steps = list(problem.get("loc", ()))
    steps = steps[1:] if steps[:1] == ["body"] else steps
    if problem.get("type") == "json_invalid":  # its location is a position in the text
        return "body"
    path, value, is_known = "", body, body is not None
    for number, step in enumerate(steps, start=1):
        is_field = isinstance(value, Mapping) and step in value
        is_missing = number == len(steps) and problem.get("type") == "missing"
        if isinstance(step, int):
            path += f"[{step}]"
            value = value[step] if isinstance(value, list) and step < len(value) else None
        elif is_field or is_missing or not is_known:
            path += f".{step}" if path else str(step)
            value = value[step] if is_field else None
    return path or "body"


def _problem_text(problem: Any, body: Any) -> str:
    text, context = problem.get("msg", ""), problem.get("ctx") or {}
    if problem.get("type") == "union_tag_invalid":
        tags = [tag for tag in str(context.get("expected_tags", "")).split(", ") if "+" not in tag]
        text = f"unknown kind '{context.get('tag')}'; expected one of {', '.join(tags)}"
    return f"{_location(problem, body)}: {text}"
