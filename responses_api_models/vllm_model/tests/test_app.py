"""The vLLM model against a fake endpoint on loopback."""

import json
from contextlib import AsyncExitStack
from typing import Any

import pytest
from pydantic import ValidationError

from nemo_gym.base_responses_api_model import Body
from nemo_gym.errors import ConfigError
from nemo_gym.transport import http
from responses_api_models.openai_model.tests.endpoint import Reply, ask, listening, unused_url
from responses_api_models.vllm_model.app import VLLMModel
from responses_api_models.vllm_model.tests.support import USER, completion, logprobs, model


@pytest.fixture(autouse=True)
def _no_memory_of_other_tests() -> None:
    http.health.clear()


async def endpoint_request(body: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """Return the request that the endpoint receives for the chat request `body`."""
    async with listening(chat=Reply(completion())) as endpoint:
        reply = await ask(model(endpoint.url, **settings), "/v1/chat/completions", {"messages": [USER], **body})
        assert reply.status == 200, await reply.text()
    return endpoint.bodies[0]


@pytest.mark.asyncio
async def test_a_responses_request_is_converted_to_chat_and_back():
    """vLLM implements chat completions; agents use the Responses API."""
    async with listening(chat=Reply(completion("four"))) as endpoint:
        reply = await ask(
            model(endpoint.url), "/v1/responses", {"input": "2+2?", "instructions": "Be brief.", "max_output_tokens": 9}
        )

    answer = await reply.json()
    assert endpoint.bodies[0] == {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "2+2?"}]},
        ],
        "max_tokens": 9,
        "model": "small",
    }
    assert answer["output"][0]["content"][0]["text"] == "four"
    assert (answer["model"], answer["status"]) == ("small", "completed")
    assert answer["usage"]["total_tokens"] == 5


@pytest.mark.asyncio
async def test_tool_calls_come_back_as_function_calls():
    """Agents run the function calls of a response."""
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    tool = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": True}

    async with listening(chat=Reply(completion(None, "tool_calls", tool_calls=[call]))) as endpoint:
        reply = await ask(model(endpoint.url), "/v1/responses", {"input": "1+1?", "tools": [tool]})

    output = (await reply.json())["output"]
    assert [(item["type"], item["name"], item["call_id"]) for item in output] == [("function_call", "add", "call_1")]
    assert endpoint.bodies[0]["tools"] == [
        {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    ]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "body",
    [
        completion("four", reasoning_content="2 and 2"),
        completion("four", reasoning="2 and 2"),
        completion("<think>2 and 2</think>four"),
        completion("2 and 2</think>four"),
    ],
    ids=["old field", "new field", "in the text", "opened by the template"],
)
async def test_reasoning_is_separated_wherever_vllm_puts_it(body: dict[str, Any]):
    """A verifier must not grade the reasoning of the model."""
    async with listening(chat=Reply(body)) as endpoint:
        reply = await ask(model(endpoint.url), "/v1/responses", {"input": "2+2?"})
        chat = await ask(model(endpoint.url), "/v1/chat/completions", {"messages": [USER]})

    thought, message = (await reply.json())["output"]
    assert thought["summary"][0]["text"] == "2 and 2"
    assert message["content"][0]["text"] == "four"
    answer = (await chat.json())["choices"][0]["message"]
    is_separate = body["choices"][0]["message"]["content"] == "four"
    assert answer["content"] == ("four" if is_separate else "<think>2 and 2</think>four")
    assert answer.get("reasoning_content") == ("2 and 2" if is_separate else None)
    assert "reasoning" not in answer


@pytest.mark.asyncio
async def test_without_a_reasoning_parser_text_is_unchanged():
    """Models without reasoning may write the tags as text."""
    async with listening(chat=Reply(completion("<think>a</think>b"))) as endpoint:
        reply = await ask(model(endpoint.url, uses_reasoning_parser=False), "/v1/responses", {"input": "?"})

    assert (await reply.json())["output"][0]["content"][0]["text"] == "<think>a</think>b"


