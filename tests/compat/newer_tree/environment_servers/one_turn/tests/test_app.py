from unittest.mock import AsyncMock, MagicMock

from environment_servers.one_turn.app import OneTurn, OneTurnConfig
from fastapi.testclient import TestClient

from nemo_gym.server_utils import ServerClient

RESPONSE = {
    "id": "r",
    "created_at": 0.0,
    "model": "m",
    "object": "response",
    "output": [],
    "parallel_tool_calls": False,
    "tool_choice": "auto",
    "tools": [],
}
REQUEST = {
    "episode_id": {"rollout_id": "1-0", "attempt": 1},
    "task": {
        "task_id": {"taskset": "t", "task_id": "1"},
        "task_input": {"responses_create_params": {"input": "x"}, "expected": 3},
    },
}


def make_server() -> OneTurn:
    config = OneTurnConfig(
        host="0.0.0.0",
        port=8080,
        entrypoint="",
        name="",
        cleanup_timeout_seconds=1,
        resources_server={"type": "resources_servers", "name": "r"},
        agent_server={"type": "responses_api_agents", "name": "a"},
    )
    return OneTurn(config=config, server_client=MagicMock(spec=ServerClient))


def test_run() -> None:
    server = make_server()
    verdict = {"responses_create_params": {"input": "x"}, "response": RESPONSE, "reward": 1.0, "expected": 3}
    replies = [MagicMock(json=AsyncMock(return_value=body)) for body in (RESPONSE, verdict, {})]
    server.server_client.post = AsyncMock(side_effect=replies)

    answer = TestClient(server.setup_webserver()).post("/run", json=REQUEST)

    assert answer.status_code == 200, answer.text
    assert (answer.json()["result"]["reward"], answer.json()["failure"]) == (1.0, None)
    calls = [call.kwargs["url_path"] for call in server.server_client.post.call_args_list]
    assert calls == ["/ng-rollout/1-0-a1/v1/responses", "/verify", "/close_session"]
    assert server.server_client.post.call_args_list[1].kwargs["json"]["expected"] == 3


def test_failure() -> None:
    server = make_server()
    server.server_client.post = AsyncMock(side_effect=ValueError("broken"))

    failure = TestClient(server.setup_webserver()).post("/run", json=REQUEST).json()["failure"]

    assert failure == {
        "failure_reason": "Unhandled environment server error: ValueError: broken",
        "terminal": True,
    }
