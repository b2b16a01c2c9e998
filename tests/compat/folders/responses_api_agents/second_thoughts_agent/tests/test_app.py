import json
from unittest.mock import AsyncMock, MagicMock, call

from fastapi.testclient import TestClient
from pytest import fixture

from nemo_gym.config_types import ModelServerRef, ResourcesServerRef
from nemo_gym.openai_utils import NeMoGymEasyInputMessage, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server_utils import ServerClient
from responses_api_agents.second_thoughts_agent.app import SecondThoughtsAgent, SecondThoughtsAgentConfig


def _model_reply(*output, cookies=None):
    payload = {
        "id": "resp_1",
        "created_at": 1753983920.0,
        "model": "dummy_model",
        "object": "response",
        "output": list(output),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 10,
            "input_tokens_details": {"cached_tokens": 3},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 1},
            "total_tokens": 15,
        },
    }
    reply = AsyncMock()
    reply.read.return_value = json.dumps(payload)
    reply.cookies = cookies or {}
    return reply


def _message(text):
    return {
        "id": "msg_1",
        "content": [{"annotations": [], "text": text, "type": "output_text"}],
        "role": "assistant",
        "status": "completed",
        "type": "message",
    }


CALL = {"type": "function_call", "call_id": "c1", "name": "lookup", "arguments": '{"q": 1}', "id": "f1", "status": "completed"}


class TestApp:
    @fixture
    def config(self) -> SecondThoughtsAgentConfig:
        return SecondThoughtsAgentConfig(
            host="0.0.0.0",
            port=8080,
            entrypoint="",
            name="agent",
            resources_server=ResourcesServerRef(type="resources_servers", name="env"),
            model_server=ModelServerRef(type="responses_api_models", name="my server name"),
        )

    @fixture
    def server(self, config) -> SecondThoughtsAgent:
        return SecondThoughtsAgent(config=config, server_client=MagicMock(spec=ServerClient))

    def test_sanity(self, server) -> None:
        assert server.config.max_steps is None

    def test_responses_asks_twice(self, server) -> None:
        server.server_client.post.side_effect = [_model_reply(_message("4")), _model_reply(_message("still 4"))]
        client = TestClient(server.setup_webserver())
        res = client.post("/v1/responses", json={"input": [{"role": "user", "content": "2+2"}]})
        assert res.status_code == 200, res.text

        body = res.json()
        assert [o["content"][0]["text"] for o in body["output"]] == ["4", "still 4"]
        assert body["usage"]["total_tokens"] == 30
        first = server.server_client.post.call_args_list[0]
        assert first == call(
            server_name="my server name",
            url_path="/v1/responses",
            json=NeMoGymResponseCreateParamsNonStreaming(
                input=[NeMoGymEasyInputMessage(content="2+2", role="user", type="message")]
            ),
            cookies=None,
        )
        second = server.server_client.post.call_args_list[1].kwargs["json"]
        assert [getattr(i, "role", None) for i in second.input] == ["user", "assistant", "user"]

    def test_tools_and_cookies(self, server) -> None:
        tool = AsyncMock()
        tool.content.read.return_value = b'{"found": true}'
        tool.cookies = {"env_session": "e2"}
        server.server_client.post.side_effect = [
            _model_reply(CALL, cookies={"model_session": "m1"}),
            tool,
            _model_reply(_message("found"), cookies={"model_session": "m1"}),
            _model_reply(_message("yes"), cookies={"model_session": "m1"}),
        ]
        client = TestClient(server.setup_webserver(), cookies={"env_session": "e1"})
        res = client.post("/v1/responses", json={"input": "find it"})
        assert res.status_code == 200, res.text
        assert [o["type"] for o in res.json()["output"]] == ["function_call", "function_call_output", "message", "message"]
        assert res.json()["output"][1] == {
            "call_id": "c1",
            "output": '{"found": true}',
            "type": "function_call_output",
            "id": None,
            "status": None,
        }
        tool_call = server.server_client.post.call_args_list[1].kwargs
        assert (tool_call["server_name"], tool_call["url_path"], tool_call["json"]) == ("env", "/lookup", {"q": 1})
        assert tool_call["cookies"]["env_session"] == "e1"
        assert res.cookies["env_session"] == "e2"
        assert res.cookies["model_session"] == "m1"

    async def test_run(self, server) -> None:
        def reply(payload, cookies):
            mock = AsyncMock()
            mock.read.return_value = json.dumps(payload)
            mock.json.return_value = payload
            mock.cookies = cookies
            return mock

        response = json.loads(await _model_reply(_message("4")).read())
        params = {"input": [{"role": "user", "content": "2+2"}]}
        server.server_client.post = AsyncMock(
            side_effect=[
                reply({}, {"s": "1"}),
                reply(response, {"s": "2"}),
                reply({"responses_create_params": params, "response": response, "reward": 1.0, "extra": "x"}, {}),
            ]
        )
        client = TestClient(server.setup_webserver())
        res = client.post("/run", json={"responses_create_params": params, "expected_answer": "4"})
        assert res.status_code == 200, res.text
        assert (res.json()["reward"], res.json()["extra"]) == (1.0, "x")
        seed, own, verify = (c.kwargs for c in server.server_client.post.call_args_list)
        assert (seed["url_path"], own["url_path"], verify["url_path"]) == ("/seed_session", "/v1/responses", "/verify")
        assert (own["server_name"], own["cookies"], verify["cookies"]) == ("agent", {"s": "1"}, {"s": "2"})
        assert verify["json"]["expected_answer"] == "4"
