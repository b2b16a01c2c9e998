"""The oracle scores full, each step scores its weight, and shortcuts score nothing."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError

from nemo_gym.server_utils import ServerClient
from resources_servers.example_tool_call_multireward.app import (
    TOOLS,
    ConversionConfig,
    ConversionRunRequest,
    ConversionServer,
    ConvertTemperatureRequest,
    Weights,
    converted,
    last_number,
)
from resources_servers.example_tool_call_multireward.generate import PAIRS, UNITS, VALUES, row, rows

WEIGHTS = {"right_tool": 0.25, "right_arguments": 0.5, "answered": 0.25}
ROW = row("convert_length", 20, "mile", "metre")
ARGUMENTS = ROW["expected_arguments"]
RESULT = 32186.88
NOTHING = dict.fromkeys(WEIGHTS, 0.0)


def server(**weights: float) -> ConversionServer:
    config = ConversionConfig(
        host="127.0.0.1", port=1, entrypoint="app.py", name="conversions", weights=Weights(**(weights or WEIGHTS))
    )
    return ConversionServer(config=config, server_client=MagicMock(spec=ServerClient))


@pytest.fixture
def client() -> TestClient:
    return TestClient(server().setup_webserver())


def called(arguments: Any = ARGUMENTS, name: str = "convert_length", number: int = 0) -> list[dict[str, Any]]:
    """A tool call and its answer."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    call_id = f"call_{number}"
    return [
        {"type": "function_call", "call_id": call_id, "name": name, "arguments": text},
        {"type": "function_call_output", "call_id": call_id, "output": json.dumps({"value": RESULT})},
    ]


def said(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}


def verdict(client: TestClient, output: list[dict[str, Any]], task: dict[str, Any] = ROW) -> dict[str, Any]:
    response = {
        "id": "resp_1",
        "created_at": 0.0,
        "model": "m",
        "object": "response",
        "output": output,
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
    }
    reply = client.post("/verify", json={**task, "response": response})
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def test_every_generated_row_is_solved_by_its_oracle(client: TestClient) -> None:
    """The oracle says what the real tool answered."""
    for task in rows(30, seed=1):
        name, arguments = task["expected_tool"], task["expected_arguments"]
        told = client.post(f"/{name}", json=arguments).json()["value"]

        result = verdict(client, [*called(arguments, name), said(f"That makes {told}")], task)

        assert (result["reward"], result["reward_components"]) == (1.0, dict.fromkeys(WEIGHTS, 1.0))


@pytest.mark.parametrize("output", [[], [said("I do not know.")], [said("")]], ids=["silence", "words", "empty"])
def test_doing_nothing_scores_nothing(client: TestClient, output: list[dict[str, Any]]) -> None:
    """The null answer is the floor."""
    result = verdict(client, output)

    assert (result["reward"], result["reward_components"]) == (0.0, NOTHING)


@pytest.mark.parametrize(
    ("output", "components"),
    [
        (called({**ARGUMENTS, "value": 21}), (1, 0, 0)),
        (called({**ARGUMENTS, "from_unit": "metre", "to_unit": "mile"}), (1, 0, 0)),
        (called(), (1, 1, 0)),
        ([*called(), said("There you are.")], (1, 1, 0)),
        ([*called(), said("It is 32186.2 metres")], (1, 1, 0)),
        ([*called(), said("It is 32,186.9")], (1, 1, 1)),
    ],
    ids=["wrong value", "swapped units", "no words", "no number", "wrong number", "one decimal"],
)
def test_each_step_earns_its_own_weight(
    client: TestClient, output: list[dict[str, Any]], components: tuple[int, ...]
) -> None:
    """A trainer sees how far the model came, not only whether it arrived."""
    result = verdict(client, output)

    assert tuple(result["reward_components"].values()) == components
    assert result["reward"] == sum(w * c for w, c in zip(WEIGHTS.values(), components, strict=True))


