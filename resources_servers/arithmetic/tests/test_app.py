"""The oracle scores full, the null answer and the cheats score nothing."""

import asyncio
import json
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from fastapi.testclient import TestClient

from nemo_gym.environment.verifier_fixture import exercise_verifier_fixture
from nemo_gym.server_utils import ServerClient
from resources_servers.arithmetic.app import VERIFIER_FIXTURE, ArithmeticConfig, ArithmeticServer, last_number
from resources_servers.arithmetic.generate import EXAMPLES, rows

ROW = rows(1, digits=1, seed=3)[0]


@pytest.fixture
def client() -> TestClient:
    config = ArithmeticConfig(host="127.0.0.1", port=1, entrypoint="app.py", name="arithmetic")
    server = ArithmeticServer(config=config, server_client=MagicMock(spec=ServerClient))
    return TestClient(server.setup_webserver())


def response(text: str) -> dict[str, Any]:
    message = {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }
    return {
        "id": "resp_1",
        "created_at": 0.0,
        "model": "m",
        "object": "response",
        "output": [message] if text else [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def verdict(client: TestClient, text: str, row: dict[str, Any] = ROW) -> dict[str, Any]:
    answer = client.post("/verify", json={**row, "response": response(text)})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_every_generated_row_is_solved_by_its_oracle(client: TestClient) -> None:
    """A row whose own answer scores less than full would teach the wrong thing."""
    for row in rows(20, digits=2, seed=1):
        assert verdict(client, f"The sum is {row['expected_answer']}.", row)["reward"] == 1.0


@pytest.mark.parametrize("text", ["", "I do not know.", "None", "nan", "inf", "1e999"])
def test_no_answer_scores_nothing(client: TestClient, text: str) -> None:
    """Silence is not a sum."""
    result = verdict(client, text)

    assert result["reward"] == 0.0


def test_repeating_the_question_scores_nothing(client: TestClient) -> None:
    """The cheapest cheat: the prompt ends in a number too."""
    for row in rows(30, digits=1, seed=5):
        question = row["responses_create_params"]["input"][-1]["content"]
        assert verdict(client, question, row)["reward"] == 0.0


def test_listing_every_number_scores_nothing(client: TestClient) -> None:
    """Only the last number counts, so hedging does not pay."""
    assert verdict(client, " ".join(str(n) for n in range(100)))["reward"] == 0.0


@pytest.mark.parametrize(
    ("text", "number"),
    [("3 + 4 = 7", 7), ("it is 1,024.", 1024), ("-3", -3), ("x2", None), ("", None), ("2.50", 2.5), ("٣", None)],
)
def test_the_last_number_is_read_as_people_write_it(text: str, number: float | None) -> None:
    """Digits inside words and other scripts are not answers."""
    assert last_number(text) == number


def test_the_shown_examples_are_never_asked(client: TestClient) -> None:
    """A worked example in the prompt must not be the question."""
    asked = {row["responses_create_params"]["input"][-1]["content"] for row in rows(60, digits=1, seed=0)}

    assert not asked & {f"What is {a} + {b}?" for a, b in EXAMPLES}


def test_the_example_data_is_what_the_generator_writes() -> None:
    """Committed data that drifts from its source is data nobody can explain."""
    path = Path(__file__).parent.parent / "data" / "example.jsonl"

    assert [json.loads(line) for line in path.read_text().splitlines()] == rows(5, digits=1, seed=0)


def test_the_verifier_decides_every_case_as_written():
    """`gym env test arithmetic` tries the same cases."""
    results = asyncio.run(exercise_verifier_fixture(VERIFIER_FIXTURE, seeded=True, reward_range=(0, 1), best=1.0))

    assert [result for result in results if not result.is_good] == []
