"""Token memory on the token transport: a harness that drops every token id continues its conversations exactly."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.training import rollout_of, samples_of
from responses_api_models.vllm_model.tests.mock_engine import MockEngine, log_probs
from tests.token_id_capture.capture_world import (
    CaptureWorld,
    Engine,
    HabitAgent,
    Json,
    capture_world,
    final_response,
)
from tests.token_id_capture.test_agents import TOOLS, block

pytestmark = pytest.mark.asyncio

TURNS = 6
USER = {"role": "user", "content": "the weather?"}


def script(turn: int) -> str:
    """Return the answer of a turn: tool calls that the template writes differently, thoughts, then a text."""
    if turn >= TURNS - 1:
        return "It is cold in the city."
    thought = f"<think>turn {turn}: the weather</think>" if turn % 2 else ""
    return thought + f'<tool_call>{{"arguments": {{"city":"Bern {turn}"}},"name":"add"}}</tool_call>'


def next_messages(message: Json) -> list[Json]:
    """Return an answer and what the harness adds to it."""
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "11"} for call in message.get("tool_calls", ())]
    return [message, *(results or [{"role": "user", "content": "and then?"}])]


async def talk(agent: HabitAgent, row: Json, messages: list[Json], turns: int) -> tuple[str, list[Json]]:
    """Continue a conversation by `turns` calls as a chat SDK does; return the last id and the conversation."""
    response_id = ""
    for _ in range(turns):
        response_id, message = await agent.chat(row, messages, tools=TOOLS)
        messages = [*messages, *next_messages(message)]
    return response_id, messages


def generations(world: CaptureWorld) -> list[tuple[list[int], list[int]]]:
    """Return prompt and generated tokens of each generation of the engine, in order."""
    calls = [body for path, _, body in world.engine.calls if path == "/inference/v1/generate"]
    answers = [world.engine.answers(int(body["request_id"].removeprefix("turn-"))) for body in calls]
    return [
        (body["token_ids"], world.engine.generate(body["token_ids"], None, answer)[0])
        for body, answer in zip(calls, answers, strict=True)
    ]


def assert_exact(result: Json, world: CaptureWorld) -> None:
    """Every generated token is in one span, with the log-prob that a trainer computes from the whole sample."""
    assert rollout_of(result).trainable, result.get("_ng_token_capture")
    spans = []
    for sample in samples_of(result, on_break="raise"):
        for span in sample.spans:
            generated = sample.token_ids[span.start : span.end]
            assert sample.logprobs[span.start : span.end] == log_probs(sample.token_ids[: span.start], generated)
            spans.append(generated)
    assert sorted(spans) == sorted(generated for _, generated in generations(world))


def world_with(tmp_path: Path, habit: Any, **settings: Any) -> Any:
    engine = MockEngine(script, keeps_thoughts=settings.pop("keeps_thoughts", True))
    capture = block(tmp_path, delta_records=settings.pop("delta_records", False))
    return capture_world(capture, habit, engine=engine, transport="tokens", **settings)


@pytest.mark.parametrize("delta_records", [False, True])
@pytest.mark.parametrize("keeps_thoughts", [False, True])
async def test_six_turns_without_any_ids_have_no_broken_boundary(
    tmp_path: Path, delta_records: bool, keeps_thoughts: bool
) -> None:
    """The prompt of a turn contains all earlier answers; each must be known as sampled, not only the last."""

    async def harness(agent: HabitAgent, row: Json) -> Json:
        response_id, _ = await talk(agent, row, [USER], TURNS)
        return final_response(response_id, [])

    options = {"delta_records": delta_records, "keeps_thoughts": keeps_thoughts}
    async with world_with(tmp_path, harness, uses_reasoning_parser=True, **options) as world:
        [result] = await world.collect(tmp_path)

    calls = generations(world)
    assert len(calls) == TURNS
    broken = [
        after[: len(prompt) + len(own)] != prompt + own for (prompt, own), (after, _) in itertools.pairwise(calls)
    ]
    assert sum(broken) == 0
    assert_exact(result, world)
    [sample] = samples_of(result, on_break="raise")
    assert len(sample.spans) == TURNS


async def test_branches_sub_agents_and_compacted_contexts_are_continued_exactly(tmp_path: Path) -> None:
    """Each conversation of a rollout has a memory: the branch after turn 2 must not get the tokens of turn 3."""

    async def harness(agent: HabitAgent, row: Json) -> Json:
        _, trunk = await talk(agent, row, [USER], 2)
        await talk(agent, row, [*trunk[:-1], {**trunk[-1], "content": "another result"}], 3)
        await talk(agent, row, [{"role": "user", "content": "you are a helper"}], 3)
        _, main = await talk(agent, row, trunk, 3)
        summary = [{"role": "user", "content": "summary: nothing yet"}, *main[-2:]]
        response_id, _ = await talk(agent, row, summary, 3)
        return final_response(response_id, [])

    async with world_with(tmp_path, harness) as world:
        [result] = await world.collect(tmp_path)

    assert len(generations(world)) == 14
    assert_exact(result, world)
    rollout = rollout_of(result)
    assert rollout.breaks == 0
    assert sorted(sample.trace for sample in rollout.samples) == ["branch-1", "main", "root-1", "root-2"]


async def test_another_worker_continues_a_conversation(tmp_path: Path) -> None:
    """Workers of a model server share nothing but the files; a call may reach any of them."""

    async def harness(agent: HabitAgent, row: Json) -> Json:
        messages: list[Json] = [USER]
        for _ in range(TURNS):
            worlds[0].model._token_capture.lineage_store._rollouts.clear()
            worlds[0].model._token_capture.lineage_store._tokens.clear()
            response_id, messages = await talk(agent, row, messages, 1)
        return final_response(response_id, [])

    worlds: list[CaptureWorld] = []
    async with world_with(tmp_path, harness) as world:
        worlds.append(world)
        [result] = await world.collect(tmp_path)

    assert_exact(result, world)
    assert len(samples_of(result, on_break="raise")) == 1


class PrefixEngine(Engine):
    """An engine that begins its prompt with `required_prefix_token_ids`, as NeMo RL's does, and with nothing else."""

    obeys = True

    def answer(self, body: Json) -> Json:
        prefix = body.get("required_prefix_token_ids") or []
        assert not any("prompt_token_ids" in message for message in body["messages"])
        after = max((i + 1 for i, message in enumerate(body["messages"]) if message["role"] == "assistant"), default=0)
        if not (prefix and self.obeys):
            return super().answer(body)
        reply = super().answer({**body, "messages": body["messages"][after:]})
        prompt = [*prefix, *self.generations[-1][0]]
        self.generations[-1] = prompt, self.generations[-1][1]
        reply["choices"][0]["message"]["prompt_token_ids"] = prompt
        return reply


