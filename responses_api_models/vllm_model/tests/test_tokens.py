"""Token ids and log-probabilities for training, in the three forms of different vLLM versions."""

from typing import Any

import pytest

from responses_api_models.openai_model.tests.endpoint import Reply, ask, listening
from responses_api_models.vllm_model.tests.support import USER, completion, logprobs, model

IDS = {"prompt_token_ids": [1, 2, 3], "generation_token_ids": [7, 8], "generation_log_probs": [-0.1, -0.2]}


def ids_beside_message() -> dict[str, Any]:
    """Build a reply to `return_token_ids`: prompt ids on the reply, generated ids on the choice."""
    answer = completion()
    answer["prompt_token_ids"] = IDS["prompt_token_ids"]
    answer["choices"][0] |= {"token_ids": [7, 8], "logprobs": logprobs(("fo", -0.1), ("ur", -0.2))}
    return answer


def ids_in_logprobs(*pairs: tuple[str, float]) -> dict[str, Any]:
    """Build a reply to `return_tokens_as_token_ids`: generated ids in the log-probabilities."""
    answer = completion()
    answer["choices"][0]["logprobs"] = logprobs(*(pairs or (("token_id:7", -0.1), ("token_id:8", -0.2))))
    return answer


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("body", "settings", "field"),
    [
        (completion(**IDS), {}, "return_tokens_as_token_ids"),
        (ids_beside_message(), {"request_prompt_and_generation_token_ids": True}, "return_token_ids"),
        (ids_in_logprobs(), {}, "return_tokens_as_token_ids"),
    ],
    ids=["in the message", "beside it", "spelled in log-probabilities"],
)
async def test_token_fields_are_found(body: dict[str, Any], settings: dict[str, Any], field: str):
    """A trainer needs the sampled ids; tokenizing the text again may give others."""
    async with listening(chat=Reply(body), tokenize=Reply({"tokens": [1, 2, 3], "count": 3})) as endpoint:
        server = model(endpoint.url, return_token_id_information=True, **settings)
        reply = await ask(server, "/v1/responses", {"input": [USER]})

    answer = await reply.json()
    assert reply.status == 200, answer
    item = answer["output"][-1]
    assert {name: item[name] for name in IDS} == IDS
    assert endpoint.bodies[0]["logprobs"] is True
    assert endpoint.bodies[0][field] is True


@pytest.mark.asyncio
async def test_the_prompt_is_tokenized_with_everything_that_shapes_it():
    """Tools and template arguments are part of the prompt."""
    tool = {"type": "function", "function": {"name": "add"}}
    async with listening(chat=Reply(ids_in_logprobs()), tokenize=Reply({"tokens": [1, 2, 3]})) as endpoint:
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
@pytest.mark.parametrize(("requested", "expected"), [(True, True), (None, False)])
async def test_log_probabilities_are_returned_only_on_request(requested: bool | None, expected: bool):
    """They are large, and the token fields contain them."""
    async with listening(chat=Reply(ids_beside_message())) as endpoint:
        server = model(endpoint.url, return_token_id_information=True, request_prompt_and_generation_token_ids=True)
        reply = await ask(server, "/v1/chat/completions", {"messages": [USER], "logprobs": requested})

    choice = (await reply.json())["choices"][0]
    assert bool(choice.get("logprobs")) is expected
    assert choice["message"]["generation_token_ids"] == [7, 8]
    assert "token_ids" not in choice


@pytest.mark.asyncio
async def test_earlier_turns_are_sent_with_their_token_ids():
    """An endpoint for training continues from the exact ids of the last turn."""
    turn = {"role": "assistant", "content": "b", **IDS}
    async with listening(chat=Reply(completion(**IDS))) as endpoint:
        server = model(endpoint.url, return_token_id_information=True)
        reply = await ask(server, "/v1/chat/completions", {"messages": [USER, turn, USER]})

    assert reply.status == 200
    assert endpoint.bodies[0]["messages"][1] == turn


def lengths_differ() -> dict[str, Any]:
    answer = ids_beside_message()
    answer["choices"][0]["token_ids"] = [7]
    return answer


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("body", "words"),
    [
        (completion("four"), "without token ids and log-probabilities"),
        (ids_in_logprobs(("fo", -0.1)), "token without its id"),
        (lengths_differ(), "1 token ids and 2 log-probabilities"),
    ],
    ids=["none", "text instead of ids", "lengths differ"],
)
async def test_missing_or_inconsistent_tokens_are_a_failure(body: dict[str, Any], words: str):
    """Training on wrong ids is worse than losing a rollout."""
    async with listening(chat=Reply(body)) as endpoint:
        reply = await ask(model(endpoint.url, return_token_id_information=True), "/v1/responses", {"input": "?"})

    assert reply.status == 500
    assert reply.headers["x-nemo-gym-failed"] == "policy_model"
    assert words in await reply.text()
    assert "return_token_id_information: false" in await reply.text()


def native_answer(**fields: Any) -> dict[str, Any]:
    """Build a reply of `/v1/responses` with one message."""
    content = [{"type": "output_text", "text": "four", "annotations": []}]
    message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content, **fields}
    head = {"id": "r", "object": "response", "created_at": 1, "model": "small", "output": [message]}
    return {**head, "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "gave no token ids"),
        (IDS | {"generation_log_probs": None}, "without generation_log_probs"),
        (IDS | {"generation_log_probs": [-0.1]}, "2 token ids and 1 log-probabilities"),
        (IDS | {"generation_log_probs": ["NaN", -0.1]}, "log-probability 'NaN' for generated token 0"),
        (IDS | {"prompt_token_ids": [-1]}, "prompt_token_ids that are not token ids"),
    ],
    ids=["none", "no log-probabilities", "lengths differ", "NaN", "negative id"],
)
async def test_a_native_endpoint_must_give_tokens(fields: dict[str, Any], words: str):
    """vLLM's `/v1/responses` gives none; such rollouts looked complete and trained nothing."""
    async with listening(responses=Reply(native_answer(**fields))) as endpoint:
        server = model(endpoint.url, return_token_id_information=True, is_responses_native=True)
        reply = await ask(server, "/v1/responses", {"input": "?"})

    assert reply.status == 500
    assert words in await reply.text()


@pytest.mark.asyncio
async def test_tokens_of_a_native_endpoint_are_passed_on():
    """A model server behind another one keeps the tokens, and marks answers under a grammar."""
    async with listening(responses=Reply(native_answer(**IDS, weight_version=4))) as endpoint:
        server = model(endpoint.url, return_token_id_information=True, is_responses_native=True)
        schema = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}}
        answer = await (await ask(server, "/v1/responses", {"input": "?", "text": schema})).json()

    item = answer["output"][-1]
    assert {name: item[name] for name in IDS} == IDS
    assert (item["weight_version"], item["constrained"]) == (4, True)
