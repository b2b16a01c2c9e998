"""The oracle scores full; silence, guesses and shortcuts score nothing."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from fastapi.testclient import TestClient

from nemo_gym.server_utils import ServerClient
from resources_servers.example_multi_step.app import MultiStepConfig, MultiStepServer, value_of
from resources_servers.example_multi_step.generate import THESAURUS, rows

WORDS = ["blazing", "torrid", "scalding"]
VALUES = [value_of(word) for word in WORDS]
ROW = {"responses_create_params": {"input": "What are the values?"}, "expected_synonyms": WORDS}


@pytest.fixture
def client() -> TestClient:
    config = MultiStepConfig(host="127.0.0.1", port=1, entrypoint="app.py", name="example_multi_step")
    return TestClient(MultiStepServer(config=config, server_client=MagicMock(spec=ServerClient)).setup_webserver())


def call(number: int, name: str, arguments: Any) -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"type": "function_call", "call_id": f"call_{number}", "name": name, "arguments": text}


def answer(number: int, output: str = "{}") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"call_{number}", "output": output}


def lookups(words: list[str]) -> list[dict[str, Any]]:
    """One lookup after the other, each with its answer."""
    turns = [(call(n, "get_synonym_value", {"synonym": word}), answer(n)) for n, word in enumerate(words)]
    return [item for turn in turns for item in turn]


def submission(values: Any, number: int = 90) -> list[dict[str, Any]]:
    return [call(number, "extract_synonym_values", {"synonym_values": values}), answer(number)]


def prose(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}


def verdict(client: TestClient, output: list[dict[str, Any]], row: dict[str, Any] = ROW) -> dict[str, Any]:
    response = {
        "id": "resp_1",
        "created_at": 0.0,
        "model": "m",
        "object": "response",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    reply = client.post("/verify", json={**row, "response": response})
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def test_every_generated_row_is_solved_by_its_oracle(client: TestClient) -> None:
    """The oracle knows nothing but the row and what the tools tell it."""
    for row in rows(24, seed=1):
        words = row["expected_synonyms"]
        told = [client.post("/get_synonym_value", json={"synonym": word}).json()["synonym_value"] for word in words]

        assert verdict(client, [*lookups(words), *submission(told), prose("Done.")], row)["reward"] == 1.0


def test_lookups_made_at_the_same_time_are_as_good(client: TestClient) -> None:
    """A model may ask for all values in one turn; only the submission has to wait."""
    calls = [call(n, "get_synonym_value", {"synonym": word}) for n, word in enumerate(WORDS)]

    result = verdict(client, [*calls, *(answer(n) for n in range(3)), *submission(VALUES)])

    assert result["reward"] == 1.0


def test_further_lookups_and_another_spelling_cost_nothing(client: TestClient) -> None:
    """Capitals are not a mistake, and neither is curiosity."""
    output = [*lookups(["hot", " Blazing", "TORRID", "scalding"]), *submission(VALUES)]

    assert verdict(client, output)["reward"] == 1.0


def test_tools_reached_over_mcp_count_under_their_own_name(client: TestClient) -> None:
    """MCP clients put the server's name before the tool's."""
    output = [*lookups(WORDS), *submission(VALUES)]
    for item in output:
        if "name" in item:
            item["name"] = f"mcp__example_multi_step__{item['name']}"

    assert verdict(client, output)["reward"] == 1.0


@pytest.mark.parametrize("output", [[], [prose("I do not know.")], lookups(WORDS)], ids=["silence", "words", "no end"])
def test_without_a_submission_there_is_no_reward(client: TestClient, output: list[dict[str, Any]]) -> None:
    """Nothing was handed in, so nothing is graded."""
    result = verdict(client, output)

    assert (result["reward"], result["submissions"], result["submitted_values"]) == (0.0, 0, None)


def test_values_in_prose_are_no_submission(client: TestClient) -> None:
    """The task is to call a tool with them."""
    assert verdict(client, [*lookups(WORDS), prose(f"synonym_values: {VALUES}")])["reward"] == 0.0


@pytest.mark.parametrize(
    "values",
    [
        VALUES[:2],
        [],
        [*VALUES, 1000],
        [*VALUES, VALUES[0]],
        [1000, 2000, 3000],
        [[*VALUES]],
        [float(v) + 0.5 for v in VALUES],
        [str(v) for v in VALUES],
        None,
        str(VALUES),
        {"0": VALUES[0]},
    ],
    ids=["partial", "empty", "one too many", "twice", "wrong", "nested", "near", "text", "null", "string", "object"],
)
def test_any_other_list_scores_nothing(client: TestClient, values: Any) -> None:
    """Exactly the expected values, as numbers."""
    assert verdict(client, [*lookups(WORDS), *submission(values)])["reward"] == 0.0


def test_a_reordered_list_scores_nothing_and_is_called_that(client: TestClient) -> None:
    """The commonest near miss has a name, so that it can be counted."""
    result = verdict(client, [*lookups(WORDS), *submission(VALUES[::-1])])

    assert (result["reward"], result["is_reordered"], result["overlap"]) == (0.0, True, 1.0)


def test_a_partial_list_tells_how_much_was_there(client: TestClient) -> None:
    """Overlap separates an almost from a nothing."""
    result = verdict(client, [*lookups(WORDS), *submission(VALUES[:2])])

    assert (result["overlap"], result["is_reordered"]) == (pytest.approx(2 / 3), False)


def test_a_second_submission_forfeits_the_reward(client: TestClient) -> None:
    """Else a model submits every order it can think of."""
    right, wrong = submission(VALUES, 90), submission(VALUES[::-1], 91)

    for order in ([*wrong, *right], [*right, *wrong], [*right, *right]):
        assert verdict(client, [*lookups(WORDS), *order])["reward"] == 0.0


def test_values_nobody_looked_up_score_nothing(client: TestClient) -> None:
    """A value known by heart from training is not the skill the task is about."""
    result = verdict(client, submission(VALUES))

    assert (result["reward"], result["looked_up"]) == (0.0, 0.0)
    assert verdict(client, [*lookups(["hot", "cold", "big"]), *submission(VALUES)])["reward"] == 0.0
    assert verdict(client, [*submission(VALUES), *lookups(WORDS)])["reward"] == 0.0


def test_a_submission_in_the_turn_of_its_lookups_is_a_guess(client: TestClient) -> None:
    """The answers come back after the submission was written."""
    calls = [call(n, "get_synonym_value", {"synonym": word}) for n, word in enumerate(WORDS)]
    hand_in, taken = submission(VALUES)

    result = verdict(client, [*calls, hand_in, *(answer(n) for n in range(3)), taken])

    assert (result["reward"], result["looked_up"]) == (0.0, 0.0)


@pytest.mark.parametrize("text", ["", "not json", "[]", "null", '{"synonym_values": [1', '{"values": [1]}'])
def test_unreadable_arguments_score_nothing(client: TestClient, text: str) -> None:
    """A broken call is a wrong answer, never a failure of the verifier."""
    result = verdict(client, [*lookups(WORDS), call(90, "extract_synonym_values", text), answer(90)])

    assert (result["reward"], result["submissions"], result["submitted_values"]) == (0.0, 1, None)


def test_the_submission_tool_does_not_tell_whether_it_was_right(client: TestClient) -> None:
    """Feedback there would turn the task into a search."""
    replies = [client.post("/extract_synonym_values", json={"synonym_values": v}).json() for v in (VALUES, [1])]

    assert replies[0] == replies[1]


def test_the_thesaurus_has_no_ambiguous_word_or_value() -> None:
    """Two equal values would hide a wrong order; a word in two entries would have two places."""
    words = [*THESAURUS, *(word for entry in THESAURUS.values() for word in entry)]

    assert len(set(words)) == len(words)
    assert len({value_of(word) for word in words}) == len(words)


def test_no_prompt_gives_a_value_away() -> None:
    """Values come from the tool alone."""
    for row in rows(24, seed=2):
        text = json.dumps(row)
        assert not any(str(value_of(word)) in text for word in row["expected_synonyms"])


def test_the_example_data_is_what_the_generator_writes() -> None:
    """Committed data that drifts from its source is data nobody can explain."""
    path = Path(__file__).parent.parent / "data" / "example.jsonl"

    assert [json.loads(line) for line in path.read_text().splitlines()] == rows(5, seed=0)


def test_stored_rollouts_can_be_verified_again(client: TestClient) -> None:
    """The committed rollouts keep their rewards, and they show a success and a failure."""
    path = Path(__file__).parent.parent / "data" / "example_rollouts.jsonl"
    stored = [json.loads(line) for line in path.read_text().splitlines()]

    assert client.get("/reverify_mode").json() == {"reverify_mode": "stateless"}
    assert {row["reward"] for row in stored} == {0.0, 1.0}
    for row in stored:
        assert client.post("/verify", json=row).json()["reward"] == row["reward"]