THOUGHT = {"role": "assistant", "content": "<think>a</think>b"}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {"content": "b", "reasoning_content": "a", "reasoning": "a"}),
        ({"preserve_reasoning_in_assistant_content": True}, {"content": "<think>a</think>b"}),
        ({"uses_interleaved_reasoning": False}, {"content": "b"}),
        (
            {"uses_interleaved_reasoning": False, "preserve_reasoning_in_assistant_content": True},
            {"content": "b"},
        ),
        ({"uses_reasoning_parser": False}, {"content": "<think>a</think>b"}),
    ],
)
async def test_earlier_reasoning_is_written_as_the_template_reads_it(
    settings: dict[str, Any], expected: dict[str, Any]
):
    """Model families differ in the reasoning they expect in the conversation."""
    request = await endpoint_request({"messages": [USER, THOUGHT, USER]}, **settings)

    assert request["messages"][1] == {"role": "assistant", **expected}


@pytest.mark.asyncio
@pytest.mark.parametrize(("allowed", "status"), [(True, 200), (False, 400)])
async def test_two_reasoning_blocks_in_a_row_can_be_refused(allowed: bool, status: int):
    """A template that keeps only one of them would silently change the conversation."""
    thoughts = [{"type": "reasoning", "id": name, "summary": [{"type": "summary_text", "text": name}]} for name in "ab"]
    async with listening(chat=Reply(completion())) as endpoint:
        server = model(endpoint.url, sequential_reasoning_allowed=allowed)
        reply = await ask(server, "/v1/responses", {"input": [USER, *thoughts, USER]})

    assert reply.status == status


@pytest.mark.asyncio
@pytest.mark.parametrize(("replace", "role"), [(True, "system"), (False, "developer")])
async def test_developer_messages_can_be_sent_as_system_messages(replace: bool, role: str):
    """The templates of most open models have no developer role."""
    request = await endpoint_request(
        {"messages": [{"role": "developer", "content": "Be brief."}, USER]}, replace_developer_role_with_system=replace
    )

    assert request["messages"][0] == {"role": role, "content": "Be brief."}


@pytest.mark.asyncio
async def test_settings_are_merged_by_precedence():
    """Extras of the configuration are defaults, its overrides are not."""
    request = await endpoint_request(
        {
            "temperature": 0.5,
            "top_p": 0.5,
            "metadata": {"extra_body": json.dumps({"top_p": 0.7, "seed": 7}), "row": "12"},
        },
        extra_body={"temperature": 0.1, "top_k": 5},
        sampling_overrides={"seed": 1},
    )

    assert request["temperature"] == 0.5
    assert request["top_p"] == 0.7
    assert request["top_k"] == 5
    assert request["seed"] == 1
    assert request["metadata"] == {"row": "12"}


@pytest.mark.asyncio
async def test_template_arguments_of_configuration_and_row_are_merged():
    """A row must be able to switch thinking off without repeating the other arguments."""
    request = await endpoint_request(
        {"metadata": {"chat_template_kwargs": '{"enable_thinking": false}'}},
        chat_template_kwargs={"enable_thinking": True, "style": "plain"},
    )

    assert request["chat_template_kwargs"] == {"enable_thinking": False, "style": "plain"}
    assert "metadata" not in request


@pytest.mark.asyncio
@pytest.mark.parametrize("text", ["{", "[1]"])
async def test_metadata_that_is_no_json_object_is_refused(text: str):
    """A typo in a dataset must be reported, not ignored."""
    async with listening(chat=Reply(completion())) as endpoint:
        reply = await ask(
            model(endpoint.url), "/v1/chat/completions", {"messages": [USER], "metadata": {"extra_body": text}}
        )

    assert reply.status == 400
    assert "metadata.extra_body" in await reply.text()
    assert endpoint.calls == []


@pytest.mark.asyncio
async def test_a_conversation_stays_with_its_endpoint():
    """Its prefix is cached at that endpoint."""
    async with AsyncExitStack() as stack:
        endpoints = [await stack.enter_async_context(listening(chat=Reply(completion()))) for _ in range(3)]
        server = model([endpoint.url for endpoint in endpoints])
        for _ in range(12):
            first = await ask(server, "/v1/chat/completions", {"messages": [USER]})
            await ask(server, "/v1/chat/completions", {"messages": [USER]}, cookies=first.cookies)

    counts = [len(endpoint.calls) for endpoint in endpoints]
    assert sum(counts) == 24
    assert all(count % 2 == 0 for count in counts)
    assert sum(count > 0 for count in counts) > 1


