"""Verifier fixtures as the tests of existing folders call them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.authoring.model_replies import text_response
from nemo_gym.base_resources_server import BaseVerifyRequest, BaseVerifyResponse, SimpleResourcesServer
from nemo_gym.verifier_fixture import VerifierFixture, VerifierFixtureError, exercise_verifier_fixture

SCALE: dict[str, Any] = {"reward_range": (0.0, 1.0), "determinism": "seeded"}
SEEDED: list[tuple[object, object]] = []


class AnswerRequest(BaseVerifyRequest):
    expected_answer: str


class PlainVerifier:
    """A verifier class without configuration."""

    async def verify(self, body: AnswerRequest) -> BaseVerifyResponse:
        reward = float(body.response.output_text == body.expected_answer)
        return BaseVerifyResponse(**body.model_dump(), reward=reward)


class VerifierServer(SimpleResourcesServer, PlainVerifier):
    """A server with the same verifier."""

    async def verify(self, body: AnswerRequest) -> BaseVerifyResponse:
        return await PlainVerifier.verify(self, body)


def fixture_of(factory: Any, path: Path, full_reward: float = 1.0) -> VerifierFixture:
    def request(answer: str) -> dict[str, Any]:
        return {"responses_create_params": {"input": "?"}, "response": text_response(answer), "expected_answer": "4"}

    cases = [
        {"name": "right", "kind": "full_reward", "request": request("4"), "expected_reward": full_reward},
        {"name": "wrong", "kind": "zero_reward", "request": request("5"), "expected_reward": 0.0},
        {"name": "same", "kind": "determinism", "request": request("4"), "expected_reward": 1.0},
        {"name": "empty", "kind": "malformed", "request": {}, "expected_error": "ValidationError"},
    ]
    path.write_text("".join(json.dumps(case) + "\n" for case in cases))
    reseed = lambda server, request: SEEDED.append((server, request))  # noqa: E731 - as folders write it
    return VerifierFixture(factory, AnswerRequest, path, reseed=reseed)


@pytest.mark.parametrize("factory", [PlainVerifier, VerifierServer])
def test_a_verifier_class_is_exercised_with_and_without_await(tmp_path: Path, factory: Any) -> None:
    """Folders made by `gym env init` of NeMo Gym give the class itself."""
    fixture = fixture_of(factory, tmp_path / "cases.jsonl")
    SEEDED.clear()

    results = exercise_verifier_fixture(fixture, **SCALE)

    assert [result.name for result in results] == ["right", "wrong", "same", "empty"]
    assert [isinstance(server, factory) for server, _ in SEEDED] == [True, True]
    assert asyncio.run(exercise_verifier_fixture(fixture, **SCALE)) == results


async def test_an_async_test_awaits_the_results(tmp_path: Path) -> None:
    """Most folders write asynchronous tests."""
    results = await exercise_verifier_fixture(fixture_of(PlainVerifier, tmp_path / "cases.jsonl"), **SCALE)

    assert len(results) == 4


def test_a_failed_case_is_an_error(tmp_path: Path) -> None:
    """The tests of folders only call the function; a result that they do not read must not hide a failure."""
    with pytest.raises(VerifierFixtureError, match=r"right: expected 0\.5, found 1"):
        exercise_verifier_fixture(fixture_of(PlainVerifier, tmp_path / "cases.jsonl", 0.5), **SCALE)
