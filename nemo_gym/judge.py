"""Call a judge model from a verifier, so that a failing judge is a failed rollout and not a wrong answer.

A judge that cannot be reached, answers an error or answers in the wrong shape is a `JudgeError`. An answer whose text
cannot be parsed is a verdict that the verifier must interpret.
"""

import functools
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi.responses import Response
from pydantic import BaseModel
from pydantic_core import to_json

from nemo_gym.errors import EnvFailed
from nemo_gym.keys import NG_FAILURE_CLASS_KEY, NG_FAILURE_JUDGE_ERROR_KEY
from nemo_gym.serve.endpoints import async_handler, resolved_signature
from nemo_gym.server_utils import ServerClient, get_response_json, raise_for_status

JUDGE_FAILED = "judge_failed"
"""Value of `_ng_failure_class` on a row whose judge failed."""

ResultT = TypeVar("ResultT")
ModelT = TypeVar("ModelT", bound=BaseModel)


class JudgeError(EnvFailed):
    """The judge gave no verdict, so the rollout has no reward."""


async def reraise_judge_errors(call: Awaitable[ResultT]) -> ResultT:
    """Await a call to a judge; raise every failure as a `JudgeError` with the text `Type: message`."""
    try:
        return await call
    except JudgeError:
        raise
    except Exception as failure:  # a boundary: every way for the judge to fail is the same outcome
        raise JudgeError(f"{type(failure).__name__}: {failure}") from failure


async def call_judge(
    server_client: ServerClient, *, server_name: str, url_path: str, json: Any, response_model: type[ModelT]
) -> ModelT:
    """POST to a judge server and return its answer as a `response_model`.

    Raises:
        JudgeError: no answer, an error status, or an answer of another shape.
    """
    return await reraise_judge_errors(_post_to_judge(server_client, server_name, url_path, json, response_model))


async def _post_to_judge(
    server_client: ServerClient, server_name: str, url_path: str, json: Any, response_model: type[ModelT]
) -> ModelT:
    response = await server_client.post(server_name=server_name, url_path=url_path, json=json)
    await raise_for_status(response)
    return response_model.model_validate(await get_response_json(response))


def judge_failsafe(verify: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """Wrap a verify endpoint: a `JudgeError` becomes a failure row instead of an error status.

    The row is the request as sent, `reward: 0.0` because readers expect the field, and `_ng_failure_class`,
    which takes the row out of every mean and into the failures file.
    """

    call = async_handler(verify)

    @functools.wraps(verify)
    async def verify_or_fail(*args: Any, **kwargs: Any) -> Any:
        try:
            return await call(*args, **kwargs)
        except JudgeError as failure:
            row = _request_body(*args, *kwargs.values())
            row |= {"reward": 0.0, NG_FAILURE_CLASS_KEY: JUDGE_FAILED, NG_FAILURE_JUDGE_ERROR_KEY: str(failure)}
            return Response(to_json(row, inf_nan_mode="null"), media_type="application/json")

    verify_or_fail.__signature__ = resolved_signature(verify)  # type: ignore[attr-defined]
    return verify_or_fail


def _request_body(*arguments: Any) -> dict[str, Any]:
    """Return the request among a verifier's arguments, with the fields it was sent with."""
    for argument in arguments:
        if isinstance(argument, BaseModel) and "responses_create_params" in type(argument).model_fields:
            return argument.model_dump(mode="json", exclude_unset=True)
        if isinstance(argument, dict):
            return dict(argument)
    return {}


__all__ = ["JUDGE_FAILED", "JudgeError", "call_judge", "judge_failsafe", "reraise_judge_errors"]
