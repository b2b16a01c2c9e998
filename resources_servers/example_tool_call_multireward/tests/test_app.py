"""Prove the conversion task: each step earns its weight, all steps earn the full reward, shortcuts earn nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError

from nemo_gym.authoring.model_replies import Reply, message, tool_call
from nemo_gym.authoring.verifier_cases import offline_server
from nemo_gym.authoring.verifier_proof import VerifierProof, offline_client, verify_reply
from resources_servers.example_tool_call_multireward.app import (
    TOOLS,
    ConversionServer,
    ConvertTemperatureRequest,
    Weights,
    convert,
    last_number,
)
from resources_servers.example_tool_call_multireward.generate import PAIRS, UNITS, VALUES, row

WEIGHTS = {"right_tool": 0.25, "right_arguments": 0.5, "answered": 0.25}
ROW = row("convert_length", 20, "mile", "metre")
ARGUMENTS = ROW["expected_arguments"]
RESULT = 32186.88


class TestProof(VerifierProof):
    """Oracle, odd forms, wrong answers, cheats, broken rows and example data."""

    folder = Path(__file__).parents[1]


@pytest.fixture
def http() -> TestClient:
    return offline_client(ConversionServer, weights=WEIGHTS)


def convert_call(arguments: Any = ARGUMENTS) -> list[dict[str, Any]]:
    return tool_call("convert_length", arguments, {"value": RESULT})


def components(http: TestClient, reply: Reply) -> tuple[float, ...]:
    return tuple(verify_reply(http, ROW, reply)["reward_components"].values())


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ([], (0, 0, 0)),
        (convert_call({**ARGUMENTS, "value": 21}), (1, 0, 0)),
        (convert_call({**ARGUMENTS, "from_unit": "metre", "to_unit": "mile"}), (1, 0, 0)),
        (convert_call(), (1, 1, 0)),
        ([*convert_call(), message("There you are.")], (1, 1, 0)),
        ([*convert_call(), message("It is 32186.2 metres")], (1, 1, 0)),
        ([*convert_call(), message("It is 32,186.9")], (1, 1, 1)),
    ],
    ids=["silence", "wrong value", "swapped units", "no words", "no number", "wrong number", "one decimal"],
)
def test_each_step_earns_its_weight(http: TestClient, reply: Reply, expected: tuple[int, ...]) -> None:
    """A trainer sees how far the model came, not only whether it arrived."""
    assert components(http, reply) == expected
    assert verify_reply(http, ROW, reply)["reward"] == sum(
        weight * component for weight, component in zip(WEIGHTS.values(), expected, strict=True)
    )


def expected_call(name: str, arguments: Any) -> dict[str, Any]:
    return {"responses_create_params": ROW["responses_create_params"], "expected_call": call_of(name, arguments)}


def call_of(name: str, arguments: Any) -> dict[str, Any]:
    return {"type": "function_call", "name": name, "arguments": arguments}


@pytest.mark.parametrize("arguments", [ARGUMENTS, json.dumps(ARGUMENTS)], ids=["object", "text"])
def test_an_existing_row_names_the_expected_call(arguments: Any) -> None:
    """Rows written for NeMo Gym have one field for tool and arguments, and their configuration has no weights."""
    http, row = offline_client(ConversionServer), expected_call("convert_length", arguments)

    assert verify_reply(http, row, [*convert_call(), message(str(RESULT))])["reward"] == 1.0
    assert verify_reply(http, row, convert_call())["reward"] == 0.75


@pytest.mark.parametrize(
    ("name", "arguments", "reward"),
    [("get_weather", {"city": "Rome"}, 1.0), ("get_weather", {"city": "Oslo"}, 1 / 3), ("get_time", {}, 0.0)],
)
def test_the_call_of_a_foreign_tool_is_graded_without_a_result(name: str, arguments: Any, reward: float) -> None:
    """A component that cannot be measured must neither pay nor cost."""
    http, row = offline_client(ConversionServer), expected_call("get_weather", {"city": "Rome"})

    verdict = verify_reply(http, row, [*tool_call(name, arguments, "ok"), message("12")])

    assert verdict["reward"] == pytest.approx(reward)
    assert set(verdict["reward_components"]) == set(verdict["reward_weights"]) == {"right_tool", "right_arguments"}


def test_a_component_without_weight_leaves_the_others_equal() -> None:
    """The reward of a foreign call must not be a division by zero."""
    http = offline_client(ConversionServer, weights={"right_tool": 0, "right_arguments": 0, "answered": 1})
    row = expected_call("get_weather", {"city": "Rome"})

    assert verify_reply(http, row, tool_call("get_weather", {"city": "Oslo"}, "ok"))["reward"] == 0.5


def test_the_weights_decide_the_value_of_a_step() -> None:
    """They are configuration: the user chooses what to train for."""
    http = offline_client(ConversionServer, weights={"right_tool": 0.1, "right_arguments": 0.2, "answered": 0.7})

    assert verify_reply(http, ROW, convert_call())["reward"] == pytest.approx(0.3)
    assert verify_reply(http, ROW, [*convert_call(), message(str(RESULT))])["reward"] == 1.0


def test_only_the_last_number_after_the_tool_s_answer_counts(http: TestClient) -> None:
    """A guess stays a guess, and hedging or echoing the question does not pay."""
    question = ROW["responses_create_params"]["input"][-1]["content"]
    replies = [
        [message(f"It is {RESULT}"), *convert_call()],
        [*convert_call(), message(f"20 {RESULT} 1 2 3")],
        [*convert_call(), message(question)],
    ]

    assert [components(http, reply)[-1] for reply in replies] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "text",
    ["", "not json", "[]", "null", '{"value": 20', "{}", '{"value": "20", "from_unit": "mile", "to_unit": "metre"}'],
)
def test_arguments_the_tool_would_refuse_are_wrong(http: TestClient, text: str) -> None:
    """A broken call is a wrong answer, never a failure of the verifier."""
    assert components(http, [*convert_call(text), message(str(RESULT))]) == (1, 0, 0)


@pytest.mark.parametrize(
    ("text", "number"),
    [("it is 32,186.88.", 32186.88), ("-3", -3.0), ("\N{MINUS SIGN}3.5", -3.5), ("m2", None), ("", None), ("2-3", 3.0)],
)
def test_the_last_number_is_read_as_people_write_it(text: str, number: float | None) -> None:
    """Models write a typographic minus before temperatures."""
    assert last_number(text) == number


@pytest.mark.parametrize(
    ("tool", "value", "from_unit", "to_unit", "result"),
    [
        ("convert_length", 26.2, "mile", "kilometre", 42.16),
        ("convert_length", 6, "foot", "metre", 1.83),
        ("convert_mass", 1, "pound", "ounce", 16.0),
        ("convert_mass", 2.5, "kilogram", "pound", 5.51),
        ("convert_temperature", -40, "fahrenheit", "celsius", -40.0),
        ("convert_temperature", 100, "celsius", "fahrenheit", 212.0),
        ("convert_temperature", 0, "kelvin", "celsius", -273.15),
    ],
)
def test_the_tools_convert_their_units(
    http: TestClient, tool: str, value: float, from_unit: str, to_unit: str, result: float
) -> None:
    """Figures anyone can look up."""
    reply = http.post(f"/{tool}", json={"value": value, "from_unit": from_unit, "to_unit": to_unit})

    assert reply.json() == {"value": result, "unit": to_unit}


def test_a_tool_refuses_units_of_another_tool(http: TestClient) -> None:
    """The model must learn which argument is wrong."""
    reply = http.post("/convert_mass", json=ARGUMENTS)

    assert reply.status_code == 422
    assert [problem["loc"] for problem in reply.json()["detail"]] == [["body", "from_unit"], ["body", "to_unit"]]


@pytest.mark.parametrize("changes", [{"answered": 0.5}, {"right_tool": -0.25, "answered": 0.75}, {"style": 0.0}])
def test_weights_that_do_not_sum_to_one_are_refused(changes: dict[str, float]) -> None:
    """A reward that cannot reach 1, or can pass it, would be noticed after the training run."""
    with pytest.raises(ValidationError):
        Weights(**{**WEIGHTS, **changes})


def test_weights_rounded_by_hand_still_reach_both_ends() -> None:
    """A third is not a decimal; a perfect rollout is perfect all the same."""
    thirds = Weights(**dict.fromkeys(WEIGHTS, 0.3333333333))

    assert thirds.reward(dict.fromkeys(WEIGHTS, 1.0)) == 1.0
    assert thirds.reward(dict.fromkeys(WEIGHTS, 0.0)) == 0.0


def test_the_means_of_the_components_are_among_the_metrics() -> None:
    """The headline says which part is missing."""
    server = offline_server(ConversionServer, weights=WEIGHTS)
    halves = [{"reward_components": dict.fromkeys(WEIGHTS, value)} for value in (0.0, 1.0)]

    metrics = server.compute_metrics([[halves[0]], [halves[1]]])

    assert metrics == {f"mean/reward_components/{name}": 0.5 for name in WEIGHTS}
    assert server.get_key_metrics({"mean/reward": 0.5, "mean/told_answer": 7.0, **metrics}) == {
        "mean/reward": 0.5,
        **metrics,
    }
    assert server.compute_metrics([]) == {}


def test_rows_offer_the_units_the_tools_take() -> None:
    """The schema shown to the model and the one that checks its call are the same."""
    for name, units in UNITS.items():
        properties = TOOLS[name].model_json_schema()["properties"]
        assert properties["from_unit"]["enum"] == properties["to_unit"]["enum"] == units


def test_no_result_is_close_to_the_number_in_its_question() -> None:
    """Else repeating the question would answer it; and lengths and masses never round to zero."""
    requests = [
        TOOLS[name](value=value, from_unit=units[0], to_unit=units[1])
        for name, pairs in PAIRS.items()
        for pair in pairs
        for units in (pair, pair[::-1])
        for value in VALUES
    ]

    assert all(abs(convert(request) - request.value) > 0.5 for request in requests)
    assert all(abs(convert(one)) > 0.5 for one in requests if not isinstance(one, ConvertTemperatureRequest))


def test_stored_rollouts_keep_their_components(http: TestClient) -> None:
    """Four examples are solved; one has the right call and the wrong number."""
    path = Path(__file__).parents[1] / "data" / "example_rollouts.jsonl"
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]

    assert sorted(record["reward"] for record in records) == [0.75, 1.0, 1.0, 1.0, 1.0]
    verdicts = [http.post("/verify", json=record).json() for record in records]
    assert [one["reward_components"] for one in verdicts] == [record["reward_components"] for record in records]
