"""Prove the verifier of function calling: the expected calls in any order and spelling are right, no others are."""

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nemo_gym.authoring.model_replies import build_response, tool_call
from nemo_gym.authoring.verifier_cases import offline_server
from nemo_gym.authoring.verifier_proof import VerifierProof, offline_client, verify_reply
from resources_servers.xlam_fc.app import Call, XlamFcServer, count_matches, is_within_schema, same_value
from resources_servers.xlam_fc.audit import cheats, oracle, wrong
from resources_servers.xlam_fc.generate import rows

ROWS = rows(12, seed=1)


class TestProof(VerifierProof):
    """Oracle, odd forms, wrong answers, cheats, broken rows, example data and fixture cases."""

    folder = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def http() -> TestClient:
    return offline_client(XlamFcServer)


def test_every_verdict_counts_the_matches_or_gives_a_reason(http: TestClient) -> None:
    """A zero without a reason cannot be explained."""
    for row in ROWS:
        verdict = verify_reply(http, row, oracle(row))
        assert (verdict["matched_calls"], verdict["failure_reason"]) == (len(row["expected_answers"]), None)
        for reply in [*wrong(row), *(reply for _, reply in cheats(row)), "", "I will not."]:
            assert verify_reply(http, row, reply)["failure_reason"]


@pytest.mark.parametrize(
    ("expected", "actual", "is_same"),
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
        (10**400, 5.0, False),
        (10**400, 10**400 + 1, False),
        (10**400, 10**400, True),
    ],
)
def test_values_are_compared_as_json_means_them(expected: Any, actual: Any, is_same: bool) -> None:
    """In Python, 1 equals True."""
    assert same_value(expected, actual) is is_same


SEARCH = {"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "arguments", "is_valid"),
    [
        (SEARCH, {"query": "tea"}, True),
        (SEARCH, {"query": "tea", "limit": 5}, True),
        (SEARCH, {"query": "tea", "limit": "all of them"}, False),
        (SEARCH, {"query": "tea", "sudo": True}, False),
        ({**SEARCH, "additionalProperties": True}, {"query": "tea", "sudo": True}, True),
        ({**SEARCH, "additionalProperties": {"type": "integer"}}, {"query": "tea", "sudo": True}, False),
        ({**SEARCH, "required": ["query"]}, {"query": "tea", "limit": 5}, True),
        ({"type": "dict", "properties": {"query": {"type": "str"}}}, {"query": "tea", "sudo": True}, False),
        ({"type": "dict", "properties": {"query": {"type": "str"}}}, {"query": "tea"}, True),
        (None, {"query": "tea", "sudo": True}, True),
        ({"type": "object"}, {"query": "tea", "sudo": True}, False),
        ({"type": "object"}, {"query": "tea"}, True),
        ({"type": "object", "additionalProperties": True}, {"query": "tea", "sudo": True}, True),
        ({}, {"query": "tea", "sudo": True}, False),
        ({"query": {"type": "str"}, "limit": {"type": "int"}}, {"query": "tea", "limit": 5}, True),
        ({"query": {"type": "str"}}, {"query": "tea", "sudo": True}, False),
        ({"patternProperties": {"^x_": {"type": "integer"}}}, {"query": "tea", "x_depth": 5}, True),
        ({"patternProperties": {"^x_": {"type": "integer"}}}, {"query": "tea", "depth": 5}, False),
        ({"$ref": "#/$defs/s", "$defs": {"s": {**SEARCH, "required": ["query"]}}}, {"query": "tea", "limit": 5}, True),
        ({"$ref": "#/$defs/s", "$defs": {"s": SEARCH}}, {"query": "tea", "limit": "5"}, False),
        ({"allOf": [SEARCH]}, {"query": "tea", "sudo": True}, False),
        ({**SEARCH, "anyOf": [{"required": ["query"]}]}, {"query": "tea", "limit": 5}, True),
    ],
)
def test_arguments_that_the_tool_does_not_have_are_refused(schema: Any, arguments: Any, is_valid: bool) -> None:
    """An invented argument is a wrong call, even if every expected argument is right."""
    expected = Call(name="search", arguments={"query": "tea"})

    assert is_within_schema(expected, Call(name="search", arguments=arguments), schema) is is_valid


