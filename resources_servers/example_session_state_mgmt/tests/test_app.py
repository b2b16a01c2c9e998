"""Prove the counter example: each session has its own counter, and only the expected count earns the reward."""

from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from nemo_gym.authoring.verifier_cases import offline_server
from nemo_gym.authoring.verifier_proof import VerifierProof, verify_reply
from resources_servers.example_session_state_mgmt.app import CounterServer


class TestProof(VerifierProof):
    """Oracle, odd forms, wrong answers, cheats, broken rows and example data, each case in its own session."""

    folder = Path(__file__).parents[1]


@pytest.fixture
def app() -> FastAPI:
    return offline_server(CounterServer).setup_webserver()


def verify(http: TestClient, expected: int) -> dict[str, Any]:
    return verify_reply(http, {"responses_create_params": {"input": "count"}, "expected_count": expected}, "Done.")


def test_the_counter_starts_at_the_seed_and_keeps_its_value(app: FastAPI) -> None:
    """Seed, tools and verdict must use the same session."""
    http = TestClient(app)
    http.post("/seed_session", json={"initial_count": 3})

    assert http.post("/increment_counter", json={"count": 4}).json() == {"success": True}
    http.post("/increment_counter", json={"count": 5})

    assert http.post("/get_counter_value", json={}).json() == {"count": 12}
    verdict = verify(http, expected=12)
    assert (verdict["reward"], verdict["final_count"]) == (1.0, 12)


def test_two_sessions_do_not_share_a_counter(app: FastAPI) -> None:
    """Thousands of rollouts use one server at once."""
    ada, bob = TestClient(app), TestClient(app)
    ada.post("/seed_session", json={"initial_count": 1})
    bob.post("/seed_session", json={"initial_count": 100})

    ada.post("/increment_counter", json={"count": 1})

    assert verify(ada, expected=2)["reward"] == 1.0
    assert verify(bob, expected=100)["reward"] == 1.0


def test_a_verdict_ends_the_session(app: FastAPI) -> None:
    """Memory is bounded by the rollouts in flight, and a lost session must not look like success."""
    http = TestClient(app)
    http.post("/seed_session", json={"initial_count": 5})

    assert verify(http, expected=5)["reward"] == 1.0
    with pytest.raises(AssertionError, match="no counter"):  # an error, which is no reward
        verify(http, expected=0)


def test_a_verdict_without_a_seed_is_an_error_and_no_zero(app: FastAPI) -> None:
    """A server that lost the session must not score a right rollout as wrong."""
    with pytest.raises(AssertionError, match="no counter"):
        verify(TestClient(app), expected=5)


def test_seeding_again_starts_over(app: FastAPI) -> None:
    """A retried rollout must not inherit the counter of the attempt before."""
    http = TestClient(app)
    for _ in range(2):
        http.post("/seed_session", json={"initial_count": 5})
        http.post("/increment_counter", json={"count": 1})

    assert http.post("/get_counter_value", json={}).json() == {"count": 6}
