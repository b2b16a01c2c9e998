from typing import Any
from unittest.mock import AsyncMock, MagicMock

from aiohttp import ClientResponseError
from fastapi.testclient import TestClient
from pytest import MonkeyPatch, fixture

from nemo_gym.openai_utils import (
    NeMoGymAsyncOpenAI,
    NeMoGymChatCompletionAssistantMessageParam,
    NeMoGymChatCompletionMessageToolCallFunctionParam,
    NeMoGymChatCompletionMessageToolCallParam,
    NeMoGymChatCompletionSystemMessageParam,
    NeMoGymChatCompletionToolMessageParam,
    NeMoGymChatCompletionUserMessageParam,
    NeMoGymChatCompletionContentPartTextParam,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.responses_converter import VLLMConverter
from nemo_gym.server_utils import ServerClient
from responses_api_models.tiny_chat_model.app import TinyChatModel, TinyChatModelConfig


class FakeUUID:
    """Every id is 123."""

    hex = "123"


COMPLETION: dict[str, Any] = {
    "id": "chtcmpl-123",
    "object": "chat.completion",
    "created": 1000,
    "model": "dummy",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": "<think>Think first.</think>Hello",
                "tool_calls": [
                    {"id": "call_1", "type": "function", "function": {"name": "get_order", "arguments": '{"id": "1"}'}}
                ],
            },
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
}


def _completion(**message):
    import copy

    answer = copy.deepcopy(COMPLETION)
    answer["choices"][0]["message"].update(message)
    return answer


class TestApp:
    def _setup(self, monkeypatch, answer, **config):
        monkeypatch.setattr("nemo_gym.responses_converter.uuid4", lambda: FakeUUID())
        monkeypatch.setattr("responses_api_models.tiny_chat_model.app.uuid4", lambda: FakeUUID())
        monkeypatch.setattr("responses_api_models.tiny_chat_model.app.time", lambda: 1234.0)
        settings = dict(
            host="0.0.0.0",
            port=8081,
            base_url="http://api.openai.com/v1",
            api_key="dummy_key",
            model="dummy_model",
            entrypoint="",
            name="",
            return_token_id_information=False,
        )
        server = TinyChatModel(
            config=TinyChatModelConfig(**(settings | config)),
            server_client=MagicMock(spec=ServerClient, global_config_dict={}),
        )
        create = AsyncMock(side_effect=[answer] if not isinstance(answer, list) else answer)
        assert all(isinstance(client, NeMoGymAsyncOpenAI) for client in server._clients)
        server._clients = [MagicMock(spec=NeMoGymAsyncOpenAI, create_chat_completion=create) for _ in server._clients]
        return server, TestClient(server.setup_webserver()), create

    def test_responses(self, monkeypatch: MonkeyPatch) -> None:
        _, client, create = self._setup(monkeypatch, _completion())
        res = client.post("/v1/responses", json={"input": [{"role": "user", "content": "hi"}], "max_output_tokens": 9})
        assert res.status_code == 200, res.text
        body = res.json()
        assert body["id"] == "resp_123"
        assert body["created_at"] == 1234
        assert [o["type"] for o in body["output"]] == ["reasoning", "message", "function_call"]
        assert body["output"][0]["id"] == "rs_123"
        assert body["output"][0]["summary"] == [{"text": "Think first.", "type": "summary_text"}]
        assert body["output"][1]["content"][0]["text"] == "Hello"
        assert body["output"][2]["call_id"] == "call_1"
        assert body["usage"]["total_tokens"] == 7
        kwargs = create.call_args.kwargs
        assert kwargs["model"] == "dummy_model"
        assert kwargs["max_tokens"] == 9
        assert kwargs["messages"] == [{"role": "user", "content": [{"type": "text", "text": "hi"}]}] or kwargs[
            "messages"
        ] == [{"role": "user", "content": "hi"}]

    def test_reasoning_content(self, monkeypatch: MonkeyPatch) -> None:
        answer = _completion(content="Hello", reasoning_content="Hm.", tool_calls=None)
        _, client, _ = self._setup(monkeypatch, answer)
        body = client.post("/v1/responses", json={"input": "hi"}).json()
        assert body["output"][0]["summary"][0]["text"] == "Hm."
        assert body["output"][1]["content"][0]["text"] == "Hello"

    def test_token_ids_are_on_the_last_item(self, monkeypatch: MonkeyPatch) -> None:
        answer = _completion() | {"prompt_token_ids": [1, 2]}
        answer["choices"][0]["logprobs"] = {"content": [{"token": "token_id:7", "logprob": -0.5}]}
        _, client, _ = self._setup(monkeypatch, answer, return_token_id_information=True)
        output = client.post("/v1/responses", json={"input": "hi"}).json()["output"]
        assert output[-1]["type"] == "function_call"
        assert output[-1]["prompt_token_ids"] == [1, 2]
        assert output[-1]["generation_token_ids"] == [7]
        assert output[-1]["generation_log_probs"] == [-0.5]
        assert all("prompt_token_ids" not in item for item in output[:-1])

    def test_context_length_is_an_incomplete_answer(self, monkeypatch: MonkeyPatch) -> None:
        error = ClientResponseError(request_info=MagicMock(), history=(), status=400)
        error.response_content = b"maximum context length is 10"
        server, client, create = self._setup(monkeypatch, None)
        create.side_effect = error
        body = client.post("/v1/responses", json={"input": "hi"}).json()
        assert body["incomplete_details"] == {"reason": "max_output_tokens"}

    def test_sessions_stay_on_one_endpoint(self, monkeypatch: MonkeyPatch) -> None:
        server, _, _ = self._setup(
            monkeypatch, [_completion() for _ in range(4)], base_url=["http://a/v1", "http://b/v1"]
        )
        app = server.setup_webserver()
        for _ in range(2):
            with TestClient(app) as client:
                client.post("/v1/responses", json={"input": "1"})
                client.post("/v1/responses", json={"input": "2"})
        assert len(server._session_id_to_client) == 2
        assert len({id(c) for c in server._session_id_to_client.values()}) == 2

    def test_chat_completions(self, monkeypatch: MonkeyPatch) -> None:
        _, client, create = self._setup(monkeypatch, _completion(content="Hello"), extra_body={"top_k": 3})
        res = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]})
        assert res.status_code == 200, res.text
        assert res.json()["choices"][0]["message"]["content"] == "Hello"
        assert create.call_args.kwargs["top_k"] == 3


