"""Token capture through agents of many habits, with a real model server and a mock engine."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientResponseError

from nemo_gym.training import rollout_of, samples_of
from tests.token_id_capture.capture_world import HabitAgent, Json, capture_world, final_response, output_text

pytestmark = pytest.mark.asyncio

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
USER = {"role": "user", "content": "what is 2 + 1?"}


def block(tmp_path: Path, **fields: Any) -> Json:
    return {"enabled": True, "all_agents": True, "dir": str(tmp_path / "tokens"), **fields}


def assert_one_sample_with(result: Json, generations: list[list[int]]) -> None:
    """The tokens to train on are exactly those that the engine generated, in one contiguous sample."""
    [sample] = samples_of(result, on_break="raise")
    spans = [sample.token_ids[span.start : span.end] for span in sample.spans]
    assert spans == generations
    assert sum(sample.loss_mask) == sum(map(len, generations))


async def tool_loop(agent: HabitAgent, row: Json) -> Json:
    """Two turns with a tool and a third one, as a chat SDK does it: token fields are dropped."""
    messages: list[Json] = [{"role": "system", "content": "be brief"}, USER]
    output: list[Json] = []
    for turn in range(3):
        response_id, message = await agent.chat(row, messages, tools=TOOLS)
        messages.append(message)
        for call in message.get("tool_calls", ()):
            function = call["function"]
            output.append({"type": "function_call", "call_id": call["id"], **function})
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "3"})
            output.append({"type": "function_call_output", "call_id": call["id"], "output": "3"})
        if message.get("content"):
            output.append(output_text(message["content"]))
            if turn < 2:
                messages.append({"role": "user", "content": "sure?"})
    return final_response(response_id, output)


@pytest.mark.parametrize("delta", [False, True])
async def test_an_agent_that_drops_token_fields_gives_one_contiguous_sample(tmp_path: Path, delta: bool) -> None:
    """Chat SDKs and litellm drop unknown fields; without the memory every boundary would be tokenized again."""
    async with capture_world(block(tmp_path, delta_records=delta), tool_loop) as world:
        [result] = await world.collect(tmp_path)

    assert "mask_sample" not in result, result["_ng_token_capture"]
    assert_one_sample_with(result, [generation for _, generation in world.engine.generations])
    types = [item["type"] for item in result["response"]["output"]]
    assert types == ["function_call", "function_call_output", "message", "function_call", "function_call_output"]
    assert result["_ng_token_capture"]["delivered_fraction"] == 1.0
    assert rollout_of(result).trainable
    assert not list((tmp_path / "tokens").iterdir()), "the records are deleted when the result is stored"


async def test_an_agent_that_keeps_token_fields_is_served_unchanged(tmp_path: Path) -> None:
    """The ids of such an agent are exact already; the capture must not change them."""

    async def keep(agent: HabitAgent, row: Json) -> Json:
        items: list[Json] = [dict(USER)]
        first = await agent.respond(row, items)
        second = await agent.respond(row, [*items, *first["output"], {"role": "user", "content": "sure?"}])
        return {**second, "output": [*first["output"], *second["output"]]}

    async with capture_world(block(tmp_path), keep) as world:
        [result] = await world.collect(tmp_path)

    assert_one_sample_with(result, [generation for _, generation in world.engine.generations])
    assert "mask_sample" not in result


async def test_a_sub_agent_is_a_trace_of_the_rollout(tmp_path: Path) -> None:
    """A sub-agent has a separate conversation; its tokens are trained on as well, and once."""

    async def with_sub_agent(agent: HabitAgent, row: Json) -> Json:
        messages: list[Json] = [USER]
        _, first = await agent.chat(row, messages)
        sub: list[Json] = [{"role": "user", "content": "you are a helper"}]
        _, reply = await agent.chat(row, sub)
        await agent.chat(row, [*sub, reply, {"role": "user", "content": "more"}])
        response_id, last = await agent.chat(row, [*messages, first, {"role": "user", "content": reply["content"]}])
        return final_response(response_id, [output_text(last["content"])])

    async with capture_world(block(tmp_path), with_sub_agent) as world:
        [result] = await world.collect(tmp_path)

    generations = [generation for _, generation in world.engine.generations]
    main, sub = samples_of(result, on_break="raise")
    assert [main.token_ids[span.start : span.end] for span in main.spans] == [generations[0], generations[3]]
    assert [sub.token_ids[span.start : span.end] for span in sub.spans] == [generations[1], generations[2]]
    assert sub.trace == "root-1"
    assert rollout_of(result).trainable


async def test_a_branch_shares_its_prefix_and_no_generated_token(tmp_path: Path) -> None:
    """A token in two samples would be trained on twice."""

    async def branch(agent: HabitAgent, row: Json) -> Json:
        _, first = await agent.chat(row, [USER])
        await agent.chat(row, [USER, first, {"role": "user", "content": "one way"}])
        response_id, last = await agent.chat(row, [USER, first, {"role": "user", "content": "another way"}])
        return final_response(response_id, [output_text(last["content"])])

    async with capture_world(block(tmp_path), branch) as world:
        [result] = await world.collect(tmp_path)

    generations = [generation for _, generation in world.engine.generations]
    main, other = samples_of(result, on_break="raise")
    assert [main.token_ids[span.start : span.end] for span in main.spans] == [generations[0], generations[2]]
    assert [other.token_ids[span.start : span.end] for span in other.spans] == [generations[1]]
    assert other.token_ids[: other.prompt_len] == world.engine.generations[1][0]
    assert other.trace == "branch-1"


@pytest.mark.parametrize("keeps_a_reply", [False, True])
async def test_a_compacted_context_is_a_separate_trace(tmp_path: Path, keeps_a_reply: bool) -> None:
    """Compaction breaks the token chain on purpose; both contexts are exact, so the rollout stays trainable."""

    async def compact(agent: HabitAgent, row: Json) -> Json:
        messages: list[Json] = [USER]
        for _ in range(2):
            _, reply = await agent.chat(row, messages)
            messages += [reply, {"role": "user", "content": "go on"}]
        short = [USER, *messages[-2:]] if keeps_a_reply else [{"role": "user", "content": "summary: nothing yet"}]
        response_id, last = await agent.chat(row, short)
        return final_response(response_id, [output_text(last["content"])])

    async with capture_world(block(tmp_path), compact) as world:
        [result] = await world.collect(tmp_path)

    generations = [generation for _, generation in world.engine.generations]
    main, before = samples_of(result, on_break="raise")
    assert [main.token_ids[span.start : span.end] for span in main.spans] == [generations[2]]
    assert [before.token_ids[span.start : span.end] for span in before.spans] == generations[:2]
    assert rollout_of(result).trainable


async def test_a_task_with_earlier_turns_is_not_masked(tmp_path: Path) -> None:
    """Rows may contain assistant messages; they are part of the prompt, not a missing call."""

    async def continue_task(agent: HabitAgent, row: Json) -> Json:
        messages: list[Json] = [USER, {"role": "assistant", "content": "I think 4"}, {"role": "user", "content": "no"}]
        _, reply = await agent.chat(row, messages)
        response_id, last = await agent.chat(row, [*messages, reply, {"role": "user", "content": "sure?"}])
        return final_response(response_id, [output_text(reply["content"]), output_text(last["content"])])

    async with capture_world(block(tmp_path), continue_task) as world:
        [result] = await world.collect(tmp_path)

    assert_one_sample_with(result, [generation for _, generation in world.engine.generations])


async def test_a_retry_that_was_not_used_is_counted_and_left_out(tmp_path: Path) -> None:
    """The reward belongs to the answer that the agent used."""

    async def retry(agent: HabitAgent, row: Json) -> Json:
        await agent.chat(row, [USER])
        response_id, used = await agent.chat(row, [USER])
        return final_response(response_id, [output_text(used["content"])])

    async with capture_world(block(tmp_path), retry) as world:
        [result] = await world.collect(tmp_path)

    assert_one_sample_with(result, [world.engine.generations[1][1]])
    assert result["_ng_token_capture"]["left_out"] == {"retry": len(world.engine.generations[0][1])}


async def test_a_call_that_failed_at_the_engine_leaves_nothing_behind(tmp_path: Path) -> None:
    """An engine error is part of life; the next call of the agent gives the tokens."""

    async def insist(agent: HabitAgent, row: Json) -> Json:
        with contextlib.suppress(ClientResponseError):
            await agent.chat(row, [USER])
        response_id, used = await agent.chat(row, [USER])
        return final_response(response_id, [output_text(used["content"])])

    async with capture_world(block(tmp_path), insist) as world:
        world.engine.failures = [400]
        [result] = await world.collect(tmp_path)

    assert_one_sample_with(result, [world.engine.generations[0][1]])


async def test_an_edited_reply_masks_the_rollout_with_the_reason(tmp_path: Path) -> None:
    """The model saw text that it never generated; which tokens belong to it cannot be proven."""

    async def edit(agent: HabitAgent, row: Json) -> Json:
        _, first = await agent.chat(row, [USER])
        edited = {**first, "content": "something else"}
        response_id, last = await agent.chat(row, [USER, edited, {"role": "user", "content": "sure?"}])
        return final_response(response_id, [output_text(last["content"])])

    async with capture_world(block(tmp_path), edit) as world:
        [result] = await world.collect(tmp_path)

    assert result["mask_sample"] is True
    assert result["_ng_token_capture"]["mask_reason"].startswith("terminal_broken")
    assert samples_of(result) == []
    assert not rollout_of(result).trainable
    assert "terminal_broken" in str(rollout_of(result).why_not)
    assert list((tmp_path / "tokens").glob("*.tokens.jsonl")), "the records of a masked rollout are kept"


async def test_a_call_outside_the_capture_masks_the_rollout(tmp_path: Path) -> None:
    """Without any captured call there is nothing to train on, and the result must say so."""

    async def outside(agent: HabitAgent, row: Json) -> Json:
        reply = await agent.server_client.post("policy", "/ng-rollout/other/v1/responses", json={"input": [USER]})
        response = await reply.json()
        items = [{key: item[key] for key in ("type", "id", "role", "status", "content")} for item in response["output"]]
        return {**response, "output": items}

    async with capture_world(block(tmp_path), outside) as world:
        [result] = await world.collect(tmp_path)

    assert result["mask_sample"] is True
    assert result["_ng_token_capture"]["mask_reason"].startswith("no_records")


async def test_a_model_without_token_ids_masks_the_rollout_and_names_the_server(tmp_path: Path) -> None:
    """Capture that is on and captures nothing must not look like success."""
    async with capture_world(block(tmp_path), tool_loop, return_token_id_information=False) as world:
        world.engine.with_tokens = False
        [result] = await world.collect(tmp_path)

    reason = result["_ng_token_capture"]["mask_reason"]
    assert result["mask_sample"] is True
    assert "returned no token ids" in reason and "policy" in reason


async def test_an_undeclared_request_under_the_prefix_masks_the_rollout(tmp_path: Path) -> None:
    """A route that the capture does not know could have generated tokens."""

    async def peek(agent: HabitAgent, row: Json) -> Json:
        response_id, reply = await agent.chat(row, [USER])
        await agent.server_client.get("policy", agent.url_path_for_run("/openapi.json", row))
        await agent.server_client.get("policy", agent.url_path_for_run("/no-such-route", row))
        return final_response(response_id, [output_text(reply["content"])])

    async with capture_world(block(tmp_path), peek) as world:
        [result] = await world.collect(tmp_path)

    assert "GET /openapi.json is not captured" in result["_ng_token_capture"]["mask_reason"]


async def test_run_examples_delivers_tokens_for_rows_without_ids(tmp_path: Path) -> None:
    """Trainers send rows through `run_examples`, without task indices and more than once."""
    row = {"responses_create_params": {"input": "hi"}, "agent_ref": {"name": "agent"}, "_rowidx": 0}
    async with capture_world(block(tmp_path), tool_loop) as world:
        pairs = [await awaitable for awaitable in world.helper().run_examples([row, row])]

    assert [sent is row for sent, _ in pairs] == [True, True]
    for _, result in pairs:
        [sample] = samples_of(result, on_break="raise")
        assert len(sample.spans) == 3
    assert not list((tmp_path / "tokens").iterdir())
