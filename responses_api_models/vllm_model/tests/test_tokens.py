"""Token ids and log-probabilities for training, from the three places vLLM versions put them."""

from typing import Any

import pytest

from responses_api_models.openai_model.tests.endpoint import Said, ask, listening
from responses_api_models.vllm_model.tests.support import USER, completion, logprobs, model

IDS = {"prompt_token_ids": [1, 2, 3], "generation_token_ids": [7, 8], "generation_log_probs": [-0.1, -0.2]}


def beside() -> dict[str, Any]:
    """`return_token_ids`: prompt ids on the answer, generated ids on the choice."""
    answer = completion()
    answer["prompt_token_ids"] = IDS["prompt_token_ids"]
    answer["choices"][0] |= {"token_ids": [7, 8], "logprobs": logprobs(("fo", -0.1), ("ur", -0.2))}
    return answer


def spelled(*pairs: tuple[str, float]) -> dict[str, Any]:
    """`return_tokens_as_token_ids`: generated ids in the log-probabilities, prompt ids from /tokenize."""
    answer = completion()
    answer["choices"][0]["logprobs"] = logprobs(*(pairs or (("token_id:7", -0.1), ("token_id:8", -0.2))))
    return answer


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("said", "settings", "wish"),
    [
        (completion(**IDS), {}, "return_tokens_as_token_ids"),
        (beside(), {"request_prompt_and_generation_token_ids": True}, "return_token_ids"),
        (spelled(), {}, "return_tokens_as_token_ids"),
    ],
    ids=["in the message", "beside it", "spelled in log-probabilities"],
)
async def test_token_fields_are_found(said: dict[str, Any], settings: dict[str, Any], wish: str):
    """A trainer needs the very ids that were sampled, not a second tokenisation of the text."""
    async with listening(chat=Said(said), tokenize=Said({"tokens": [1, 2, 3], "count": 3})) as endpoint:
        server = model(endpoint.url, return_token_id_information=True, **settings)
        reply = await ask(server, "/v1/responses", {"input": [USER]})

    answer = await reply.json()
    assert reply.status == 200, answer
    item = answer["output"][-1]
    assert {name: item[name] for name in IDS} == IDS
    assert endpoint.bodies[0]["logprobs"] is True
    assert endpoint.bodies[0][wish] is True


@pytest.mark.asyncio
async def test_the_prompt_is_tokenized_with_everything_that_shapes_it():
    """Tools and template arguments are part of the prompt."""
    tool = {"type": "function", "function": {"name": "add"}}
    async with listening(chat=Said(spelled()), tokenize=Said({"tokens": [1, 2, 3]})) as endpoint:
        server = model(endpoint.url, return_token_id_information=True, chat_template_kwargs={"enable_thinking": False})
        await ask(server, "/v1/chat/completions", {"messages": [USER], "tools": [tool], "temperature": 1.0})

    assert endpoint.calls[1].path == "/tokenize"
    assert endpoint.calls[1].body == {
        "model": "small",
        "messages": [USER],
        "tools": [tool],
        "chat_template_kwargs": {"enable_thinking": False},
    }


@pytest.mark.asyncio
@pytest.mark.parametrize(("wanted", "told"), [(True, True), (None, False)])
async def test_log_probabilities_are_repeated_only_to_those_who_asked(wanted: bool | None, told: bool):
    """They are large, and the token fields say the same."""
    async with listening(chat=Said(beside())) as endpoint:
        server = model(endpoint.url, return_token_id_information=True, request_prompt_and_generation_token_ids=True)
        reply = await ask(server, "/v1/chat/completions", {"messages": [USER], "logprobs": wanted})

    choice = (await reply.json())["choices"][0]
    assert bool(choice.get("logprobs")) is told
    assert choice["message"]["generation_token_ids"] == [7, 8]
    assert "token_ids" not in choice


@pytest.mark.asyncio
async def test_earlier_turns_go_back_with_their_token_ids():
    """An endpoint made for training continues from the exact ids of the last turn."""
    turn = {"role": "assistant", "content": "b", **IDS}
    async with listening(chat=Said(completion(**IDS))) as endpoint:
        server = model(endpoint.url, return_token_id_information=True)
        reply = await ask(server, "/v1/chat/completions", {"messages": [USER, turn, USER]})

    assert reply.status == 200
    assert endpoint.bodies[0]["messages"][1] == turn


def lengths_differ() -> dict[str, Any]:
    answer = beside()
    answer["choices"][0]["token_ids"] = [7]
    return answer


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("said", "words"),
    [
        (completion("four"), "no log-probabilities"),
        (spelled(("fo", -0.1)), "token without its id"),
        (lengths_differ(), "1 token ids and 2 log-probabilities"),
    ],
    ids=["none", "text instead of ids", "lengths differ"],
)
async def test_missing_or_inconsistent_tokens_are_a_failure(said: dict[str, Any], words: str):
    """Training on wrong ids is worse than losing a rollout."""
    async with listening(chat=Said(said)) as endpoint:
        reply = await ask(model(endpoint.url, return_token_id_information=True), "/v1/responses", {"input": "?"})

    assert reply.status == 500
    assert reply.headers["x-nemo-gym-failed"] == "policy_model"
    assert words in await reply.text()
    assert "return_token_id_information: false" in await reply.text()
