"""The server of a trainer's policy, against a fake engine on loopback; tests/train runs it with the real engine."""

import subprocess
import sys
from typing import Any
from unittest.mock import MagicMock

import orjson
import pytest

from nemo_gym.server_utils import ServerClient
from responses_api_models.openai_model.tests.endpoint import Endpoint, Reply, ask, listening
from responses_api_models.torch_model.app import TorchModel, TorchModelConfig

Json = dict[str, Any]
FIELDS = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}
GENERATION = {"weight_version": 4, "finish_reason": "stop"}
CALL = {"id": "c1", "type": "function", "function": {"name": "ask", "arguments": "{}"}}


def completion(**message: Any) -> Reply:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "7", **message}}
    return Reply({"id": "c", "object": "chat.completion", "created": 1, "model": "policy", "choices": [choice]})


def server(endpoint: Endpoint, **settings: Any) -> TorchModel:
    config = TorchModelConfig(
        host="127.0.0.1",
        port=1,
        entrypoint="app.py",
        name="policy_model",
        base_url=endpoint.url,
        api_key="t",
        **settings,
    )
    return TorchModel(config=config, server_client=MagicMock(spec=ServerClient, global_config_dict={}))


async def answer(model: TorchModel, path: str, **body: Any) -> tuple[int, Json]:
    reply = await ask(model, path, body)
    return reply.status, orjson.loads(await reply.read())


async def test_token_fields_version_and_finish_reason_are_on_the_last_item() -> None:
    """There `samples_of` reads them."""
    async with listening(chat=completion(**FIELDS, **GENERATION)) as endpoint:
        status, response = await answer(server(endpoint), "/v1/responses", input="hi")

    assert status == 200
    (item,) = response["output"]
    assert {name: item[name] for name in (*FIELDS, *GENERATION)} == FIELDS | GENERATION
    assert endpoint.calls[0].headers["Authorization"] == "Bearer t"


async def test_a_tool_call_carries_its_tokens() -> None:
    """Otherwise the turn that called the tool would never be trained."""
    async with listening(chat=completion(**FIELDS, content=None, tool_calls=[CALL])) as endpoint:
        _, response = await answer(server(endpoint), "/v1/responses", input="hi")

    (item,) = response["output"]
    assert (item["type"], item["name"], item["generation_token_ids"]) == ("function_call", "ask", [3])


async def test_only_the_last_turn_sends_its_ids_to_the_engine() -> None:
    """Its ids contain the earlier ones; sending all of them grows with the square of the conversation."""
    item = {"type": "function_call", "call_id": "c1", "name": "ask", "arguments": "{}"}
    turns = [
        {"role": "user", "content": "hi"},
        {**item, **FIELDS, **GENERATION},
        {"type": "function_call_output", "call_id": "c1", "output": "7"},
        {**item, "call_id": "c2", **FIELDS, "prompt_token_ids": [1, 2, 3, 9]},
        {"type": "function_call_output", "call_id": "c2", "output": "8"},
    ]
    async with listening(chat=completion(**FIELDS)) as endpoint:
        status, _ = await answer(server(endpoint), "/v1/responses", input=turns)

    assert status == 200
    sent = [message.get("prompt_token_ids") for message in endpoint.calls[0].body["messages"]]
    assert sent == [None, None, None, [1, 2, 3, 9], None]


@pytest.mark.parametrize(
    "message",
    [{}, {**FIELDS, "generation_log_probs": []}, {**FIELDS, "generation_token_ids": [], "generation_log_probs": []}],
    ids=["no fields", "no log-probs", "no tokens"],
)
async def test_a_reply_without_usable_tokens_is_a_failure_of_the_model(message: Json) -> None:
    """A turn without tokens would be left out of training silently."""
    async with listening(chat=completion(**message)) as endpoint:
        status, _ = await answer(server(endpoint), "/v1/responses", input="hi")

    assert status == 500


async def test_a_prompt_that_does_not_fit_ends_the_episode_incomplete() -> None:
    """It is a limit, and not an answer."""
    error = {"error": {"message": "the maximum context length is 32", "code": "context_length_exceeded"}}
    async with listening(chat=Reply(error, 400)) as endpoint:
        status, response = await answer(server(endpoint), "/v1/responses", input="hi")

    assert status == 200
    assert response["incomplete_details"] == {"reason": "max_output_tokens", "which": "context_length"}