def test_the_weights_decide_what_a_step_is_worth() -> None:
    """They are configuration: what to train for is the user's choice."""
    client = TestClient(server(right_tool=0.1, right_arguments=0.2, answered=0.7).setup_webserver())

    assert verdict(client, called())["reward"] == pytest.approx(0.3)
    assert verdict(client, [*called(), said(str(RESULT))])["reward"] == 1.0


@pytest.mark.parametrize(
    "output",
    [
        [said(f"It is {RESULT}")],
        [*called(name="convert_mass"), said(f"It is {RESULT}")],
        [*called(name="convert_anything"), said(f"It is {RESULT}")],
        [*called(), *called(number=1), said(f"It is {RESULT}")],
        [*(item for n, name in enumerate(TOOLS) for item in called(name=name, number=n)), said(f"It is {RESULT}")],
        [said(json.dumps({"name": "convert_length", "arguments": ARGUMENTS})), said(str(RESULT))],
    ],
    ids=["no call", "wrong tool", "no such tool", "called twice", "every tool", "call in prose"],
)
def test_shortcuts_score_nothing(client: TestClient, output: list[dict[str, Any]]) -> None:
    """The right number alone is worth nothing here: the task is to get it from the tool."""
    assert verdict(client, output)["reward_components"] == NOTHING


def test_a_number_said_before_the_tool_answered_is_no_answer(client: TestClient) -> None:
    """A guess that happens to be right stays a guess."""
    assert verdict(client, [said(f"It is {RESULT}"), *called()])["reward_components"]["answered"] == 0.0


def test_listing_numbers_is_no_answer(client: TestClient) -> None:
    """Only the last number counts, so hedging does not pay."""
    listed = " ".join(map(str, (20, RESULT, 1, 2, 3)))

    assert verdict(client, [*called(), said(listed)])["reward_components"]["answered"] == 0.0


def test_repeating_the_question_is_no_answer(client: TestClient) -> None:
    """The question holds a number too."""
    for task in rows(30, seed=3):
        question = task["responses_create_params"]["input"][-1]["content"]
        output = [*called(task["expected_arguments"], task["expected_tool"]), said(question)]
        assert verdict(client, output, task)["reward_components"]["answered"] == 0.0


@pytest.mark.parametrize(
    "text",
    ["", "not json", "[]", "null", '{"value": 20', "{}", '{"value": "20", "from_unit": "mile", "to_unit": "metre"}'],
)
def test_arguments_the_tool_would_refuse_are_wrong_ones(client: TestClient, text: str) -> None:
    """A broken call is a wrong answer, never a failure of the verifier."""
    assert tuple(verdict(client, [*called(text), said(str(RESULT))])["reward_components"].values()) == (1, 0, 0)


def test_the_order_and_writing_of_arguments_do_not_matter(client: TestClient) -> None:
    """They are compared as the tool reads them."""
    text = '{"to_unit": "metre", "from_unit": "mile", "value": 20.0}'

    assert verdict(client, [*called(text), said(f"{RESULT}")])["reward"] == 1.0


@pytest.mark.parametrize(
    ("text", "number"),
    [("it is 32,186.88.", 32186.88), ("-3", -3.0), ("\N{MINUS SIGN}3.5", -3.5), ("m2", None), ("", None), ("2-3", 3.0)],
)
def test_the_last_number_is_read_as_people_write_it(text: str, number: float | None) -> None:
    """Models write a typographic minus before temperatures."""
    assert last_number(text) == number


def test_a_tool_reached_over_mcp_counts_under_its_own_name(client: TestClient) -> None:
    """MCP clients put the server's name before the tool's."""
    output = [*called(name="mcp__conversions__convert_length"), said(str(RESULT))]

    assert verdict(client, output)["reward"] == 1.0


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
def test_the_tools_know_their_units(
    client: TestClient, tool: str, value: float, from_unit: str, to_unit: str, result: float
) -> None:
    """Figures anyone can look up."""
    reply = client.post(f"/{tool}", json={"value": value, "from_unit": from_unit, "to_unit": to_unit})

    assert reply.json() == {"value": result, "unit": to_unit}


