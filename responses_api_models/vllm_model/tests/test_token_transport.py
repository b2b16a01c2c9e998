"""Turns of one rollout continue each other token by token, or the rollout says where they do not."""

import itertools
import json
import logging
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from nemo_gym.training import samples_of
from responses_api_models.openai_model.tests.endpoint import Reply, ask, listening
from responses_api_models.vllm_model.app import VLLMModel
from responses_api_models.vllm_model.tests.mock_engine import IM_END, MockEngine, decode, log_probs, serving
from responses_api_models.vllm_model.tests.support import model

Json = dict[str, Any]
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}
TURNS = 6


def call(city: str) -> str:
    """Write a tool call as the model does: other spaces and another order than in the chat template."""
    return f'<tool_call>{{"arguments": {{"city":"{city}"}},"name":"weather"}}</tool_call>'


def script(turn: int) -> str:
    """Return the answer of a turn: thoughts, one call or two at once, and a text in the last turn."""
    if turn >= TURNS - 1:
        return "<think>enough</think>It is cold in the city."
    thought = f"<think>turn {turn}: the weather</think>" if turn % 2 else ""
    return thought + call("Bern") + (call("Zug") if turn == 2 else "")


async def roll_out(server: VLLMModel, turns: int = TURNS, **options: Any) -> list[Json]:
    """Run the loop of an agent; return the last item of each answer, which has its token fields."""
    items: list[Json] = [{"role": "user", "content": "the weather?"}]
    answers = []
    for _ in range(turns):
        reply = await ask(server, "/v1/responses", {"input": items, "tools": [TOOL], **options})
        answer = await reply.json()
        assert reply.status == 200, answer
        items += answer["output"]
        answers.append(answer["output"][-1])
        calls = [item for item in answer["output"] if item["type"] == "function_call"]
        items += [{"type": "function_call_output", "call_id": each["call_id"], "output": "11"} for each in calls]
        if not calls:
            items.append({"role": "user", "content": "and the next day?"})
    return answers


def count_breaks(answers: list[Json]) -> int:
    breaks = 0
    for before, after in itertools.pairwise(answers):
        seen = before["prompt_token_ids"] + before["generation_token_ids"]
        breaks += after["prompt_token_ids"][: len(seen)] != seen
    return breaks


def policy(engine: MockEngine, **settings: Any) -> VLLMModel:
    chosen = {"return_token_id_information": True, "request_prompt_and_generation_token_ids": True}
    return model(engine.url, **(chosen | settings))


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("transport", "engine", "expected"),
    [
        ("chat", {"style": "beside"}, TURNS - 1),
        ("chat", {"style": "log_probs"}, TURNS - 1),
        ("chat", {"style": "beside", "splices": True}, 0),
        ("chat", {"style": "message", "splices": True}, 0),
        ("chat", {"style": "log_probs", "splices": True}, 0),
        ("auto", {"scale_out": False, "splices": True}, 0),
        ("auto", {"scale_out": False}, TURNS - 1),
        ("auto", {}, 0),
        ("tokens", {}, 0),
        ("tokens", {"keeps_thoughts": False}, 0),
        ("chat", {"keeps_thoughts": False}, TURNS - 1),
    ],
)
async def test_turn_boundaries(transport: str, engine: Json, expected: int, caplog: pytest.LogCaptureFixture):
    """A stock engine writes earlier answers anew; a sample made of such turns would train on tokens never sampled."""
    async with serving(MockEngine(script, **engine)) as served:
        style = {"request_prompt_and_generation_token_ids": engine.get("style") != "log_probs"}
        answers = await roll_out(policy(served, transport=transport, **style))

    assert count_breaks(answers) == expected
    assert sum("break_reason" in answer for answer in answers) == expected
    assert len([record for record in caplog.records if "does not start with the tokens" in record.message]) == (
        1 if expected else 0
    )


