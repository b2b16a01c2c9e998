"""Text completion instead of chat: base models, and prompts rendered by this server."""

import importlib
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from nemo_gym.errors import ConfigError
from responses_api_models.openai_model.tests.endpoint import Reply, ask, listening
from responses_api_models.vllm_model.tests.support import USER, model

TEXT = {
    "id": "cmpl-1",
    "object": "text_completion",
    "created": 1,
    "model": "small",
    "choices": [{"index": 0, "text": "four", "finish_reason": "length", "logprobs": None}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
}


def with_tokens() -> dict[str, Any]:
    logprobs = {"tokens": ["token_id:7", "token_id:8"], "token_logprobs": [-0.1, -0.2]}
    return {**TEXT, "choices": [{**TEXT["choices"][0], "logprobs": logprobs}]}


@pytest.mark.asyncio
async def test_a_base_model_continues_the_bare_text():
    """A few-shot prompt must reach the model without extra tokens."""
    async with listening(completions=Reply(TEXT)) as endpoint:
        server = model(endpoint.url, use_completions_api=True, uses_reasoning_parser=False)
        reply = await ask(server, "/v1/responses", {"input": "1+1=2\n2+2=", "max_output_tokens": 4, "top_p": 0.9})

    answer = await reply.json()
    assert endpoint.bodies == [{"model": "small", "prompt": "1+1=2\n2+2=", "max_tokens": 4, "top_p": 0.9}]
    assert answer["output"][0]["content"][0]["text"] == "four"
    assert answer["status"] == "incomplete"


@pytest.mark.asyncio
async def test_a_base_model_returns_token_ids():
    """Base models are trained too, so the ids of the bare prompt must be known."""
    async with listening(completions=Reply(with_tokens()), tokenize=Reply({"tokens": [1, 2, 3]})) as endpoint:
        server = model(endpoint.url, use_completions_api=True, return_token_id_information=True)
        reply = await ask(server, "/v1/responses", {"input": "2+2="})

    item = (await reply.json())["output"][-1]
    assert endpoint.bodies[0]["logprobs"] == 1
    assert endpoint.bodies[1] == {"model": "small", "prompt": "2+2="}
    assert item["prompt_token_ids"] == [1, 2, 3]
    assert item["generation_token_ids"] == [7, 8]
    assert item["generation_log_probs"] == [-0.1, -0.2]


@pytest.mark.asyncio
async def test_the_endpoint_can_render_the_conversation():
    """The endpoint's template and tokenizer always match its model."""
    async with listening(completions=Reply(with_tokens()), tokenize=Reply({"tokens": [1, 2, 3]})) as endpoint:
        server = model(
            endpoint.url, use_completions_api=True, render_chat_template=True, return_token_id_information=True
        )
        reply = await ask(server, "/v1/responses", {"input": [USER]})

    assert [call.path for call in endpoint.calls] == ["/tokenize", "/v1/completions"]
    assert endpoint.bodies[0]["messages"] == [USER]
    assert endpoint.bodies[1]["prompt"] == [1, 2, 3]
    assert (await reply.json())["output"][-1]["prompt_token_ids"] == [1, 2, 3]


@pytest.mark.asyncio
async def test_a_configured_tokenizer_renders_locally(monkeypatch):
    """Some endpoints have no /tokenize."""
    calls: list[Any] = []

    class Tokenizer:
        def apply_chat_template(self, messages: Any, **options: Any) -> list[int]:
            calls.append((messages, options))
            return [4, 5]

    auto = SimpleNamespace(from_pretrained=lambda _name: Tokenizer())
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(AutoTokenizer=auto, __spec__=object()))

    async with listening(completions=Reply(TEXT)) as endpoint:
        server = model(
            endpoint.url,
            use_completions_api=True,
            render_chat_template=True,
            tokenizer="some/tokenizer",
            chat_template_kwargs={"enable_thinking": False},
        )
        reply = await ask(server, "/v1/chat/completions", {"messages": [USER]})

    assert reply.status == 200
    assert endpoint.bodies[0]["prompt"] == [4, 5]
    assert calls[0][0] == [USER]
    assert (calls[0][1]["add_generation_prompt"], calls[0][1]["enable_thinking"]) == (True, False)


def test_a_tokenizer_without_its_package_is_a_configuration_error(monkeypatch):
    """The error must come at start, with the command that helps."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "transformers" else find_spec(name))

    with pytest.raises(ConfigError, match="transformers") as problem:
        model("http://h/v1", use_completions_api=True, render_chat_template=True, tokenizer="some/tokenizer")

    assert "/tokenize" in str(problem.value.fix)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "body",
    [
        {"messages": [USER], "tools": [{"type": "function", "function": {"name": "add"}}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
    ],
    ids=["tools", "an image"],
)
async def test_content_that_bare_text_cannot_express_is_refused(body: dict[str, Any]):
    """Dropping content silently would change the task."""
    async with listening(completions=Reply(TEXT)) as endpoint:
        reply = await ask(model(endpoint.url, use_completions_api=True), "/v1/chat/completions", body)

    assert reply.status == 400
    assert "render_chat_template" in await reply.text()
    assert endpoint.calls == []
