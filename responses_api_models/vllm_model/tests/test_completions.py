"""Text completion instead of chat: base models, and prompts rendered here."""

import importlib
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from nemo_gym.errors import ConfigError
from responses_api_models.openai_model.tests.endpoint import Said, ask, listening
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
    """Few-shot prompts must reach it without a single extra token."""
    async with listening(completions=Said(TEXT)) as endpoint:
        server = model(endpoint.url, use_completions_api=True, uses_reasoning_parser=False)
        reply = await ask(server, "/v1/responses", {"input": "1+1=2\n2+2=", "max_output_tokens": 4, "top_p": 0.9})

    answer = await reply.json()
    assert endpoint.bodies == [{"model": "small", "prompt": "1+1=2\n2+2=", "max_tokens": 4, "top_p": 0.9}]
    assert answer["output"][0]["content"][0]["text"] == "four"
    assert answer["status"] == "incomplete"


@pytest.mark.asyncio
async def test_a_base_model_gives_token_ids_too():
    """The prompt's ids come from /tokenize, of the text as it was sent."""
    async with listening(completions=Said(with_tokens()), tokenize=Said({"tokens": [1, 2, 3]})) as endpoint:
        server = model(endpoint.url, use_completions_api=True, return_token_id_information=True)
        reply = await ask(server, "/v1/responses", {"input": "2+2="})

    item = (await reply.json())["output"][-1]
    assert endpoint.bodies[0]["logprobs"] == 1
    assert endpoint.bodies[1] == {"model": "small", "prompt": "2+2="}
    assert item["prompt_token_ids"] == [1, 2, 3]
    assert item["generation_token_ids"] == [7, 8]
    assert item["generation_log_probs"] == [-0.1, -0.2]


@pytest.mark.asyncio
async def test_the_endpoint_renders_the_conversation_when_asked_to():
    """Its own template and tokenizer cannot disagree with it."""
    async with listening(completions=Said(with_tokens()), tokenize=Said({"tokens": [1, 2, 3]})) as endpoint:
        server = model(
            endpoint.url, use_completions_api=True, render_chat_template=True, return_token_id_information=True
        )
        reply = await ask(server, "/v1/responses", {"input": [USER]})

    assert [call.path for call in endpoint.calls] == ["/tokenize", "/v1/completions"]
    assert endpoint.bodies[0]["messages"] == [USER]
    assert endpoint.bodies[1]["prompt"] == [1, 2, 3]
    assert (await reply.json())["output"][-1]["prompt_token_ids"] == [1, 2, 3]


@pytest.mark.asyncio
async def test_a_named_tokenizer_renders_here(monkeypatch):
    """For endpoints without /tokenize."""
    asked: list[Any] = []

    class Tokenizer:
        def apply_chat_template(self, messages: Any, **options: Any) -> list[int]:
            asked.append((messages, options))
            return [4, 5]

    auto = SimpleNamespace(from_pretrained=lambda _name: Tokenizer())
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(AutoTokenizer=auto, __spec__=object()))

    async with listening(completions=Said(TEXT)) as endpoint:
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
    assert asked[0][0] == [USER]
    assert (asked[0][1]["add_generation_prompt"], asked[0][1]["enable_thinking"]) == (True, False)


def test_a_tokenizer_without_its_package_is_a_configuration_error(monkeypatch):
    """Told at the start, with the way out."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "transformers" else found(name))

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
async def test_what_bare_text_cannot_say_is_refused(body: dict[str, Any]):
    """Dropping it silently would change the task."""
    async with listening(completions=Said(TEXT)) as endpoint:
        reply = await ask(model(endpoint.url, use_completions_api=True), "/v1/chat/completions", body)

    assert reply.status == 400
    assert "render_chat_template" in await reply.text()
    assert endpoint.calls == []
