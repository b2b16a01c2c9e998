import asyncio
from unittest.mock import AsyncMock, MagicMock

import pytest
from app import CounterConfig, CounterResourcesServer, CounterVerifyRequest
from fastapi.testclient import TestClient

from nemo_gym.base_resources_server import BaseVerifyResponse, ResourcesSeedSessionRequest
from nemo_gym.config_types import ModelServerRef
from nemo_gym.episode_types import EpisodeId, TaskId
from nemo_gym.judge import JudgeError
from nemo_gym.openai_utils import (
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseOutputText,
)
from nemo_gym.server_utils import SESSION_ID_KEY, ServerClient
from nemo_gym.testing.session_conformance import check_resources_session_contract


def make_response(text: str) -> NeMoGymResponse:
    part = NeMoGymResponseOutputText(annotations=[], text=text, type="output_text")
    message = NeMoGymResponseOutputMessage(id="m", content=[part], role="assistant", status="completed", type="message")
    return NeMoGymResponse(
        id="r",
        created_at=0.0,
        model="m",
        object="response",
        output=[message],
        parallel_tool_calls=False,
        tool_choice="none",
        tools=[],
    )


def make_server(**kwargs) -> CounterResourcesServer:
    config = CounterConfig(host="0.0.0.0", port=8080, entrypoint="", name="", **kwargs)
    return CounterResourcesServer(config=config, server_client=MagicMock(spec=ServerClient))


JUDGE = {
    "judge_model_server": ModelServerRef(type="responses_api_models", name="judge"),
    "judge_responses_create_params": {"input": [], "temperature": 0.0},
}


class TestCounter:
    def test_sessions_by_cookie(self) -> None:
        client = TestClient(make_server().setup_webserver())
        cookies = client.post("/seed_session", json={}).cookies
        client.cookies = cookies
        assert client.post("/increment", json={"by": 2}).json() == {"count": 2}
        assert client.post("/other", json={"a": 1}).json() == {"error": "no tool other", "arguments": {"a": 1}}
        params = {"input": [{"role": "user", "content": "count"}]}
        body = {"responses_create_params": params, "response": make_response("x").model_dump(), "expected_count": 2}
        result = client.post("/verify", json=body)
        assert result.status_code == 200
        assert (result.json()["reward"], result.json()["count"]) == (1.0, 2)

    def test_sessions_by_id(self) -> None:
        episode, task = EpisodeId(rollout_id="1-0", attempt=0), TaskId(taskset="t", task_id="1")
        seed = ResourcesSeedSessionRequest(
            resources_session_id="s", episode_id=episode, task_id=task, task_data={"expected_count": 1}
        )
        check_resources_session_contract(make_server().setup_webserver(), seed, keeps_state=True)

    def verify(self, server: CounterResourcesServer) -> BaseVerifyResponse:
        server.counts["s"] = 0
        request = MagicMock()
        request.session = {SESSION_ID_KEY: "s"}
        params = NeMoGymResponseCreateParamsNonStreaming(input="x")
        body = CounterVerifyRequest(responses_create_params=params, response=make_response("hi"), expected_count=0)
        return asyncio.run(server.verify(request, body))

    def test_judge(self) -> None:
        server = make_server(**JUDGE)
        answer = AsyncMock()
        answer.read = AsyncMock(return_value=make_response("yes").model_dump_json())
        server.server_client.post = AsyncMock(return_value=answer)

        result = self.verify(server)

        assert (result.reward, result.judged, result.mask_sample) == (1.0, "yes", False)
        call = server.server_client.post.call_args.kwargs
        assert (call["server_name"], call["url_path"]) == ("judge", "/v1/responses")
        assert call["json"].input[0].content == "hi"
        assert server.config.judge_responses_create_params.input == []

    def test_judge_failure(self) -> None:
        server = make_server(**JUDGE)
        server.server_client.post = AsyncMock(side_effect=RuntimeError("down"))
        with pytest.raises(JudgeError, match="RuntimeError: down"):
            self.verify(server)
