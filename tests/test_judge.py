"""A judge that fails is a failed rollout, never a wrong answer."""

import asyncio
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest
from pydantic import BaseModel

from nemo_gym.errors import EnvFailed
from nemo_gym.judge import JudgeError, call_judge, judge_failsafe, reraise_judge_errors
from nemo_gym.server_utils import ServerClient


class Verdict(BaseModel):
    score: int


class Reply:
    """A response with only what a mocked call returns."""

    def __init__(self, body: bytes, status: int = 200) -> None:
        self.body, self.status, self.ok = body, status, status < 400

    async def read(self) -> bytes:
        return self.body


def client(*, replies: Any = None, fails: Exception | None = None) -> Any:
    mocked = MagicMock(spec=ServerClient)
    mocked.post = AsyncMock(return_value=replies, side_effect=fails)
    return mocked


async def ask(mocked: Any) -> Verdict:
    return await call_judge(
        mocked, server_name="judge", url_path="/v1/responses", json={"input": "?"}, response_model=Verdict
    )


@pytest.mark.asyncio
async def test_the_judge_s_answer_comes_back_as_the_class_asked_for() -> None:
    """Verifiers work with types, not with JSON."""
    mocked = client(replies=Reply(b'{"score": 3}'))

    verdict = await ask(mocked)

    assert verdict == Verdict(score=3)
    mocked.post.assert_awaited_once_with(server_name="judge", url_path="/v1/responses", json={"input": "?"})


@pytest.mark.parametrize(
    ("mocked", "text"),
    [
        (client(replies=Reply(b"busy", status=429)), "ClientResponseError: 429"),
        (client(replies=Reply(b"<html>")), "JSONDecodeError: "),
        (client(replies=Reply(b'{"score": "high"}')), "ValidationError: "),
        (client(fails=ConnectionRefusedError("nobody")), "ConnectionRefusedError: nobody"),
        (client(fails=TimeoutError("too late")), "TimeoutError: too late"),
    ],
    ids=["refused", "not JSON", "another shape", "unreachable", "too late"],
)
@pytest.mark.asyncio
async def test_every_way_to_fail_is_a_judge_error_that_says_which(mocked: Any, text: str) -> None:
    """The failures file is read by people."""
    with pytest.raises(JudgeError) as caught:
        await ask(mocked)

    assert str(caught.value).startswith(text)
    assert caught.value.__cause__ is not None


@pytest.mark.asyncio
async def test_a_judge_error_passes_as_it_is() -> None:
    """Wrapped twice it would name itself as its cause."""

    async def judge() -> None:
        raise JudgeError("first")

    with pytest.raises(JudgeError, match=r"^first$"):
        await reraise_judge_errors(judge())


@pytest.mark.asyncio
async def test_cancelling_is_not_a_failure_of_the_judge() -> None:
    """A rollout that is stopped must stop."""

    async def judge() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await reraise_judge_errors(judge())


def test_a_judge_error_counts_as_a_failure_of_the_environment() -> None:
    """Failures are counted by the class tree."""
    assert issubclass(JudgeError, EnvFailed)


class Body(BaseModel):
    responses_create_params: dict[str, Any]
    note: str = "unset"


@pytest.mark.asyncio
async def test_the_wrapped_verifier_returns_what_it_returns() -> None:
    """Only a judge's failure changes anything."""

    @judge_failsafe
    async def verify(body: Body) -> str:
        return f"verified {body.note}"

    assert await verify(Body(responses_create_params={})) == "verified unset"


@pytest.mark.parametrize(
    "body", [Body(responses_create_params={"input": "?"}), {"responses_create_params": {"input": "?"}}]
)
@pytest.mark.asyncio
async def test_the_failure_row_is_the_request_as_it_came(body: Any) -> None:
    """Running the judge again later needs the request, and unsent defaults are not part of it."""

    @judge_failsafe
    async def verify(request: object, body: Any) -> None:
        raise JudgeError("no verdict")

    answer = await verify(object(), body=body)

    assert answer.status_code == 200
    assert answer.body == (
        b'{"responses_create_params":{"input":"?"},"reward":0.0,"mask_sample":true,'
        b'"failure_kind":"judge_failed","failure_reason":"no verdict","instance_config":{"mask_sample":true},'
        b'"_ng_failure_class":"judge_failed","_ng_failure_judge_error":"no verdict"}'
    )


@pytest.mark.asyncio
async def test_other_failures_pass_through() -> None:
    """A bug in the verifier is not the judge's fault."""

    @judge_failsafe
    async def verify(body: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await verify({})


@pytest.mark.asyncio
async def test_a_verifier_that_is_not_asynchronous_is_guarded_too() -> None:
    """Beginners write `def`."""

    @judge_failsafe
    def verify(body: dict[str, Any]) -> None:
        raise JudgeError("no verdict")

    assert b"judge_failed" in (await verify({"responses_create_params": {}})).body
