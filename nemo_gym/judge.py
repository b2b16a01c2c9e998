"""Judge calls: call a judge model from a verifier. If the judge fails, the rollout fails and gets no reward.

`JudgeError` is raised if the judge cannot be reached, answers with an error status, or its answer does not match the
response model. If only the text of the answer cannot be interpreted, the verifier decides on the reward.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from nemo_gym.errors import EnvFailed
from nemo_gym.failure_kinds import JUDGE_FAILED, MAX_REASON_CHARACTERS
from nemo_gym.keys import NG_FAILURE_CLASS_KEY, NG_FAILURE_JUDGE_ERROR_KEY
from nemo_gym.serve.endpoints import answer_error, json_bytes
from nemo_gym.server_utils import ServerClient, get_response_json, raise_for_status

ResultT = TypeVar("ResultT")
ModelT = TypeVar("ModelT", bound=BaseModel)


class JudgeError(EnvFailed):
    """The judge call failed, so the rollout has no reward."""


async def reraise_judge_errors(call: Awaitable[ResultT]) -> ResultT:
    """Await a call to a judge; raise every failure as a `JudgeError` with the text `Type: message`."""
    try:
        return await call
    except JudgeError:
        raise
    except Exception as failure:  # every failure of a judge has the same outcome
        raise JudgeError(f"{type(failure).__name__}: {failure}") from failure


async def call_judge(
    server_client: ServerClient, *, server_name: str, url_path: str, json: Any, response_model: type[ModelT]
) -> ModelT:
    """POST `json` to a judge server and return its answer as a `response_model`.

    Raises:
        JudgeError: no answer, an error status, or an answer that is not a valid `response_model`.
    """
    return await reraise_judge_errors(_post_to_judge(server_client, server_name, url_path, json, response_model))


async def _post_to_judge(
    server_client: ServerClient, server_name: str, url_path: str, json: Any, response_model: type[ModelT]
) -> ModelT:
    response = await server_client.post(server_name=server_name, url_path=url_path, json=json)
    await raise_for_status(response)
    return response_model.model_validate(await get_response_json(response))


def judge_failsafe(verify: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """Wrap a verify endpoint so that a `JudgeError` becomes a failure record instead of an error status.

    The record contains the request, `reward: 0.0` (a required field) and `_ng_failure_class`. The collector excludes it
    from all metrics and writes it to the failures file.
    """
    return answer_error(verify, JudgeError, _failure_record)


class FailureRecordResponse(JSONResponse):
    """A failure record as JSON; unlike the base class, it accepts NaN and lone surrogates in what a model wrote."""

    def render(self, content: Any) -> bytes:
        return json_bytes(content)


def _failure_record(failure: Exception, *arguments: Any) -> Response:
    record = _request_body(*arguments)
    instance_config = record.get("instance_config")
    record |= {
        "reward": 0.0,
        "mask_sample": True,
        "failure_kind": JUDGE_FAILED,
        "failure_reason": str(failure)[:MAX_REASON_CHARACTERS],
        "instance_config": {**(instance_config if isinstance(instance_config, dict) else {}), "mask_sample": True},
        NG_FAILURE_CLASS_KEY: JUDGE_FAILED,
        NG_FAILURE_JUDGE_ERROR_KEY: str(failure),
    }
    return FailureRecordResponse(record)


def _request_body(*arguments: Any) -> dict[str, Any]:
    """Return the request body among the arguments of `verify`, with the fields that were sent; empty if not found."""
    for argument in arguments:
        if isinstance(argument, BaseModel) and "responses_create_params" in type(argument).model_fields:
            return argument.model_dump(mode="json", exclude_unset=True)
        if isinstance(argument, dict):
            return dict(argument)
    return {}


__all__ = ["JUDGE_FAILED", "JudgeError", "call_judge", "judge_failsafe", "reraise_judge_errors"]
