"""Prove the weather example: the tool answers, and the reward is constant."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from nemo_gym.authoring.verifier_proof import VerifierProof, offline_client
from resources_servers.example_single_tool_call.app import WeatherServer


class TestProof(VerifierProof):
    """Oracle, odd forms, cheats, broken rows and example data."""

    folder = Path(__file__).parents[1]

    def test_wrong_answers_and_cheats_earn_no_more_than_allowed(self) -> None:
        """This example shows the wiring and measures nothing, so no answer is wrong."""
        self.run_checks("cheat")


@pytest.fixture
def http() -> TestClient:
    return offline_client(WeatherServer)


def test_it_is_cold_everywhere(http: TestClient) -> None:
    """The words of the original example, so that its output can be compared with ours."""
    assert http.post("/get_weather", json={"city": "San Francisco"}).json() == {
        "city": "San Francisco",
        "weather_description": "The weather in San Francisco is cold.",
    }


def test_a_call_without_a_city_is_refused(http: TestClient) -> None:
    """The model must learn which argument is missing."""
    reply = http.post("/get_weather", json={})

    assert reply.status_code == 422
    assert reply.json()["detail"][0]["loc"] == ["body", "city"]


def test_the_verdict_does_not_depend_on_the_session(http: TestClient) -> None:
    """Stored rollouts can be verified again."""
    assert http.get("/reverify_mode").json() == {"reverify_mode": "stateless"}