@pytest.mark.asyncio
@pytest.mark.parametrize(("transport", "is_exact"), [("tokens", True), ("chat", False)])
async def test_a_trainer_recomputes_the_log_probabilities_from_one_sequence(transport: str, is_exact: bool):
    """Trainers compute the log-probabilities of all turns from the last prompt; other tokens give other numbers."""
    async with serving(MockEngine(script)) as engine:
        answers = await roll_out(policy(engine, transport=transport))

    sequence = answers[-1]["prompt_token_ids"] + answers[-1]["generation_token_ids"]
    gaps = []
    for answer in answers:
        start = len(answer["prompt_token_ids"])
        generated = sequence[start : start + len(answer["generation_token_ids"])]
        numbers = log_probs(sequence[:start], generated)
        gaps += [abs(a - b) for a, b in zip(numbers, answer["generation_log_probs"], strict=False)]
    assert (max(gaps) == 0.0) is is_exact
    samples = samples_of({"response": {"output": answers}})
    assert len(samples) == (1 if is_exact else TURNS)
    if is_exact:
        generated = [token for answer in answers for token in answer["generation_token_ids"]]
        (only,) = samples
        assert [token for token, mask in zip(only.token_ids, only.loss_mask, strict=True) if mask] == generated


@pytest.mark.asyncio
async def test_the_start_of_an_answer_may_differ_from_its_text_in_the_history():
    """Templates open an answer with an empty thought when thinking is off, and do not repeat it later."""
    start = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    async with serving(MockEngine(lambda turn: f"answer {turn}", answer_start=start)) as engine:
        answers = await roll_out(policy(engine, transport="tokens"), turns=4)

    assert count_breaks(answers) == 0
    assert decode(answers[1]["prompt_token_ids"]).count("</think>") == 2


@pytest.mark.asyncio
async def test_a_turn_that_was_cut_off_is_closed_by_the_template():
    """An episode may go on after an answer that reached its length limit; the prompt needs the end of that turn."""
    async with serving(MockEngine(lambda turn: f"a long answer {turn}")) as engine:
        answers = await roll_out(policy(engine, transport="tokens"), turns=3, max_output_tokens=6)

    assert [answer["finish_reason"] for answer in answers] == ["length"] * 3
    assert count_breaks(answers) == 0
    end = len(answers[0]["prompt_token_ids"]) + 6
    assert answers[1]["prompt_token_ids"][end] == IM_END
    assert "<|im_end|>\n<|im_end|>" not in decode(answers[-1]["prompt_token_ids"])


@pytest.mark.asyncio
async def test_a_changed_conversation_is_not_continued_with_old_tokens(caplog: pytest.LogCaptureFixture):
    """After compaction the model must see what the agent sent, and the sample must say that it starts anew."""
    async with serving(MockEngine(lambda turn: f"answer {turn}")) as engine:
        server = policy(engine, transport="tokens")
        question: Json = {"role": "user", "content": "the weather?"}
        first = await (await ask(server, "/v1/responses", {"input": [question]})).json()
        later = {"role": "user", "content": "and now?"}
        changed = [{"role": "user", "content": "a summary"}, *first["output"], later]
        second = await (await ask(server, "/v1/responses", {"input": changed})).json()

    item = second["output"][-1]
    text = decode(item["prompt_token_ids"])
    assert "a summary" in text
    assert "the weather?" not in text
    assert "was changed" in item["break_reason"]
    assert "was changed" in caplog.text


@pytest.mark.asyncio
async def test_requests_have_the_tokens_of_the_last_answer_only(caplog: pytest.LogCaptureFixture):
    """Ids of every answer made the requests of a 40-turn rollout 46 MB; engines read those of the last one."""
    caplog.set_level(logging.ERROR)
    async with serving(MockEngine(lambda turn: f"answer {turn} " * 40, splices=True)) as engine:
        answers = await roll_out(policy(engine), turns=12)

    *_, (_, size, body) = engine.calls
    carriers = [message for message in body["messages"] if "prompt_token_ids" in message]
    assert carriers == [message for message in body["messages"] if message["role"] == "assistant"][-1:]
    assert not any("finish_reason" in message for message in body["messages"])
    with_all_tokens = size + sum(len(orjson.dumps(answer)) for answer in answers[:-2])
    assert size < with_all_tokens / 3


