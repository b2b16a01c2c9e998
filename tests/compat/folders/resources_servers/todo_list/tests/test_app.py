from unittest.mock import MagicMock

import pytest
from app import TodoListConfig, TodoListServer
from fastapi.testclient import TestClient

from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseFunctionToolCall
from nemo_gym.server_utils import SESSION_ID_KEY, ServerClient


@pytest.fixture
def server():
    config = TodoListConfig(host="0.0.0.0", port=8080, entrypoint="", name="", max_items=3)
    return TodoListServer(config=config, server_client=MagicMock(spec=ServerClient))


@pytest.fixture
def client(server):
    return TestClient(server.setup_webserver())


def _response(*calls):
    return NeMoGymResponse(
        id="r",
        created_at=1.0,
        model="m",
        object="response",
        output=[
            NeMoGymResponseFunctionToolCall(
                type="function_call", call_id=f"c{i}", name=name, arguments=arguments, id=f"f{i}", status="completed"
            )
            for i, (name, arguments) in enumerate(calls)
        ],
        parallel_tool_calls=False,
        tool_choice="auto",
        tools=[],
    ).model_dump()


def _seed(client, items):
    return client.post("/seed_session", json={"verifier_metadata": {"initial_items": items}})


def test_seed_session_reads_extra_fields(client):
    response = _seed(client, ["milk"])
    assert response.status_code == 200
    assert response.json() == {"items": ["milk"]}


def test_tools_share_the_session(client):
    _seed(client, ["milk"])
    assert client.post("/add", json={"title": "bread"}).json() == {"items": ["milk", "bread"]}
    assert client.post("/remove", json={"title": "milk"}).json() == {"items": ["bread"]}
    assert client.post("/list", json={}).json() == {"items": ["bread"]}
    assert client.post("/dance", json={}).json() == {"error": "Unknown tool dance"}


def test_http_exceptions_keep_their_status(client):
    _seed(client, ["a", "b", "c"])
    response = client.post("/add", json={"title": "d"})
    assert response.status_code == 400
    assert response.json() == {"detail": "The list is full."}


def test_sessions_are_separate(server):
    app = server.setup_webserver()
    with TestClient(app) as one, TestClient(app) as two:
        _seed(one, [])
        _seed(two, [])
        one.post("/add", json={"title": "mine"})
        assert two.post("/list", json={}).json() == {"items": []}
    assert len(server.session_id_to_items) == 2


def test_cookies_passed_by_hand(server):
    app = server.setup_webserver()
    cookies = _seed(TestClient(app), ["milk"]).cookies
    client = TestClient(app)
    client.cookies = cookies
    assert client.post("/list", json={}).json() == {"items": ["milk"]}


def test_verify_returns_extra_fields(client):
    _seed(client, [])
    client.post("/add", json={"title": "milk"})
    body = {
        "responses_create_params": {"input": [{"role": "user", "content": "add milk"}]},
        "response": _response(("add", '{"title": "milk"}')),
        "verifier_metadata": {"expected_items": ["milk"]},
        "id": 7,
    }
    result = client.post("/verify", json=body).json()
    assert result["reward"] == 1.0
    assert result["final_items"] == ["milk"]
    assert result["num_calls"] == 1
    assert result["id"] == 7
    assert result["verifier_metadata"] == {"expected_items": ["milk"]}


def test_tool_called_without_a_web_server(server):
    import asyncio

    request = MagicMock()
    request.session = {SESSION_ID_KEY: "abc"}
    from app import AddRequest

    asyncio.run(server.add(AddRequest(title="x"), request))
    assert server.session_id_to_items["abc"] == ["x"]