@pytest.mark.asyncio
async def test_a_rollout_stays_with_its_endpoint_without_a_cookie():
    """Programs outside of the agent keep no cookies; their calls would be spread and miss the prefix cache."""
    async with AsyncExitStack() as stack:
        endpoints = [await stack.enter_async_context(listening(chat=Reply(completion()))) for _ in range(3)]
        server = model([endpoint.url for endpoint in endpoints])
        for number in range(12):
            for path in ("/v1/chat/completions", "/budget/00000000000000aa-c0/v1/chat/completions"):
                await ask(server, f"/ng-rollout/{number}-0{path}", {"messages": [USER]})

    counts = [len(endpoint.calls) for endpoint in endpoints]
    assert sum(counts) == 24
    assert all(count % 2 == 0 for count in counts)
    assert sum(count > 0 for count in counts) > 1


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "body",
    [
        b"This model's maximum context length is 4096 tokens. However, you requested 5000 tokens",
        b"max_tokens must be at least 1, got -4",
        b"The decoder prompt (length 9) is longer than the maximum model length of 8.",
    ],
)
async def test_a_prompt_that_does_not_fit_is_an_incomplete_reply(body: bytes):
    """A long conversation must end, not fail."""
    async with listening(chat=Reply({"error": {"message": body.decode()}}, 400)) as endpoint:
        reply = await ask(model(endpoint.url, return_token_id_information=True), "/v1/responses", {"input": "?"})
        chat = await ask(model(endpoint.url), "/v1/chat/completions", {"messages": [USER]})

    answer = await reply.json()
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens", "which": "context_length"}
    assert answer["output"][0]["content"][0]["text"] == ""
    assert (await chat.json())["choices"][0]["finish_reason"] == "length"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "problem",
    [
        "max_tokens must be at least 1, got 0.",
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
        "max_tokens: Input should be a valid integer",
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_refused_option_is_not_taken_for_a_prompt_that_is_too_long(problem: str, stream: bool):
    """An empty answer would be scored 0 and hide that the request is wrong."""
    async with listening(chat=Reply({"error": {"message": problem, "code": 400}}, 400)) as endpoint:
        reply = await ask(model(endpoint.url), "/v1/responses", {"input": "?", "stream": stream})

    assert reply.status == 400
    assert (await reply.json())["error"]["message"] == problem


@pytest.mark.asyncio
async def test_another_refusal_keeps_its_status_and_text():
    """Only "too long" is a reply; every other refusal is a failure of this model."""
    async with listening(chat=Reply(b"temperature must be non-negative", 400)) as endpoint:
        reply = await ask(model(endpoint.url), "/v1/responses", {"input": "?"})

    assert reply.status == 400
    assert reply.headers["x-nemo-gym-upstream-status"] == "400"
    assert reply.headers["x-nemo-gym-failed"] == "policy_model"
    assert "non-negative" in await reply.text()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("body", "words"),
    [
        (Reply(b"<html>"), "not JSON"),
        (Reply(completion(), half=True), "the answer broke off"),
        (Reply({"error": "queue"}), "no choices"),
        (Reply({"choices": [{"index": 0}]}), "no message"),
        (Reply({"choices": [{"message": {"content": 5}}]}), "is not a valid ChatCompletion"),
    ],
    ids=["not JSON", "half a body", "no choices", "no message", "another shape"],
)
async def test_a_bad_answer_is_named_and_attributed(body: Reply, words: str):
    """The user must learn which server failed and why."""
    async with listening(chat=body) as endpoint:
        reply = await ask(model(endpoint.url), "/v1/responses", {"input": "hi"})

    assert reply.status == 500
    assert reply.headers["x-nemo-gym-failed"] == "policy_model"
    assert words in await reply.text()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "refusal",
    [
        (
            "'max_tokens' or 'max_completion_tokens' is too large: 64000. This model's maximum context length is 32768 "
            "tokens and your request has 100 input tokens (64000 > 32768 - 100)."
        ),
        (
            "This model's maximum context length is 32768 tokens. However, you requested 64100 tokens (100 in the "
            "messages, 64000 in the completion). Please reduce the length of the messages or completion."
        ),
        (
            "You passed 100 input tokens and requested 64000 output tokens. However, the model's context length is "
            "only 32768 tokens, resulting in a maximum input length of 0 tokens."
        ),
        (
            "Requested token count exceeds the model's maximum context length of 32768 tokens. You requested a total "
            "of 64100 tokens: 100 tokens from the input messages and 64000 tokens for the completion."
        ),
        "max_tokens is too large: 64000. This model supports at most 32668 completion tokens, whereas you gave 64000.",
    ],
    ids=["vLLM", "vLLM, older", "vLLM, newer", "SGLang", "OpenAI"],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_output_limit_above_the_context_is_capped(refusal: str, stream: bool):
    """Coding agents ask for 64,000 tokens of any model; an empty answer would be scored 0."""
    too_large = Reply({"error": {"message": refusal, "code": 400}}, 400)
    body = {"model": "m", "max_tokens": 64000, "messages": [USER], "stream": stream}

    async with listening(chat=[too_large, Reply(completion("four"))]) as endpoint:
        reply = await ask(model(endpoint.url), "/v1/messages", body)

    assert "four" in await reply.text()
    assert [sent["max_tokens"] for sent in endpoint.bodies] == [64000, 32668]


