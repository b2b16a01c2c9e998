import json
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from nemo_gym.server_utils import ServerClient
from resources_servers.example_session_state_mgmt.app import CounterConfig, CounterRunRequest, CounterServer

EXAMPLES = Path(__file__).parents[1] / "data" / "example.jsonl"
RESPONSE = {
    "id": "r",
    "created_at": 0,
    "model": "m",
    "object": "response",
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}


@pytest.fixture
def app() -> FastAPI:
    config = CounterConfig(host="127.0.0.1", port=1, entrypoint="app.py", name="counter")
    return CounterServer(config=config, server_client=MagicMock(spec=ServerClient)).setup_webserver()


def verify(http: TestClient, expected: int) -> dict[str, Any]:
    row = {"responses_create_params": {"input": "count"}, "expected_count": expected, "response": RESPONSE}
    return http.post("/verify", json=row).json()


def test_the_counter_starts_at_the_seed_and_remembers(app):
    """Seed, tools and verdict meet in one session."""
    http = TestClient(app)
    http.post("/seed_session", json={"initial_count": 3})

    assert http.post("/increment_counter", json={"count": 4}).json() == {"success": True}
    http.post("/increment_counter", json={"count": 5})

    assert http.post("/get_counter_value", json={}).json() == {"count": 12}
    verdict = verify(http, expected=12)
    assert (verdict["reward"], verdict["final_count"]) == (1.0, 12)


@pytest.mark.parametrize(("added", "reward"), [(4, 1.0), (5, 0.0), (-4, 0.0)])
def test_only_the_expected_count_earns_the_reward(app, added, reward):
    """Doing nothing, or the wrong thing, scores zero."""
    http = TestClient(app)
    http.post("/seed_session", json={"initial_count": 3})
    http.post("/increment_counter", json={"count": added})

    assert verify(http, expected=7)["reward"] == reward


def test_two_sessions_do_not_share_a_counter(app):
    """Thousands of rollouts use one server at once."""
    ada, bob = TestClient(app), TestClient(app)
    ada.post("/seed_session", json={"initial_count": 1})
    bob.post("/seed_session", json={"initial_count": 100})

    ada.post("/increment_counter", json={"count": 1})

    assert verify(ada, expected=2)["reward"] == 1.0
    assert verify(bob, expected=100)["reward"] == 1.0


def test_a_session_is_forgotten_after_its_verdict(app):
    """Memory is bounded by what is in flight."""
    http = TestClient(app)
    http.post("/seed_session", json={"initial_count": 5})

    assert verify(http, expected=5)["reward"] == 1.0
    assert verify(http, expected=5)["final_count"] == 0


def test_seeding_again_starts_over(app):
    """A retried rollout must not inherit the counter of the attempt before."""
    http = TestClient(app)
    for _ in range(2):
        http.post("/seed_session", json={"initial_count": 5})
        http.post("/increment_counter", json={"count": 1})

    assert http.post("/get_counter_value", json={}).json() == {"count": 6}


@pytest.mark.parametrize("line", EXAMPLES.read_text().splitlines())
def test_no_example_is_solved_by_doing_nothing(app, line):
    """A model that never calls a tool must earn nothing, and a lost session must not look like success."""
    row, http = json.loads(line), TestClient(app)
    http.post("/seed_session", json=row)

    rewards = [http.post("/verify", json={**row, "response": RESPONSE}).json()["reward"] for _ in range(2)]

    assert rewards == [0.0, 0.0]


def test_the_five_examples_are_valid_rows():
    """`gym env test` and the tutorials run on these."""
    rows = [CounterRunRequest.model_validate(json.loads(line)) for line in EXAMPLES.read_text().splitlines()]

    assert len(rows) == 5
    assert all(len(row.responses_create_params.tools) == 2 for row in rows)
