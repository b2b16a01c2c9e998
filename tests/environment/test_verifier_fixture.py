"""A verifier's promises are tried as they are written, and what breaks one is said."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.environment.verifier_fixture import (
    VerifierFixture,
    exercise_verifier_fixture,
    offline_server,
    read_cases,
    said,
)
from nemo_gym.errors import ConfigError
from nemo_gym.openai_utils import NeMoGymResponse
from nemo_gym.server_utils import SESSION_ID_KEY


class Config(BaseResourcesServerConfig):
    wanted: str = "yes"


class Request(BaseVerifyRequest):
    points: float


class Server(SimpleResourcesServer):
    config: Config

    async def verify(self, body: Request) -> BaseVerifyResponse:
        if body.response.output_text == "boom":
            raise ZeroDivisionError
        if body.response.output_text == "dice":
            return BaseVerifyResponse(**body.model_dump(), reward=random.random())
        right = body.response.output_text == self.config.wanted
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


async def test_a_verifier_that_keeps_its_promises_has_no_problems(cases: Path) -> None:
    found = await problems(fixture_with(cases, *GOOD), reward_range=(0.0, 1.0), best=1.0)

    assert found == {"full": None, "zero": None, "broken": None}


@pytest.mark.parametrize(
    ("wrong", "said_of_it"),
    [
        (case("it", "full_reward", "no", expected_reward=1.0), "expected 1, found 0"),
        (case("it", "zero_reward", expected_reward=0.0), "expected 0, found 1"),
        (case("it", "zero_reward", "boom", expected_reward=0.0), "raised ZeroDivisionError"),
        (case("it", "malformed", expected_error="KeyError"), "expected KeyError, found ValidationError"),
        (case("it", "full_reward", "no", expected_reward=0.0), "a full reward is 1 here, found 0"),
    ],
)
async def test_each_broken_promise_is_said(cases: Path, wrong: dict[str, Any], said_of_it: str) -> None:
    """Whoever changed the verifier must see which promise broke and how."""
    assert (await problems(fixture_with(cases, *GOOD, wrong), best=1.0))["it"] == said_of_it


async def test_a_reward_outside_the_manifests_range_is_a_problem(cases: Path) -> None:
    found = await problems(fixture_with(cases, *GOOD), reward_range=(0.0, 0.5))

    assert found["full"] == "1 lies outside the range [0, 0.5] of the manifest"


async def test_a_verifier_that_throws_dice_is_not_deterministic_unless_it_can_be_seeded(cases: Path) -> None:
    """Two looks at one reply must give one reward, or retries and reverification mean nothing."""
    seed = random.Random(0).random()
    dice = case("dice", "determinism", "dice", expected_reward=seed)

    loose = await problems(fixture_with(cases, *GOOD, dice), seeded=True)
    seeded = await problems(fixture_with(cases, *GOOD, dice, reseed=random.seed), seeded=True)

    assert str(loose["dice"]).startswith("different rewards")
    assert seeded["dice"] is None


@pytest.mark.parametrize(("given", "missing"), [([FULL, ZERO], "malformed"), ([BROKEN], "full_reward, zero_reward")])
async def test_every_verifier_shows_all_three_kinds(cases: Path, given: list[dict[str, Any]], missing: str) -> None:
    """A fixture that only shows success proves nothing."""
    with pytest.raises(ConfigError, match=f"has no case of kind {missing}"):
        await exercise_verifier_fixture(fixture_with(cases, *given))


async def test_a_seeded_environment_also_shows_determinism(cases: Path) -> None:
    with pytest.raises(ConfigError, match="has no case of kind determinism"):
        await exercise_verifier_fixture(fixture_with(cases, *GOOD), seeded=True)


async def test_expected_rewards_are_updated_on_request_and_errors_never(cases: Path) -> None:
    """A reward may change on purpose; that a broken row is refused may not be waved through."""
    stale = case("stale", "full_reward", expected_reward=0.25)
    fixture = fixture_with(cases, *GOOD, stale, case("odd", "malformed", expected_error="KeyError"))

    found = await problems(fixture, update_expected=True)
    again = await problems(fixture)

    assert found == again == {"full": None, "zero": None, "broken": None, "stale": None,
                              "odd": "expected KeyError, found ValidationError"}  # fmt: skip
    assert [c.expected_reward for c in read_cases(cases) if c.name == "stale"] == [1.0]


def test_nothing_is_written_without_being_asked(cases: Path) -> None:
    fixture = fixture_with(cases, *GOOD)
    before = cases.read_bytes()

    asyncio.run(exercise_verifier_fixture(fixture))

    assert cases.read_bytes() == before


async def test_a_verifier_that_wants_the_request_gets_a_session(cases: Path) -> None:
    class Remembering(Server):
        async def verify(self, request: Any, body: Request) -> BaseVerifyResponse:
            assert request.session[SESSION_ID_KEY]
            return await super().verify(body)

    fixture = fixture_with(cases, *GOOD)
    with_request = VerifierFixture(lambda: offline_server(Remembering), Request, fixture.cases_path)

    assert (await problems(with_request))["full"] is None


async def test_a_fixture_may_call_the_verifier_in_its_own_way(cases: Path) -> None:
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
def test_a_cases_file_that_cannot_be_used_is_explained(cases: Path, line: str, words: str) -> None:
    cases.write_text(line)

    with pytest.raises(ConfigError, match=words):
        read_cases(cases)


def test_a_missing_cases_file_is_named(cases: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_cases(cases)


def test_a_text_becomes_a_response_that_says_it() -> None:
    assert NeMoGymResponse.model_validate(said("hello")).output_text == "hello"
    assert NeMoGymResponse.model_validate(said("")).output == []


def test_an_offline_server_takes_settings() -> None:
    assert offline_server(Server, wanted="no").config.wanted == "no"
