import json
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from fastapi.testclient import TestClient

from nemo_gym.base_resources_server import BaseRunRequest
from nemo_gym.server_utils import ServerClient
from resources_servers.example_single_tool_call.app import WeatherConfig, WeatherServer

EXAMPLES = Path(__file__).parents[1] / "data" / "example.jsonl"


@pytest.fixture
def http() -> TestClient:
    config = WeatherConfig(host="127.0.0.1", port=1, entrypoint="app.py", name="weather")
    return TestClient(WeatherServer(config=config, server_client=MagicMock(spec=ServerClient)).setup_webserver())


def test_it_is_cold_everywhere(http):
    """The seed's own words, so that its output can be compared with ours."""
    assert http.post("/get_weather", json={"city": "San Francisco"}).json() == {
        "city": "San Francisco",
        "weather_description": "The weather in San Francisco is cold.",
    }


def test_a_call_without_a_city_is_refused(http):
    """The model is told which argument is missing."""
    reply = http.post("/get_weather", json={})

    assert reply.status_code == 422
    assert reply.json()["detail"][0]["loc"] == ["body", "city"]


def test_any_answer_earns_the_full_reward(http):
    """This example shows the wiring; it measures nothing and says so."""
    response = {
        "id": "r",
        "created_at": 0,
        "model": "m",
        "object": "response",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }

    verdict = http.post("/verify", json={"responses_create_params": {"input": "hi"}, "response": response})

    assert verdict.json()["reward"] == 1.0


def test_the_five_examples_are_valid_rows_that_offer_the_tool():
    """`gym env test` and the tutorials run on these."""
    rows = [BaseRunRequest.model_validate(json.loads(line)) for line in EXAMPLES.read_text().splitlines()]

    assert len(rows) == 5
    assert all(row.responses_create_params.tools[0]["name"] == "get_weather" for row in rows)
    assert len({json.dumps(row.model_dump(exclude_unset=True)) for row in rows}) == 5


def test_the_verdict_does_not_depend_on_the_session(http):
    """Stored rollouts can be verified again."""
    assert http.get("/reverify_mode").status_code == 200
    assert "stateless" in http.get("/reverify_mode").text