class TestConverter:
    @fixture
    def converter(self) -> VLLMConverter:
        return VLLMConverter(return_token_id_information=False)

    def test_a_tool_conversation_becomes_chat_messages(self, converter) -> None:
        params = NeMoGymResponseCreateParamsNonStreaming(
            instructions="Be brief.",
            input=[
                {"role": "user", "content": [{"type": "input_text", "text": "Where is my order?"}]},
                {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Look it up."}]},
                {
                    "type": "message",
                    "id": "msg_1",
                    "role": "assistant",
                    "status": "completed",
                    "content": [{"type": "output_text", "text": "One moment.", "annotations": []}],
                },
                {"type": "function_call", "call_id": "call_1", "name": "get_order", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "call_1", "output": "shipped"},
            ],
        )
        actual = converter.responses_to_chat_completion_create_params(params)
        assert actual.messages == [
            NeMoGymChatCompletionSystemMessageParam(content="Be brief.", role="system"),
            NeMoGymChatCompletionUserMessageParam(
                content=[NeMoGymChatCompletionContentPartTextParam(text="Where is my order?", type="text")], role="user"
            ),
            NeMoGymChatCompletionAssistantMessageParam(
                role="assistant",
                content="<think>Look it up.</think>One moment.",
                tool_calls=[
                    NeMoGymChatCompletionMessageToolCallParam(
                        id="call_1",
                        function=NeMoGymChatCompletionMessageToolCallFunctionParam(arguments="{}", name="get_order"),
                        type="function",
                    )
                ],
            ),
            NeMoGymChatCompletionToolMessageParam(content="shipped", role="tool", tool_call_id="call_1"),
        ]