def test_a_tool_refuses_units_that_are_not_its_own(client: TestClient) -> None:
    """The model is told which argument is wrong."""
    reply = client.post("/convert_mass", json=ARGUMENTS)

    assert reply.status_code == 422
    assert [problem["loc"] for problem in reply.json()["detail"]] == [["body", "from_unit"], ["body", "to_unit"]]


@pytest.mark.parametrize("changed", [{"answered": 0.5}, {"right_tool": -0.25, "answered": 0.75}, {"style": 0.0}])
def test_weights_that_do_not_make_a_score_are_refused(changed: dict[str, float]) -> None:
    """A reward that cannot reach 1, or can pass it, would be noticed after the training run."""
    with pytest.raises(ValidationError):
        Weights(**{**WEIGHTS, **changed})


def test_weights_rounded_by_hand_still_reach_both_ends() -> None:
    """A third is not a decimal; a perfect rollout is perfect all the same."""
    thirds = Weights(**dict.fromkeys(WEIGHTS, 0.3333333333))

    assert thirds.reward(dict.fromkeys(WEIGHTS, 1.0)) == 1.0
    assert thirds.reward(NOTHING) == 0.0


def test_a_row_whose_call_does_not_fit_its_tool_is_refused() -> None:
    """Bad data is told when it is read, not as a zero for every model."""
    with pytest.raises(ValidationError, match="from_unit"):
        ConversionRunRequest.model_validate({**ROW, "expected_tool": "convert_mass"})


def test_the_means_of_the_components_are_among_the_metrics() -> None:
    """The headline says which part is missing."""
    halves = [{"reward_components": dict.fromkeys(WEIGHTS, value)} for value in (0.0, 1.0)]

    metrics = server().compute_metrics([[halves[0]], [halves[1]]])

    assert server().get_key_metrics({"mean/reward": 0.5, "mean/told_answer": 7.0, **metrics}) == {
        "mean/reward": 0.5,
        **metrics,
    }
    assert metrics == {f"mean/reward_components/{name}": 0.5 for name in WEIGHTS}
    assert server().compute_metrics([]) == {}


def test_rows_offer_the_units_the_tools_take() -> None:
    """The schema shown to the model and the one that checks its call are the same."""
    for name, units in UNITS.items():
        shown = TOOLS[name].model_json_schema()["properties"]
        assert shown["from_unit"]["enum"] == shown["to_unit"]["enum"] == units


def test_no_result_is_close_to_the_number_in_its_question() -> None:
    """Else repeating the question would answer it; and lengths and masses never round to nothing."""
    asked = [
        TOOLS[name](value=value, from_unit=units[0], to_unit=units[1])
        for name, pairs in PAIRS.items()
        for pair in pairs
        for units in (pair, pair[::-1])
        for value in VALUES
    ]

    assert all(abs(converted(one) - one.value) > 0.5 for one in asked)
    assert all(abs(converted(one)) > 0.5 for one in asked if not isinstance(one, ConvertTemperatureRequest))


def test_the_example_data_is_what_the_generator_writes() -> None:
    """Committed data that drifts from its source is data nobody can explain."""
    path = Path(__file__).parent.parent / "data" / "example.jsonl"

    assert [json.loads(line) for line in path.read_text().splitlines()] == rows(5, seed=0)


def test_stored_rollouts_can_be_verified_again(client: TestClient) -> None:
    """The committed rollouts keep their rewards: four in full, and one that has the form but not the number."""
    path = Path(__file__).parent.parent / "data" / "example_rollouts.jsonl"
    stored = [json.loads(line) for line in path.read_text().splitlines()]

    assert client.get("/reverify_mode").json() == {"reverify_mode": "stateless"}
    assert sorted(one["reward"] for one in stored) == [0.75, 1.0, 1.0, 1.0, 1.0]
    for one in stored:
        again = client.post("/verify", json=one).json()
        assert (again["reward"], again["reward_components"]) == (one["reward"], one["reward_components"])