def test_calls_that_match_several_expected_calls_are_assigned_optimally() -> None:
    """Matching greedily would fail a right answer because of its order."""
    expected = [Call(name="f", arguments={}), Call(name="f", arguments={"x": 1})]
    calls = [Call(name="f", arguments={"x": 1}), Call(name="f", arguments={"y": 2})]

    assert count_matches(expected, calls) == 2
    assert count_matches(expected, list(reversed(calls))) == 2
    assert count_matches(expected, calls[1:] * 2) == 1


ALARM = {"hour": {"type": "integer"}, "sound": {"enum": ["bell", "bird"]}}


@pytest.mark.parametrize(
    ("sound", "reason"), [("bird", None), (None, "arguments_outside_schema"), ("rm -rf", "arguments_outside_schema")]
)
@pytest.mark.parametrize("is_reversed", [False, True])
def test_an_argument_of_another_expected_call_must_fit_the_schema(
    http: TestClient, sound: str | None, reason: str | None, is_reversed: bool
) -> None:
    """Each call is compared with the expected call that it stands for, not with all of that name."""
    tool = {"type": "function", "name": "alarm", "parameters": {"type": "object", "properties": ALARM}, "strict": False}
    row = {
        "responses_create_params": {"input": "Wake me at 6 and at 7, with a bell at 6.", "tools": [tool]},
        "expected_answers": [
            {"name": "alarm", "arguments": {"hour": 6, "sound": "bell"}},
            {"name": "alarm", "arguments": {"hour": 7}},
        ],
    }
    reply = tool_call("alarm", {"hour": 6, "sound": "bell"}) + tool_call("alarm", {"hour": 7, "sound": sound})

    verdict = verify_reply(http, row, list(reversed(reply)) if is_reversed else reply)

    assert (verdict["failure_reason"], verdict["matched_calls"]) == (reason, 2)


def test_calls_are_assigned_so_that_their_arguments_fit_the_schema(http: TestClient) -> None:
    """Both calls fit the first expected call, but one of them only as the second."""
    parameters = {"type": "object", "properties": {"x": {"type": "integer"}}}
    row = {
        "responses_create_params": {
            "input": "Go.",
            "tools": [{"type": "function", "name": "f", "parameters": parameters, "strict": False}],
        },
        "expected_answers": [{"name": "f", "arguments": {}}, {"name": "f", "arguments": {"x": "far"}}],
    }
    for calls in ([{"x": "far"}, {"x": 3}], [{"x": 3}, {"x": "far"}]):
        reply = [item for arguments in calls for item in tool_call("f", arguments)]
        assert verify_reply(http, row, reply)["reward"] == 1.0


def test_expected_calls_may_be_written_as_in_the_public_dataset(http: TestClient) -> None:
    """In the public dataset, `answers` is JSON text."""
    row = ROWS[1]
    public_row = {
        "responses_create_params": row["responses_create_params"],
        "answers": json.dumps(row["expected_answers"]),
    }

    assert verify_reply(http, public_row, oracle(row))["reward"] == 1.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"expected_answers": []}, "at least 1"),
        ({"expected_answers": None}, "list"),
        ({"expected_answers": "[{"}, "not JSON"),
        ({"expected_answers": [{"arguments": {}}]}, "name"),
        ({"expected_answers": [{"name": "f", "arguments": [1]}]}, "arguments"),
    ],
)
def test_a_malformed_row_is_refused_with_the_cause(http: TestClient, fields: dict[str, Any], message: str) -> None:
    """The author of the row must learn what to fix."""
    answer = http.post("/verify", json={**ROWS[0], **fields, "response": build_response("")})

    assert answer.status_code == 422
    assert message in answer.text


def test_any_tool_can_be_called_and_nothing_is_executed(http: TestClient) -> None:
    """An agent that runs its tool calls must not fail because of them."""
    assert http.post("/get_weather", json={"city": "Oslo"}).json() == {"tool": "get_weather", "status": "recorded"}


def test_metrics_give_the_share_of_each_failure_reason() -> None:
    """A model that forgets calls needs other training than one that invents them."""
    tasks = [
        [{"reward": 1.0, "failure_reason": None}, {"reward": 0.0, "failure_reason": "too_few_calls"}],
        [{"reward": 0.0, "failure_reason": "wrong_name"}, {"reward": 1.0, "failure_reason": None}],
    ]
    metrics = offline_server(XlamFcServer).compute_metrics(tasks)

    assert metrics["failure/too_few_calls"] == 0.25
    assert metrics["failure/wrong_name"] == 0.25