@pytest.mark.asyncio
async def test_options_of_the_engine_reach_it_in_every_dialect():
    """Sampling with other settings than requested would make results incomparable."""
    options = {"top_k": 3, "min_p": 0.1, "chat_template_kwargs": {"enable_thinking": False}, "guided_json": {}}
    stop = {"top_k": 3, "stop_sequences": ["end"]}

    async with listening(chat=Reply(completion("four"))) as endpoint:
        server = model(endpoint.url)
        await ask(server, "/v1/responses", {"input": "hi", **options})
        await ask(server, "/v1/chat/completions", {"messages": [USER], **options})
        await ask(server, "/v1/chat/completions", {"messages": [USER], "stream": True, **options})
        await ask(server, "/v1/messages", {"model": "m", "max_tokens": 5, "messages": [USER], **stop})

    for body in endpoint.bodies[:3]:
        assert {name: body[name] for name in options} == options
    assert (endpoint.bodies[3]["top_k"], endpoint.bodies[3]["stop"]) == (3, ["end"])


@pytest.mark.asyncio
async def test_what_chat_cannot_express_is_a_400_that_names_the_field():
    """A client that gets a server error sends the request again and again."""
    async with listening(chat=Reply(completion("four"))) as endpoint:
        items = [{"type": "item_reference", "id": "msg_1"}]
        reply = await ask(model(endpoint.url), "/v1/responses", {"input": items})
        streamed = await ask(model(endpoint.url), "/v1/responses", {"input": items, "stream": True})

    for answer in (reply, streamed):
        error = (await answer.json())["error"]
        assert (answer.status, error["type"], error["param"]) == (400, "invalid_request_error", "input[0]")
        assert answer.headers["x-nemo-gym-failed"] == "policy_model"
    assert endpoint.calls == []


@pytest.mark.asyncio
async def test_token_ids_of_vllm_stay_for_a_caller_that_requests_them():
    """Harnesses that collect rollouts themselves read vLLM's own fields."""
    engine = completion("four")
    engine["prompt_token_ids"], engine["choices"][0]["token_ids"] = [1, 2], [3]
    engine["choices"][0]["logprobs"] = logprobs(("four", -0.5))
    settings = {"return_token_id_information": True, "request_prompt_and_generation_token_ids": True}

    async with listening(chat=Reply(engine)) as endpoint:
        server = model(endpoint.url, **settings)
        with_ids = await ask(server, "/v1/chat/completions", {"messages": [USER], "return_token_ids": True})
        silent = await ask(server, "/v1/chat/completions", {"messages": [USER]})

    first, second = await with_ids.json(), await silent.json()
    assert (first["prompt_token_ids"], first["choices"][0]["token_ids"]) == ([1, 2], [3])
    assert first["choices"][0]["message"]["generation_token_ids"] == [3]
    assert "prompt_token_ids" not in second
    assert "token_ids" not in second["choices"][0]