@pytest.mark.asyncio
async def test_the_token_transport_sends_ids_once():
    """The prompt is rendered from text and generated from ids; neither request carries the other's form."""
    async with serving(MockEngine(script)) as engine:
        await roll_out(policy(engine, transport="tokens"))

    for path, _, body in engine.calls:
        for message in body.get("messages", []):
            assert not {"prompt_token_ids", "generation_token_ids", "finish_reason"} & message.keys(), path
    paths = [path for path, _, _ in engine.calls]
    assert paths.count("/inference/v1/generate") == TURNS
    assert paths.count("/v1/chat/completions/render") == TURNS + 4  # four probes, once
    assert "/v1/chat/completions" not in paths


@pytest.mark.asyncio
async def test_an_endpoint_without_the_token_transport_is_named():
    """Falling back silently would train on broken boundaries; `auto` is the choice of those who want that."""
    async with serving(MockEngine(script, scale_out=False)) as engine:
        reply = await ask(policy(engine, transport="tokens"), "/v1/responses", {"input": "?"})

    assert reply.status == 500
    assert "--enable-scale-out" in await reply.text()


@pytest.mark.asyncio
async def test_auto_asks_once_and_then_uses_chat():
    """An engine that splices by itself must not get a failing request before each answer."""
    async with serving(MockEngine(script, scale_out=False, splices=True, style="message")) as engine:
        await roll_out(policy(engine, transport="auto"))

    assert [path for path, _, _ in engine.calls].count("/v1/chat/completions/render") == 1


@pytest.mark.asyncio
async def test_auto_does_not_change_the_transport_during_a_run():
    """A router may answer 404 while an engine restarts; later turns by text would break every rollout in flight."""
    async with serving(MockEngine(script)) as engine:
        server = policy(engine, transport="auto")
        await roll_out(server, turns=1)
        engine.scale_out = False
        reply = await ask(server, "/v1/responses", {"input": "?"})

    assert reply.status != 200
    assert "/v1/chat/completions" not in [path for path, _, _ in engine.calls]


@pytest.mark.asyncio
@pytest.mark.parametrize("transport", ["tokens", "auto"])
async def test_an_unknown_model_is_refused_as_by_the_chat_endpoint(transport: str):
    """The collector stops a run at a 404 of the endpoint; it must not look like a missing transport."""
    missing = Reply({"error": {"message": "The model `small` does not exist.", "code": 404}}, 404)
    async with listening(**{"v1/chat/completions/render": missing}) as endpoint:
        server = policy(MockEngine(script, url=endpoint.url), transport=transport)
        reply = await ask(server, "/v1/responses", {"input": "?"})

    assert "does not exist" in await reply.text()
    assert len(endpoint.calls) == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"return_token_id_information": False, "transport": "tokens"}, "needs return_token_id_information"),
        ({"is_responses_native": True, "transport": "tokens"}, "is_responses_native"),
        ({"use_completions_api": True, "transport": "auto"}, "use_completions_api"),
    ],
)
def test_a_transport_that_cannot_work_is_a_configuration_error(settings: Json, words: str):
    """Settings that contradict each other would otherwise be ignored."""
    with pytest.raises(ValueError, match=words):
        policy(MockEngine(script, url="http://127.0.0.1:1/v1"), **settings)


