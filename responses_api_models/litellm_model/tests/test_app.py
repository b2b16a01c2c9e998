"""The litellm model with the real package, against a fake endpoint on loopback."""

import json
from typing import Any
from unittest.mock import MagicMock

import pytest

from nemo_gym.server_utils import ServerClient
from nemo_gym.transport import http
from responses_api_models.openai_model.tests.endpoint import OpenStream, Reply, listening
from responses_api_models.openai_model.tests.endpoint import ask as ask_endpoint

pytest.importorskip("litellm", reason="python3 dev.py dialects runs these tests")

from responses_api_models.litellm_model.app import LiteLLMModel, LiteLLMModelConfig

USER = {"role": "user", "content": "What is the weather in Paris?"}
TOOL = {"type": "function", "name": "get_weather", "description": "", "parameters": {"type": "object"}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
THINKING = {"type": "thinking", "thinking": "I need the tool.", "signature": "c2lnbmF0dXJl"}
pytestmark = pytest.mark.filterwarnings("ignore")  # of litellm and of what it imports


def completion(content: str | None = "cold", finish: str = "stop", **message: Any) -> dict[str, Any]:
    body = {"role": "assistant", "content": content, **message}
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": body, "finish_reason": finish}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }


def message(*content: dict[str, Any], stop: str = "end_turn") -> dict[str, Any]:
    fixed = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "stop_sequence": None}
    return {
        **fixed, "content": list(content), "stop_reason": stop, "usage": {"input_tokens": 10, "output_tokens": 7}
    }  # fmt: skip


@pytest.fixture(autouse=True)
def _no_memory_of_other_tests() -> None:
    http.health.clear()


async def ask(server: LiteLLMModel, path: str, body: dict[str, Any]) -> Any:
    """Call the server; the first call imports most of litellm, which takes seconds."""
    return await ask_endpoint(server, path, body, seconds=120)


def model(url: str, name: str = "openai/m", **settings: Any) -> LiteLLMModel:
    fields: dict[str, Any] = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py", "name": "policy_model"}
    fields |= {"model": name, "api_base": url, "api_key": "sk-secret", "num_retries": 0}
    config = LiteLLMModelConfig(**(fields | settings))
    return LiteLLMModel(config=config, server_client=MagicMock(spec=ServerClient, global_config_dict={}))


async def test_a_request_reaches_the_provider_and_comes_back():
    """litellm converts the chat request for the provider that the model's name begins with."""
    async with listening(chat=Reply(completion(None, "tool_calls", tool_calls=[CALL]))) as endpoint:
        body = {"input": [USER], "tools": [TOOL], "max_output_tokens": 9}
        answer = await (await ask(model(endpoint.url), "/v1/responses", body)).json()

    assert (endpoint.bodies[0]["model"], endpoint.bodies[0]["max_tokens"]) == ("m", 9)
    item = answer["output"][0]
    assert (item["type"], json.loads(item["arguments"])) == ("function_call", {"city": "Paris"})
    assert answer["usage"]["total_tokens"] == 5


async def test_signed_thoughts_are_sent_again_with_the_output_of_a_tool():
    """Claude with thinking refuses the output of a tool without the thought before the call."""
    call = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}}
    replies = [Reply(message(THINKING, call, stop="tool_use")), Reply(message({"type": "text", "text": "Cold."}))]
    async with listening(**{"v1/messages": replies}) as endpoint:
        server = model(
            endpoint.url.removesuffix("/v1"),
            "anthropic/claude",
            litellm_kwargs={"thinking": {"type": "enabled", "budget_tokens": 1024}},
        )
        first = await (await ask(server, "/v1/responses", {"input": [USER], "tools": [TOOL]})).json()
        output = {"type": "function_call_output", "call_id": "toolu_1", "output": "4 degrees"}
        second = await ask(server, "/v1/responses", {"input": [USER, *first["output"], output], "tools": [TOOL]})

    assert second.status == 200, await second.text()
    assistant = endpoint.bodies[1]["messages"][1]["content"]
    assert assistant[0] == THINKING
    assert assistant[-1]["type"] == "tool_use"


async def test_a_stream_has_every_piece():
    """litellm streams; the client gets the pieces as they arrive."""

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}

    events = [chunk({"role": "assistant", "content": "co"}), chunk({"content": "ld"}), chunk({}, "stop")]
    async with (
        listening(chat=Reply(events=events)) as endpoint,
        OpenStream(model(endpoint.url), "/v1/responses", {"input": [USER], "stream": True}) as stream,
    ):
        whole = await stream.read_all()

    assert b'"delta":"co"' in whole and b'"delta":"ld"' in whole
    assert b"response.completed" in whole


@pytest.mark.parametrize(
    ("status", "error", "expected", "words"),
    [
        (401, {"message": "Incorrect API key", "code": "invalid_api_key"}, 401, "Incorrect API key"),
        (404, {"message": "no such model"}, 404, "no such model"),
        (429, {"message": "slow down"}, 429, "slow down"),
        (500, {"message": "broken"}, 500, "broken"),
    ],
)
async def test_refusals_keep_their_status_and_message(status, error, expected, words):
    """A wrong key stops the run, as with every other model server."""
    async with listening(chat=Reply({"error": error}, status)) as endpoint:
        answer = await ask(model(endpoint.url), "/v1/responses", {"input": "Hi"})

    printed = await answer.text()
    assert (answer.status, words in printed) == (expected, True), printed
    assert answer.headers["x-nemo-gym-upstream-status"] == str(status)
    assert "sk-secret" not in printed


async def test_a_refusal_inside_a_stream_keeps_its_status(monkeypatch):
    """litellm raises other classes than `APIError` while it streams; they are no defect of the model server."""
    server = model("http://127.0.0.1:9/v1")

    class Chunks:
        def __aiter__(self):
            return self

        async def __anext__(self):
            raise server._litellm.exceptions.RateLimitError("slow down", "openai", "m")

    async def acompletion(**_: Any) -> Chunks:
        return Chunks()

    monkeypatch.setattr(server._litellm, "acompletion", acompletion)
    answer = await ask(server, "/v1/chat/completions", {"messages": [USER], "stream": True})

    assert answer.status == 429, await answer.text()


async def test_a_prompt_that_is_too_long_is_a_limit():
    """It is the outcome of the row, not a failure of the run."""
    error = {"message": "This model's maximum context length is 10 tokens.", "code": "context_length_exceeded"}
    async with listening(chat=Reply({"error": error}, 400)) as endpoint:
        answer = await (await ask(model(endpoint.url), "/v1/responses", {"input": "Hi"})).json()

    assert answer["incomplete_details"]["which"] == "context_length"
