from unittest.mock import MagicMock

import pytest
from fastapi.testclient import TestClient

from nemo_gym.base_resources_server import BaseResourcesServerConfig
from nemo_gym.openai_utils import NeMoGymResponse
from nemo_gym.server_utils import ServerClient
from resources_servers.number_guess.app import NumberGuessServer

ROW = {"responses_create_params": {"input": []}, "verifier_metadata": {"number": 4, "tries": 2}}


def _server() -> NumberGuessServer:
    config = BaseResourcesServerConfig(host="", port=0, entrypoint="", name="")
    return NumberGuessServer(config=config, server_client=MagicMock(spec=ServerClient))


def _response(text: str) -> dict:
    part = {"type": "output_text", "text": text, "annotations": []}
    message = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    common = {"id": "r", "created_at": 0.0, "model": "m", "object": "response"}
    return {**common, "output": [message], "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}


@pytest.mark.asyncio
async def test_reset_and_step_without_routes() -> None:
    server = _server()
    observation, _ = await server.reset({"number": 3}, "a")
    assert observation == "Guess the number."
    _, reward, terminated, truncated, info = await server.step(NeMoGymResponse(**_response("3")), {}, "a")
    assert (reward, terminated, truncated, info) == (1.0, True, False, {"left": 2})


def test_game_over_the_routes() -> None:
    client = TestClient(_server().setup_webserver())
    assert client.post("/reset", json=ROW).json()["observation"] == "Guess the number."
    steps = [client.post("/step", json={**ROW, "response": _response(text)}).json() for text in ("1", "4")]
    assert [step["reward"] for step in steps] == [0.0, 1.0]
    assert client.post("/verify", json={**ROW, "response": _response("4")}).json()["reward"] == 1.0
