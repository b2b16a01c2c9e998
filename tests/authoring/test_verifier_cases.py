"""The cases of a fixture are tried, and every broken promise is reported."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.authoring.model_replies import text_response
from nemo_gym.authoring.verifier_cases import VerifierFixture, exercise_verifier_fixture, offline_server, read_cases
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.errors import ConfigError
from nemo_gym.openai_utils import NeMoGymResponse
from nemo_gym.server_utils import SESSION_ID_KEY


class Config(BaseResourcesServerConfig):
    right_answer: str = "yes"


class Request(BaseVerifyRequest):
    points: float


class Server(SimpleResourcesServer):
    config: Config

    async def verify(self, body: Request) -> BaseVerifyResponse:
        if body.response.output_text == "boom":
            raise ZeroDivisionError
        if body.response.output_text == "dice":
            return BaseVerifyResponse(**body.model_dump(), reward=random.random())
        right = body.response.output_text == self.config.right_answer
        return BaseVerifyResponse(**body.model_dump(), reward=body.points if right else 0.0)


def case(name: str, kind: str, reply: str = "yes", **expected: Any) -> dict[str, Any]:
    request = {"responses_create_params": {"input": "?"}, "points": 1.0, "response": reply}
    if kind == "malformed":
        del request["points"]
    return {"name": name, "kind": kind, "request": request, **expected}


FULL = case("full", "full_reward", expected_reward=1.0)
ZERO = case("zero", "zero_reward", "no", expected_reward=0.0)
BROKEN = case("broken", "malformed", expected_error="ValidationError")
GOOD = [FULL, ZERO, BROKEN]


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    return tmp_path / "cases.jsonl"


def fixture_with(path: Path, *cases: dict[str, Any], **settings: Any) -> VerifierFixture:
    path.write_text("".join(f"{json.dumps(case)}\n" for case in cases))
    return VerifierFixture(lambda: offline_server(Server), Request, path, **settings)


async def problems(fixture: VerifierFixture, **options: Any) -> dict[str, str | None]:
    return {result.name: result.problem for result in await exercise_verifier_fixture(fixture, **options)}


async def test_the_path_of_the_cases_may_be_text(cases: Path) -> None:
    """Existing folders write it so; a traceback about `str` does not say what to change."""
    fixture = fixture_with(cases, *GOOD)
    as_text = VerifierFixture(fixture.server_factory, fixture.request_model, str(cases))  # type: ignore[arg-type]

    assert len(await problems(as_text)) == len(GOOD)


async def test_a_verifier_that_keeps_its_promises_has_no_problems(cases: Path) -> None:
    """A false alarm would block every release."""
    results = await problems(fixture_with(cases, *GOOD), reward_range=(0.0, 1.0), best=1.0)

    assert results == {"full": None, "zero": None, "broken": None}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (case("it", "full_reward", "no", expected_reward=1.0), "expected 1, found 0"),
        (case("it", "zero_reward", expected_reward=0.0), "expected 0, found 1"),
        (case("it", "zero_reward", "boom", expected_reward=0.0), "raised ZeroDivisionError"),
        (case("it", "malformed", expected_error="KeyError"), "expected KeyError, found ValidationError"),
        (case("it", "full_reward", "no", expected_reward=0.0), "a full reward is 1 here, found 0"),
    ],
)
async def test_each_broken_promise_is_reported(cases: Path, wrong: dict[str, Any], message: str) -> None:
    """The author of a change must see which promise broke and how."""
    assert (await problems(fixture_with(cases, *GOOD, wrong), best=1.0))["it"] == message


async def test_a_reward_outside_the_range_of_the_manifest_is_a_problem(cases: Path) -> None:
    """Trainers normalise rewards by that range."""
    results = await problems(fixture_with(cases, *GOOD), reward_range=(0.0, 0.5))

    assert results["full"] == "1 lies outside the range [0, 0.5] of the manifest"


async def test_a_random_verifier_is_deterministic_only_if_it_can_be_seeded(cases: Path) -> None:
    """The same reply must earn the same reward, or retries and reverification mean nothing."""
    seed = random.Random(0).random()
    dice = case("dice", "determinism", "dice", expected_reward=seed)

    loose = await problems(fixture_with(cases, *GOOD, dice), seeded=True)
    seeded = await problems(fixture_with(cases, *GOOD, dice, reseed=random.seed), seeded=True)

    assert str(loose["dice"]).startswith("different rewards")
    assert seeded["dice"] is None


@pytest.mark.parametrize(("lines", "missing"), [([FULL, ZERO], "malformed"), ([BROKEN], "full_reward, zero_reward")])
async def test_every_fixture_has_all_three_kinds(cases: Path, lines: list[dict[str, Any]], missing: str) -> None:
    """A fixture that only tests success proves nothing."""
    with pytest.raises(ConfigError, match=f"has no case of kind {missing}"):
        await exercise_verifier_fixture(fixture_with(cases, *lines))


async def test_a_seeded_environment_also_needs_a_determinism_case(cases: Path) -> None:
    """Its manifest promises determinism."""
    with pytest.raises(ConfigError, match="has no case of kind determinism"):
        await exercise_verifier_fixture(fixture_with(cases, *GOOD), seeded=True)


async def test_expected_rewards_are_updated_on_request_and_errors_never(cases: Path) -> None:
    """A reward may change on purpose; accepting a broken row may not."""
    stale = case("stale", "full_reward", expected_reward=0.25)
    fixture = fixture_with(cases, *GOOD, stale, case("odd", "malformed", expected_error="KeyError"))

    first = await problems(fixture, update_expected=True)
    second = await problems(fixture)

    assert first == second == {"full": None, "zero": None, "broken": None, "stale": None,
                              "odd": "expected KeyError, found ValidationError"}  # fmt: skip
    assert [c.expected_reward for c in read_cases(cases) if c.name == "stale"] == [1.0]


def test_the_cases_file_is_written_only_on_request(cases: Path) -> None:
    """A test run must not change promises."""
    fixture = fixture_with(cases, *GOOD)
    before = cases.read_bytes()

    asyncio.run(exercise_verifier_fixture(fixture))

    assert cases.read_bytes() == before


async def test_a_verifier_with_a_request_parameter_gets_a_session(cases: Path) -> None:
    """Servers with state need one."""

    class StatefulServer(Server):
        async def verify(self, request: Any, body: Request) -> BaseVerifyResponse:
            assert request.session[SESSION_ID_KEY]
            return await super().verify(body)

    fixture = fixture_with(cases, *GOOD)
    with_request = VerifierFixture(lambda: offline_server(StatefulServer), Request, fixture.cases_path)

    assert (await problems(with_request))["full"] is None


async def test_a_verifier_is_closed_after_each_verification_also_after_a_failed_one(cases: Path) -> None:
    """A verifier that keeps its sandbox leaves processes behind on the machine of the author."""
    closed: list[str] = []

    class ClosingServer(Server):
        async def aclose(self) -> None:
            closed.append("closed")

    crash = case("crash", "zero_reward", "boom", expected_reward=0.0)
    path = fixture_with(cases, *GOOD, crash).cases_path
    fixture = VerifierFixture(lambda: offline_server(ClosingServer), Request, path)

    assert (await problems(fixture))["crash"] == "raised ZeroDivisionError"
    assert len(closed) == 3  # the malformed request reaches no verifier


async def test_a_fixture_may_replace_the_call_of_the_verifier(cases: Path) -> None:
    """Some verifiers need a judge or a sandbox."""

    async def invoke(server: Any, body: Any) -> dict[str, float]:
        return {"reward": (await server.verify(body)).reward * 2}

    assert (await problems(fixture_with(cases, *GOOD, invoke=invoke)))["full"] == "expected 1, found 2"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 1"),
        (json.dumps({**FULL, "kind": "moon"}), "line 1: kind"),
        (json.dumps({**FULL, "expected_error": "X"}), "has expected_reward and no expected_error"),
        (json.dumps({**BROKEN, "expected_error": None}), "has expected_error and no expected_reward"),
        (f"{json.dumps(FULL)}\n{json.dumps(FULL)}", "two cases are called 'full'"),
    ],
)
def test_a_line_that_is_not_a_case_is_reported(cases: Path, line: str, words: str) -> None:
    """The author must find the line."""
    cases.write_text(line)

    with pytest.raises(ConfigError, match=words):
        read_cases(cases)


def test_a_missing_cases_file_is_named(cases: Path) -> None:
    """It is easily forgotten in a commit."""
    with pytest.raises(ConfigError, match="No such file"):
        read_cases(cases)


def test_a_text_becomes_a_response() -> None:
    """Cases are written by hand."""
    assert NeMoGymResponse.model_validate(text_response("hello")).output_text == "hello"
    assert NeMoGymResponse.model_validate(text_response("")).output == []


def test_an_offline_server_takes_settings() -> None:
    """Fixtures need limits and judges of their choice."""
    assert offline_server(Server, right_answer="no").config.right_answer == "no"
