"""Output limits that do not fit into the context, as versions of vLLM refuse them."""

import pytest

from responses_api_models.openai_model.tests.endpoint import Reply, ask, listening
from responses_api_models.vllm_model.tests.support import USER, completion, model

NEWER_REFUSALS = {
    "vLLM 0.18": (
        "This model's maximum context length is 32768 tokens. However, you requested {limit} output tokens and your "
        "prompt contains at least {bound} input tokens, for a total of at least 32769 tokens. Please reduce the length."
    ),
    "vLLM 0.16": (
        "You passed {bound} input tokens and requested {limit} output tokens. However, the model's context length is "
        "only 32768 tokens, resulting in a maximum input length of {most} tokens. Please reduce the length."
    ),
    "characters": (
        "You passed 104000 input characters and requested {limit} output tokens. However, the model's context length "
        "is only 32768 tokens, resulting in a maximum input length of {most} tokens. Please reduce the length."
    ),
}


def newer_refusal(name: str, limit: int) -> Reply:
    """Return the refusal of an engine that counts the prompt only up to the length that is left for it."""
    problem = NEWER_REFUSALS[name].format(limit=limit, most=32768 - limit, bound=32768 - limit + 1)
    return Reply({"error": {"message": problem, "code": 400}}, 400)


@pytest.mark.asyncio
@pytest.mark.parametrize("name", NEWER_REFUSALS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_the_refusal_does_not_count_is_counted(name: str, stream: bool):
    """The number in the text is a lower bound; a request that trusts it is refused again and lost."""
    body = {"model": "m", "max_tokens": 8000, "messages": [USER], "stream": stream}
    tokens = Reply({"tokens": [7] * 26000, "count": 26000, "max_model_len": 32768})

    async with listening(chat=[newer_refusal(name, 8000), Reply(completion("four"))], tokenize=tokens) as endpoint:
        reply = await ask(model(endpoint.url), "/v1/messages", body)

    assert "four" in await reply.text()
    assert [sent["max_tokens"] for sent in endpoint.bodies if "max_tokens" in sent] == [8000, 6768]


@pytest.mark.asyncio
@pytest.mark.parametrize("name", NEWER_REFUSALS)
async def test_a_limit_is_quartered_if_nothing_counts_the_prompt(name: str):
    """Some endpoints do not offer `/tokenize`."""
    replies = [newer_refusal(name, 8000), newer_refusal(name, 2000), Reply(completion("four"))]

    async with listening(chat=replies) as endpoint:
        reply = await ask(model(endpoint.url), "/v1/chat/completions", {"max_tokens": 8000, "messages": [USER]})

    assert "four" in await reply.text()
    assert [sent["max_tokens"] for sent in endpoint.bodies if "max_tokens" in sent] == [8000, 2000, 500]


@pytest.mark.asyncio
@pytest.mark.parametrize("has_tokenize", [True, False])
async def test_a_prompt_that_alone_does_not_fit_ends_with_the_limit_of_the_context(has_tokenize: bool):
    """The outcome of a conversation that fills the context is a limit, however the engine writes it."""
    limits = [8000] if has_tokenize else [8000, 2000, 500, 125, 31, 7, 1]
    counted = {"tokenize": Reply({"tokens": [7] * 40000})} if has_tokenize else {}

    async with listening(chat=[newer_refusal("characters", limit) for limit in limits], **counted) as endpoint:
        reply = await ask(model(endpoint.url), "/v1/responses", {"max_output_tokens": 8000, "input": "?"})

    assert (await reply.json())["incomplete_details"]["which"] == "context_length"
    assert [sent["max_tokens"] for sent in endpoint.bodies if "max_tokens" in sent] == limits


@pytest.mark.asyncio
async def test_a_limit_above_the_whole_context_is_lowered_to_what_is_left():
    """vLLM checks the limit before it counts the prompt."""
    problem = (
        "max_tokens=64000 cannot be greater than max_model_len=max_total_tokens=32768. Please request fewer output "
        "tokens."
    )
    refusal = Reply({"error": {"message": problem, "code": 400}}, 400)
    tokens = Reply({"tokens": [7] * 26000})

    async with listening(chat=[refusal, Reply(completion("four"))], tokenize=tokens) as endpoint:
        await ask(model(endpoint.url), "/v1/chat/completions", {"max_tokens": 64000, "messages": [USER]})
    async with listening(chat=[refusal, newer_refusal("vLLM 0.18", 16000), Reply(completion("four"))]) as bare:
        reply = await ask(model(bare.url), "/v1/chat/completions", {"max_tokens": 64000, "messages": [USER]})

    assert "four" in await reply.text()
    assert [sent["max_tokens"] for sent in endpoint.bodies if "max_tokens" in sent] == [64000, 6768]
    assert [sent["max_tokens"] for sent in bare.bodies if "max_tokens" in sent] == [64000, 16000, 4000]