@pytest.mark.asyncio
async def test_the_caller_gets_decoded_log_probabilities_on_request():
    """The token transport must answer a chat request with `logprobs` as the chat endpoint does."""
    async with serving(MockEngine(lambda turn: "It is cold.")) as engine:
        body = {"messages": [{"role": "user", "content": "?"}], "logprobs": True}
        reply = await (await ask(policy(engine, transport="tokens"), "/v1/chat/completions", body)).json()

    entries = reply["choices"][0]["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == "It is cold.<|im_end|>"
    assert reply["choices"][0]["message"]["content"] == "It is cold."


@pytest.mark.asyncio
async def test_a_model_that_ends_its_turn_at_once_gives_an_empty_answer():
    """One token was sampled, and it is trained on; there is no text to parse."""
    async with serving(MockEngine(lambda turn: "")) as engine:
        (answer,) = await roll_out(policy(engine, transport="tokens"), turns=1)

    assert answer["generation_token_ids"] == [IM_END]
    assert answer["content"][0]["text"] == ""


@pytest.mark.asyncio
async def test_a_stop_string_is_cut_from_the_text_and_kept_in_the_tokens():
    """vLLM cuts it when it decodes an answer itself; the tokens were sampled and stay."""

    def stop_at_word(reply: Json) -> None:
        choice = reply["choices"][0]
        choice["token_ids"], choice["stop_reason"] = choice["token_ids"][:-1], "END"
        choice["logprobs"]["content"].pop()

    async with serving(MockEngine(lambda turn: "fine END", fault=stop_at_word)) as engine:
        answers = await roll_out(policy(engine, transport="tokens"), turns=2)

    assert answers[0]["content"][0]["text"] == "fine "
    assert decode(answers[0]["generation_token_ids"]) == "fine END"
    assert answers[0]["stop_reason"] == "END"
    assert count_breaks(answers) == 0


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("version", "expected"),
    [("7", 7), ("default", None), ("abc", None)],
)
async def test_the_weight_version_is_kept(version: str, expected: int | None):
    """A trainer limits staleness by the version that generated each turn."""
    async with serving(MockEngine(script, version=version)) as engine:
        (answer,) = await roll_out(policy(engine, transport="tokens"), turns=1)

    assert answer.get("weight_version") == expected


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda choice: choice | {"weight_versions": [{"version": "6"}, {"version": "7"}]}, {"weight_version": [6, 7]}),
        (lambda choice: choice | {"weight_version": 3}, {"weight_version": 3}),
        (lambda choice: choice | {"stop_reason": 5}, {"stop_reason": 5, "finish_reason": "tool_calls"}),
        (lambda choice: choice | {"routed_experts": "nrlre1:x"}, {"routed_experts": "nrlre1:x"}),
        (lambda choice: choice | {"sampling_mask": [[1]]}, {"engine_fields": {"sampling_mask": [[1]]}}),
        (
            lambda choice: choice["message"].update(policy_epoch=[4], kv_cache_epoch=[3], num_evictions=0) or choice,
            {"policy_epoch": [4], "kv_cache_epoch": [3], "num_evictions": 0},
        ),
    ],
    ids=["two versions", "one version", "stop reason", "routed experts", "named field", "megatron"],
)
async def test_fields_of_the_engine_are_kept(change: Callable[[Json], Json], expected: Json):
    """What an engine says about a generation is needed by its trainer and cannot be found out later."""

    def fault(reply: Json) -> None:
        reply["choices"][0] = change(reply["choices"][0])

    async with serving(MockEngine(script, fault=fault)) as engine:
        (answer,) = await roll_out(policy(engine, keep_reply_fields=["sampling_mask"]), turns=1)

    assert {name: answer.get(name) for name in expected} == expected


@pytest.mark.asyncio
@pytest.mark.parametrize("transport", ["chat", "tokens"])
@pytest.mark.parametrize(
    ("options", "is_constrained"),
    [
        ({}, False),
        ({"tool_choice": "auto"}, False),
        ({"tool_choice": "required"}, True),
        ({"tool_choice": {"type": "function", "name": "weather"}}, True),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}}}, True),
        ({"text": {"format": {"type": "text"}}}, False),
        ({"metadata": {"extra_body": json.dumps({"guided_regex": "a+"})}}, True),
        ({"metadata": {"extra_body": json.dumps({"structured_outputs": {"choice": ["a"]}})}}, True),
    ],
)
async def test_an_answer_under_a_grammar_is_marked(transport: str, options: Json, is_constrained: bool):
    """Its log-probabilities are those after the restriction (7.5 nat from the trainer's): it is not trainable."""
    async with serving(MockEngine(script)) as engine:
        (answer,) = await roll_out(policy(engine, transport=transport), turns=1, **options)

    assert answer.get("constrained", False) is is_constrained


def set_logprob(value: Any) -> Callable[[Json], None]:
    def fault(reply: Json) -> None:
        reply["choices"][0]["logprobs"]["content"][1]["logprob"] = value

    return fault