@pytest.mark.asyncio
async def test_a_dead_or_slow_endpoint_is_reported_within_the_deadline():
    """A call must not take longer than the rollout may."""
    down = await ask(model(unused_url()), "/v1/responses", {"input": "hi"}, seconds=0.4)
    async with listening(chat=Reply(hang=True)) as endpoint:
        slow = await ask(model(endpoint.url), "/v1/responses", {"input": "hi"}, seconds=0.3)

    assert (down.status, slow.status) == (500, 504)
    assert {reply.headers["x-nemo-gym-failed"] for reply in (down, slow)} == {"policy_model"}


@pytest.mark.asyncio
async def test_a_native_responses_endpoint_gets_responses_requests():
    """Converting to chat would lose the reasoning items of gpt-oss."""
    answer = {
        "id": "r",
        "created_at": 1,
        "model": "small",
        "object": "response",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    async with listening(responses=Reply(answer)) as endpoint:
        server = model(endpoint.url, is_responses_native=True, sampling_overrides={"temperature": 1.0})
        reply = await ask(
            server, "/v1/responses", {"input": "hi", "metadata": {"extra_body": '{"top_k": 3}'}, "temperature": 0.0}
        )

    assert reply.status == 200
    assert endpoint.bodies == [{"input": "hi", "model": "small", "temperature": 1.0, "top_k": 3}]


@pytest.mark.asyncio
async def test_a_subclass_can_override_either_method():
    """Existing components of other authors do both."""

    class Shouting(VLLMModel):
        async def chat_completions(self, request, body=Body()):
            completion = await super().chat_completions(request, body)
            completion.choices[0].message.content = completion.choices[0].message.content.upper()
            return completion

    async with listening(chat=Reply(completion("four"))) as endpoint:
        quiet = model(endpoint.url)
        reply = await ask(
            Shouting(config=quiet.config, server_client=quiet.server_client), "/v1/responses", {"input": "2+2?"}
        )

    assert (await reply.json())["output"][0]["content"][0]["text"] == "FOUR"


@pytest.mark.asyncio
async def test_messages_requests_are_answered():
    """Agents that use Anthropic's Messages API need the same model."""
    async with listening(chat=Reply(completion("four", reasoning="2 and 2"))) as endpoint:
        reply = await ask(model(endpoint.url), "/v1/messages", {"messages": [USER], "max_tokens": 9, "model": "x"})

    assert [block["type"] for block in (await reply.json())["content"]] == ["thinking", "text"]


@pytest.mark.asyncio
async def test_calls_can_be_logged(tmp_path, monkeypatch):
    """An odd score is debugged with the raw requests and replies, and keys must not be in the file."""
    log = tmp_path / "new" / "calls.jsonl"
    monkeypatch.setenv("NEMO_GYM_VLLM_TRANSPORT_LOG", str(log))

    async with listening(chat=[Reply(completion()), Reply(b"no", 400)]) as endpoint:
        server = model(endpoint.url)
        for _ in range(2):
            await ask(server, "/v1/chat/completions", {"messages": [USER]})

    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["call"] for line in lines] == ["chat_completion"] * 2
    assert lines[0]["response"]["choices"][0]["message"]["content"] == "four"
    assert lines[0]["request"]["messages"] == [USER]
    assert lines[1]["said"] == "no"
    assert "vllm-very-secret" not in log.read_text()


def test_an_unwritable_log_is_refused_at_start(tmp_path, monkeypatch):
    """Otherwise every rollout would fail on it."""
    monkeypatch.setenv("NEMO_GYM_VLLM_TRANSPORT_LOG", str(tmp_path))

    with pytest.raises(ConfigError, match="cannot write"):
        model("http://h/v1")


def test_a_model_without_endpoints_is_refused_at_start():
    """An empty list must be a configuration error, not a later division by zero."""
    with pytest.raises(ValidationError, match="at least one endpoint"):
        model([])