@pytest.mark.parametrize("obeys", [True, False])
async def test_a_required_prefix_counts_only_if_the_prompt_begins_with_it(tmp_path: Path, obeys: bool) -> None:
    """The contract's `supply_prefix_token_ids`: an engine may ignore the field, and then the tokens are not proven."""

    async def harness(agent: HabitAgent, row: Json) -> Json:
        messages: list[Json] = [USER]
        for _ in range(4):
            response_id, reply = await agent.chat(row, messages)
            messages += [reply, {"role": "user", "content": "and then?"}]
        return final_response(response_id, [])

    engine = PrefixEngine()
    engine.obeys = obeys
    async with capture_world(block(tmp_path), harness, engine=engine, supply_prefix_token_ids=True) as world:
        [result] = await world.collect(tmp_path)
        snapshot = await world.model._token_capture.token_sink.freeze("0-0")

    assert ["required_prefix_token_ids" in request for request in engine.requests] == [False, True, True, True]
    assert rollout_of(result).trainable is obeys
    if obeys:
        [sample] = samples_of(result, on_break="raise")
        assert [sample.token_ids[span.start : span.end] for span in sample.spans] == [
            own for _, own in engine.generations
        ]
    else:
        assert [(entry.prefix_requested, entry.prefix_supplied) for entry in snapshot.entries[1:]] == [
            (True, False)
        ] * 3