def without(*names: str) -> Callable[[Json], None]:
    def fault(reply: Json) -> None:
        for name in names:
            reply["choices"][0].pop(name, None)

    return fault


def copy_to_message(**changes: Any) -> Callable[[Json], None]:
    def fault(reply: Json) -> None:
        choice = reply["choices"][0]
        fields = {"prompt_token_ids": reply["prompt_token_ids"], "generation_token_ids": choice["token_ids"]}
        fields["generation_log_probs"] = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        choice["message"] |= fields | changes

    return fault


def add_choice(reply: Json) -> None:
    reply["choices"] *= 2


@pytest.mark.asyncio
@pytest.mark.parametrize("answer", [call("Bern"), "It is cold."], ids=["tool call", "text"])
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (without("logprobs", "token_ids"), "without token ids and log-probabilities"),
        (without("logprobs"), "token ids and 0 log-probabilities"),
        (set_logprob(float("nan")), "log-probability nan for generated token 1"),
        (set_logprob(None), "without its log-probability"),
        (add_choice, "gave 2 answers"),
        (copy_to_message(prompt_token_ids=[1]), "different prompt_token_ids"),
        (copy_to_message(generation_token_ids=[1]), "different generation_token_ids"),
        (copy_to_message(generation_log_probs=["NaN"]), "different generation_log_probs"),
    ],
)
async def test_tokens_that_cannot_be_trained_on_are_a_failure(fault: Callable[[Json], None], words: str, answer: str):
    """A turn without ids was left out silently; a NaN stopped the trainer hours later."""
    async with serving(MockEngine(lambda turn: answer, fault=fault)) as engine:
        reply = await ask(policy(engine), "/v1/responses", {"input": "?", "tools": [TOOL]})

    assert reply.status == 500, await reply.text()
    assert words in await reply.text()


@pytest.mark.asyncio
async def test_equal_sources_are_accepted():
    """Engines for training report the tokens in the message and vLLM beside it; both may be there."""
    async with serving(MockEngine(script, fault=copy_to_message())) as engine:
        (answer,) = await roll_out(policy(engine), turns=1)

    assert answer["generation_token_ids"]


@pytest.mark.asyncio
@pytest.mark.parametrize("transport", ["chat", "tokens"])
@pytest.mark.parametrize(
    ("fault", "words"),
    [(set_logprob("NaN"), "log-probability"), (without("logprobs"), "log-probabilities")],
)
async def test_faults_are_found_on_the_token_transport(fault: Callable[[Json], None], words: str, transport: str):
    """The rules for tokens do not depend on the way they came."""
    async with serving(MockEngine(script, fault=fault)) as engine:
        reply = await ask(policy(engine, transport=transport), "/v1/responses", {"input": "?"})

    assert reply.status == 500
    assert words in await reply.text()


@pytest.mark.asyncio
async def test_several_answers_with_token_ids_are_refused():
    """An item has one generation; n answers need n requests."""
    async with serving(MockEngine(script)) as engine:
        body = {"messages": [{"role": "user", "content": "?"}], "n": 2}
        reply = await ask(policy(engine), "/v1/chat/completions", body)

    assert reply.status == 400
    assert "n is 2" in await reply.text()
    assert engine.calls == []


@pytest.mark.asyncio
@pytest.mark.parametrize("limit", [10, 40], ids=["first prompt", "later prompt"])
@pytest.mark.parametrize("transport", ["chat", "tokens"])
async def test_a_prompt_that_does_not_fit_names_the_limit(limit: int, transport: str):
    """An empty answer that looks like any other is scored 0.0, and a trainer learns from it."""
    async with serving(MockEngine(lambda turn: "fine", max_model_len=limit)) as engine:
        server = policy(engine, transport=transport)
        items: list[Json] = [{"role": "user", "content": "the weather?"}]
        for _ in range(5):
            answer = await (await ask(server, "/v1/responses", {"input": items, "max_output_tokens": 8})).json()
            if answer["status"] == "incomplete":
                break
            items += [*answer["output"], {"role": "user", "content": "and?"}]

    assert answer["incomplete_details"] == {"reason": "max_output_tokens", "which": "context_length"}
