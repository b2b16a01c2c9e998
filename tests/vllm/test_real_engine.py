"""The token transport with real vLLM: no broken boundary, and the log-probabilities that a trainer computes."""

import asyncio
import itertools
from typing import Any

import pytest

from responses_api_models.openai_model.tests.endpoint import ask
from responses_api_models.vllm_model.app import VLLMModel
from responses_api_models.vllm_model.tests.support import model
from tests.vllm.conftest import MAX_MODEL_LEN, RealEngine

Json = dict[str, Any]
CITIES = ["Bern", "Basel", "Chur", "Davos", "Genf", "Lugano"]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": False}
ROLLOUTS, TURNS = 48, 4
PARITY = 1e-4
pytestmark = pytest.mark.timeout(600)  # the first test trains the model and starts the engine


def policy(engine: RealEngine, transport: str, **settings: Any) -> VLLMModel:
    chosen = {"return_token_id_information": True, "request_prompt_and_generation_token_ids": True}
    return model(engine.url, model="tiny", transport=transport, **(chosen | settings))


async def roll_out(server: VLLMModel, number: int, **options: Any) -> list[Json]:
    """Run the loop of an agent with the tool; return the last item of each answer."""
    first, second = CITIES[number % 6], CITIES[(number + 1 + number // 6) % 6]
    items: list[Json] = [{"role": "user", "content": f"weather in {first} and {second}?"}]
    answers = []
    for turn in range(TURNS):
        body = {"input": items, "tools": [TOOL], "max_output_tokens": 60, "temperature": 1.0, **options}
        reply = await ask(server, "/v1/responses", body, seconds=120)
        answer = await reply.json()
        assert reply.status == 200, answer
        items += answer["output"]
        answers.append(answer["output"][-1])
        calls = [item for item in answer["output"] if item["type"] == "function_call"]
        outputs = [
            {"type": "function_call_output", "call_id": c["call_id"], "output": f"{turn} degrees"} for c in calls
        ]
        items += outputs or [{"role": "user", "content": f"weather in {second}?"}]
    return answers


def count_breaks(rollouts: list[list[Json]]) -> tuple[int, int]:
    """Return the number of turn boundaries and of those at which the tokens do not continue."""
    pairs = [pair for answers in rollouts for pair in itertools.pairwise(answers)]
    seen = [before["prompt_token_ids"] + before["generation_token_ids"] for before, _ in pairs]
    broken = sum(after["prompt_token_ids"][: len(ids)] != ids for ids, (_, after) in zip(seen, pairs, strict=True))
    return len(pairs), broken


def largest_gap(engine: RealEngine, rollouts: list[list[Json]]) -> float:
    """Compare the log-probabilities of each answer with those of one forward pass over the whole rollout."""
    sequences = [answers[-1]["prompt_token_ids"] + answers[-1]["generation_token_ids"] for answers in rollouts]
    scores = engine.score([{"ids": ids, "start": 1} for ids in sequences])
    gaps = []
    for answers, numbers in zip(rollouts, scores, strict=True):
        for answer in answers:
            start = len(answer["prompt_token_ids"]) - 1  # the first token has no log-probability
            log_probs = answer["generation_log_probs"]
            gaps += [abs(a - b) for a, b in zip(log_probs, numbers[start : start + len(log_probs)], strict=False)]
    return max(gaps)


@pytest.mark.parametrize("transport", ["tokens", "auto"])
async def test_every_turn_continues_and_every_log_probability_is_the_trainers(
    engine: RealEngine, transport: str, capsys
):
    """This is what exact tokens mean: one sequence for each rollout, on which engine and trainer agree."""
    server = policy(engine, transport)
    rollouts = await asyncio.gather(*(roll_out(server, number) for number in range(ROLLOUTS)))

    boundaries, broken = count_breaks(rollouts)
    gap = largest_gap(engine, rollouts)
    with capsys.disabled():
        print(f"\n{transport}: {boundaries} boundaries, {broken} broken, largest log-prob gap {gap:.1e}")
    assert boundaries == ROLLOUTS * (TURNS - 1)
    assert broken == 0
    assert gap < PARITY
    assert any(answer["type"] == "function_call" for answers in rollouts for answer in answers)


async def test_the_chat_transport_breaks_boundaries_and_says_so(engine: RealEngine, capsys):
    """The control: with the same engine and model, text loses the sampled tokens, and each loss is marked."""
    rollouts = await asyncio.gather(*(roll_out(policy(engine, "chat"), number) for number in range(ROLLOUTS)))

    boundaries, broken = count_breaks(rollouts)
    gap = largest_gap(engine, rollouts)
    with capsys.disabled():
        print(f"\nchat: {boundaries} boundaries, {broken} broken, largest log-prob gap {gap:.1e}")
    assert broken > boundaries / 2
    assert sum("break_reason" in answer for answers in rollouts for answer in answers) == broken
    assert gap > PARITY


async def test_new_weights_are_used_and_their_version_is_reported(engine: RealEngine):
    """A trainer changes the weights between steps and must know which of them wrote each turn."""
    server = policy(engine, "tokens")
    (before,) = (await roll_out(server, 0))[:1]
    assert "weight_version" not in before
    engine.script("change")
    engine.post("/pause")
    engine.post("/collective_rpc", {"method": "reload_weights"})
    engine.post("/update_weight_version", {"new_version": "7"})
    engine.post("/resume")

    rollouts = [await roll_out(server, 1)]

    assert [answer["weight_version"] for answer in rollouts[0]] == [7] * TURNS
    assert largest_gap(engine, rollouts) < PARITY, "the engine answers with the old weights"


async def test_an_answer_under_a_grammar_is_marked_and_not_what_a_trainer_computes(engine: RealEngine):
    """`tool_choice: required` changes the log-probabilities, so such an answer must not be trained on."""
    rollouts = await asyncio.gather(
        *(roll_out(policy(engine, "tokens"), number, tool_choice="required") for number in range(4))
    )

    assert all(answer["constrained"] is True for answers in rollouts for answer in answers)
    assert largest_gap(engine, rollouts) > PARITY


async def test_a_prompt_that_does_not_fit_names_the_limit(engine: RealEngine):
    """The words of the refusal differ between the endpoints; both mean the limit of the context."""
    for transport in ("tokens", "chat"):
        body = {"input": "weather in Bern? " * MAX_MODEL_LEN}
        answer = await (await ask(policy(engine, transport), "/v1/responses", body, seconds=60)).json()

        assert answer["incomplete_details"]["which"] == "context_length"


async def test_a_native_responses_endpoint_without_ids_is_refused(engine: RealEngine):
    """vLLM's `/v1/responses` gives no token ids; rollouts of such a server were empty for a trainer."""
    reply = await ask(policy(engine, "chat", is_responses_native=True), "/v1/responses", {"input": "?"}, seconds=60)

    assert reply.status == 500
    assert "is_responses_native: false" in await reply.text()
