"""The expected calls score in every order and spelling; anything else, and every cheat, scores nothing."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nemo_gym.environment.audit_replies import Reply, response_of
from nemo_gym.environment.verifier_fixture import exercise_verifier_fixture, offline_server
from resources_servers.xlam_fc.app import (
    VERIFIER_FIXTURE,
    Call,
    XlamFcServer,
    XlamFcVerifyRequest,
    matched,
    same_value,
)
from resources_servers.xlam_fc.audit import cheats, odd_forms, oracle, wrong
from resources_servers.xlam_fc.generate import rows

ROWS = rows(12, seed=1)
DATA = Path(__file__).parent.parent / "data"
CLIENT = TestClient(offline_server(XlamFcServer).setup_webserver())


def verdict(reply: Reply, row: dict[str, Any], **fields: Any) -> dict[str, Any]:
    body = {**row, **fields, "response": response_of(reply, row)}
    answer = CLIENT.post("/verify", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_every_generated_row_is_solved_by_its_oracle() -> None:
    """A row whose own answer scores less than full would teach the wrong thing."""
    for row in ROWS:
        result = verdict(oracle(row), row)
        assert (result["reward"], result["failure_reason"]) == (1.0, None)
        assert result["matched_calls"] == len(row["expected_answers"])


def test_the_expected_calls_score_in_odd_forms() -> None:
    """Order, spelling of JSON and numbers, extra arguments and words around the calls are the model's own business."""
    forms = [(row, form) for row in ROWS for form in odd_forms(row)]

    assert len({json.dumps(form) for _, form in forms}) >= 20
    assert [form for row, form in forms if verdict(form, row)["reward"] != 1.0] == []


def test_close_calls_and_cheats_score_nothing() -> None:
    """Reward without the right calls is what a policy learns first."""
    for row in ROWS:
        for form in [*wrong(row), *(reply for _, reply in cheats(row)), "", "I will not."]:
            result = verdict(form, row)
            assert result["reward"] == 0.0
            assert result["failure_reason"]


@pytest.mark.parametrize(
    ("expected", "found", "same"),
    [
        (3, 3.0, True),
        (0.1 + 0.2, 0.3, True),
        (3, "3", False),
        (1, True, False),
        (True, True, True),
        (False, 0, False),
        (None, None, True),
        (None, 0, False),
        (None, "", False),
        ("é", "e\u0301", True),
        ("Oslo", "oslo", False),
        ([1, 2], [2, 1], False),
        ([1], [1, 2], False),
        ({"a": 1, "b": [2]}, {"b": [2.0], "a": 1}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({}, [], False),
    ],
)
def test_values_are_compared_as_json_means_them(expected: Any, found: Any, same: bool) -> None:
    """Python would call 1 and True the same."""
    assert same_value(expected, found) is same


def test_a_call_that_fits_two_expectations_is_given_to_the_one_that_needs_it() -> None:
    """Matching greedily would fail a right answer because of its order."""
    expected = [Call(name="f", arguments={}), Call(name="f", arguments={"x": 1})]
    found = [Call(name="f", arguments={"x": 1}), Call(name="f", arguments={"y": 2})]

    assert matched(expected, found) == 2
    assert matched(expected, list(reversed(found))) == 2
    assert matched(expected, found[1:] * 2) == 1


def test_expected_calls_may_be_given_as_the_public_dataset_writes_them() -> None:
    """There `answers` is JSON text."""
    row = ROWS[1]
    given = {
        "responses_create_params": row["responses_create_params"],
        "answers": json.dumps(row["expected_answers"]),
    }

    assert verdict(oracle(row), given)["reward"] == 1.0


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"expected_answers": []}, "at least 1"),
        ({"expected_answers": None}, "list"),
        ({"expected_answers": "[{"}, "not JSON"),
        ({"expected_answers": [{"arguments": {}}]}, "name"),
        ({"expected_answers": [{"name": "f", "arguments": [1]}]}, "arguments"),
    ],
)
def test_a_malformed_row_is_a_clear_422(broken: dict[str, Any], said: str) -> None:
    """The data is at fault, and must not look like a wrong answer."""
    body = {**ROWS[0], **broken, "response": response_of("", {})}
    answer = CLIENT.post("/verify", json=body)

    assert answer.status_code == 422
    assert said in answer.text


def test_twenty_verdicts_at_once_are_the_same() -> None:
    """Grading has no memory."""
    server = offline_server(XlamFcServer)
    body = XlamFcVerifyRequest.model_validate({**ROWS[2], "response": response_of(oracle(ROWS[2]), ROWS[2])})

    async def all_at_once() -> list[float]:
        return [result.reward for result in await asyncio.gather(*(server.verify(body) for _ in range(20)))]

    assert asyncio.run(all_at_once()) == [1.0] * 20


def test_any_tool_can_be_called_and_nothing_is_executed() -> None:
    """An agent that goes on after its calls must not fall over them."""
    assert CLIENT.post("/get_weather", json={"city": "Oslo"}).json() == {"tool": "get_weather", "status": "recorded"}


def test_metrics_tell_why_rollouts_failed() -> None:
    """A model that forgets calls needs another cure than one that invents them."""
    tasks = [
        [{"reward": 1.0, "failure_reason": None}, {"reward": 0.0, "failure_reason": "too_few_calls"}],
        [{"reward": 0.0, "failure_reason": "wrong_name"}, {"reward": 1.0, "failure_reason": None}],
    ]
    metrics = offline_server(XlamFcServer).compute_metrics(tasks)

    assert metrics["failure/too_few_calls"] == 0.25
    assert metrics["failure/wrong_name"] == 0.25


def test_the_example_data_is_what_the_generator_writes() -> None:
    """Committed data that drifts from its source is data nobody can explain."""
    lines = (DATA / "example.jsonl").read_text("utf-8").splitlines()

    assert [json.loads(line) for line in lines] == rows(5, seed=0)


def test_the_example_rollouts_get_the_same_verdict_today() -> None:
    """Committed rollouts that no longer hold mislead whoever looks at them."""
    for line in (DATA / "example_rollouts.jsonl").read_text("utf-8").splitlines():
        rollout = json.loads(line)
        again = asyncio.run(offline_server(XlamFcServer).verify(XlamFcVerifyRequest.model_validate(rollout)))
        assert (again.reward, again.failure_reason) == (rollout["reward"], rollout["failure_reason"])


def test_the_verifier_decides_every_case_as_written() -> None:
    """`gym env test` tries the same cases."""
    results = asyncio.run(exercise_verifier_fixture(VERIFIER_FIXTURE, seeded=True, reward_range=(0, 1), best=1.0))

    assert [result for result in results if not result.is_good] == []