async def test_sampling_options_and_the_seed_of_repeats_reach_the_engine() -> None:
    """Repeats put their seed into the metadata."""
    async with listening(chat=completion(**FIELDS)) as endpoint:
        model = server(endpoint, max_output_tokens=5)
        await answer(model, "/v1/responses", input="hi", temperature=0.5, metadata={"extra_body": '{"seed": 3}'})
        await answer(model, "/v1/chat/completions", messages=[{"role": "user", "content": "hi"}], max_tokens=9)

    first, second = (call.body for call in endpoint.calls)
    assert (first["temperature"], first["seed"], first["max_completion_tokens"]) == (0.5, 3, 5)
    assert second["max_tokens"] == 9
    assert "max_completion_tokens" not in second


async def test_a_limit_of_zero_tokens_reaches_the_engine_which_refuses_it() -> None:
    """Replacing it by the configured limit would hide the mistake of the caller."""
    async with listening(chat=completion(**FIELDS)) as endpoint:
        model = server(endpoint, max_output_tokens=5)
        messages = [{"role": "user", "content": "hi"}]
        await answer(model, "/v1/chat/completions", messages=messages, max_completion_tokens=0)

    assert endpoint.calls[0].body["max_completion_tokens"] == 0


@pytest.mark.parametrize(
    ("option", "neutral"),
    [
        ({"stop": "."}, {"stop": []}),
        ({"frequency_penalty": 0.5}, {"frequency_penalty": 0.0}),
        ({"presence_penalty": 0.5}, {"presence_penalty": 0.0}),
        ({"logit_bias": {"3": 5}}, {"logit_bias": {}}),
        ({"top_k": 5}, {"top_k": -1}),
        ({"min_p": 0.1}, {"min_p": 0}),
        ({"metadata": {"extra_body": '{"top_k": 5}'}}, {"metadata": {"extra_body": '{"top_k": -1}'}}),
        ({"metadata": {"extra_body": '{"min_p": 0.1}'}}, {"metadata": {"extra_body": '{"min_p": 0}'}}),
        (
            {"metadata": {"extra_body": '{"repetition_penalty": 1.1}'}},
            {"metadata": {"extra_body": '{"repetition_penalty": 1.0}'}},
        ),
    ],
)
async def test_options_that_the_engine_does_not_have_are_refused(option: Json, neutral: Json) -> None:
    """Dropping them silently would train on another distribution than the one that the user set."""
    messages = [{"role": "user", "content": "hi"}]
    async with listening(chat=completion(**FIELDS)) as endpoint:
        refused, problem = await answer(server(endpoint), "/v1/chat/completions", messages=messages, **option)
        accepted, _ = await answer(server(endpoint), "/v1/chat/completions", messages=messages, **neutral)

    assert (refused, accepted) == (400, 200)
    assert "leave it unset" in str(problem)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refused_option_is_refused_in_the_responses_dialect_too(stream: bool) -> None:
    """Our agents speak this dialect; an option at the top level must not get lost in the conversion."""
    async with listening(chat=completion(**FIELDS)) as endpoint:
        refused, problem = await answer(server(endpoint), "/v1/responses", input="hi", top_k=5, stream=stream)
        accepted, _ = await answer(server(endpoint), "/v1/responses", input="hi", top_k=-1)

    assert (refused, accepted) == (400, 200)
    assert problem["error"]["message"].startswith("top_k")


async def test_log_probs_of_the_chat_dialect_are_refused() -> None:
    """The engine reports them in its own fields; an empty list would look like a reply without tokens."""
    async with listening(chat=completion(**FIELDS)) as endpoint:
        status, _ = await answer(
            server(endpoint), "/v1/chat/completions", messages=[{"role": "user", "content": "hi"}], logprobs=True
        )

    assert status == 400


def test_the_server_imports_no_torch() -> None:
    """A cell with this server stays small, and works where torch is not installed."""
    code = "import sys, responses_api_models.torch_model.app; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
