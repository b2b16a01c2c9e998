from copy import deepcopy
from unittest.mock import AsyncMock, MagicMock

import pytest
from fastapi.testclient import TestClient

from nemo_gym.config_types import ModelServerRef
from nemo_gym.judge import JudgeError
from nemo_gym.openai_utils import (
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseOutputText,
)
from nemo_gym.rollout_collection import NG_FAILURE_CLASS_KEY
from nemo_gym.server_utils import ServerClient
from resources_servers.essay_judge.app import EssayJudgeConfig, EssayJudgeServer, EssayVerifyRequest


def _msg(text: str) -> NeMoGymResponseOutputMessage:
    return NeMoGymResponseOutputMessage(
        id="msg_id",
        content=[NeMoGymResponseOutputText(annotations=[], text=text, type="output_text")],
        role="assistant",
        status="completed",
        type="message",
    )


def _response(text: str) -> NeMoGymResponse:
    return NeMoGymResponse(
        id="resp",
        created_at=0.0,
        model="judge",
        object="response",
        output=[_msg(text)],
        parallel_tool_calls=False,
        tool_choice="none",
        tools=[],
    )


class TestEssayJudge:
    @pytest.fixture
    def config(self) -> EssayJudgeConfig:
        return EssayJudgeConfig(
            host="0.0.0.0",
            port=8080,
            entrypoint="",
            name="",
            judge_model_server=ModelServerRef(type="responses_api_models", name="judge"),
            judge_responses_create_params=NeMoGymResponseCreateParamsNonStreaming(input=[], temperature=0.0),
        )

    def _server(self, config, judge_text=None, **post):
        client = MagicMock(spec=ServerClient)
        server = EssayJudgeServer(config=config, server_client=client)
        response_mock = AsyncMock()
        if judge_text is not None:
            response_mock.read = AsyncMock(return_value=_response(judge_text).model_dump_json())
        client.post = AsyncMock(**(post or {"return_value": response_mock}))
        return server, client

    def _request(self) -> EssayVerifyRequest:
        return EssayVerifyRequest(
            question="Why?",
            responses_create_params=NeMoGymResponseCreateParamsNonStreaming(input="Why?"),
            response=_response("Because."),
        )

    @pytest.mark.parametrize("text, reward, verdict", [("[[A]]", 1.0, "A"), ("[[B]]", 0.0, "B"), ("hm", 0.0, None)])
    async def test_verdicts(self, config, text, reward, verdict) -> None:
        server, client = self._server(config, text)
        result = await server.verify(self._request())
        assert result.reward == reward
        assert result.judge_verdict == verdict
        kwargs = client.post.call_args.kwargs
        assert kwargs["server_name"] == "judge"
        assert kwargs["url_path"] == "/v1/responses"
        assert kwargs["json"].input[0].content.startswith("Question: Why?\nEssay: Because.")
        assert kwargs["json"].temperature == 0.0

    async def test_config_is_not_changed(self, config) -> None:
        before = deepcopy(config.judge_responses_create_params.model_dump())
        server, _ = self._server(config, "[[A]]")
        await server.verify(self._request())
        assert config.judge_responses_create_params.model_dump() == before

    async def test_broken_judge_raises(self, config) -> None:
        server, _ = self._server(config, side_effect=RuntimeError("connection reset"))
        with pytest.raises(JudgeError, match="RuntimeError: connection reset"):
            await server.verify(self._request())

    def test_broken_judge_is_a_failure_row_over_http(self, config) -> None:
        server, _ = self._server(config, side_effect=RuntimeError("connection reset"))
        client = TestClient(server.setup_webserver())
        res = client.post("/verify", json=self._request().model_dump())
        assert res.status_code == 200
        assert res.json()["reward"] == 0.0
        assert res.json()[NG_FAILURE_CLASS_KEY] == "judge_failed"
        assert "connection reset" in res.json()["_ng_failure_judge_error"]
        assert res.json()["question"] == "Why?"

    def test_reverify_mode(self, config) -> None:
        server, _ = self._server(config, "[[A]]")
        assert "stateless" in TestClient(server.setup_webserver()).get("/reverify_mode").text
