"""The delivery of captured tokens: one run for each folder, and no records of rollouts that have no result."""

from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientResponseError, web

from nemo_gym.config_types import BaseServerConfig
from nemo_gym.rollouts.lock import OutputInUse
from nemo_gym.rollouts.outcome import Job
from nemo_gym.rollouts.token_delivery import TokenDelivery
from nemo_gym.server_utils import ServerClient
from nemo_gym.token_id_capture.records import TokenEntry
from nemo_gym.token_id_capture.store import TokenCaptureStore
from nemo_gym.training import rollout_of
from nemo_gym.training.sessions import Gym
from nemo_gym.wire.stored_rollout import RolloutKey
from tests.token_id_capture.capture_world import Engine, HabitAgent, Json, capture_world, final_response, output_text

pytestmark = pytest.mark.asyncio

USER = {"role": "user", "content": "what is 2 + 1?"}


def block(tmp_path: Path, **fields: Any) -> Json:
    return {"enabled": True, "all_agents": True, "dir": str(tmp_path / "tokens"), **fields}


def delivery_of(config: Json) -> TokenDelivery:
    delivery = TokenDelivery.from_config(config)
    assert delivery is not None
    return delivery


async def one_turn(agent: HabitAgent, row: Json) -> Json:
    response_id, message = await agent.chat(row, [USER])
    return final_response(response_id, [output_text(message["content"])])


async def test_a_second_run_in_one_capture_folder_is_refused(tmp_path: Path) -> None:
    """Both runs have a rollout 0-0: the tokens of one would be trained with the reward of the other."""
    async with capture_world(block(tmp_path), one_turn) as world:
        async with delivery_of(world.config):
            with pytest.raises(OutputInUse, match=f"{tmp_path}/tokens/.*folder of token records"):
                await world.collect(tmp_path)
            assert not (tmp_path / "out.jsonl").exists()
            assert world.engine.generations == []
            with pytest.raises(OutputInUse):
                TokenDelivery.check(world.config)  # before the servers start
        [result] = await world.collect(tmp_path)

    assert "mask_sample" not in result
    assert list((tmp_path / "tokens").iterdir()) == []


async def test_a_session_holds_its_capture_folder(tmp_path: Path) -> None:
    """A collection that evaluates beside the training must not take or delete the records of the session."""
    config: Json = {"token_id_capture": block(tmp_path)}
    head = BaseServerConfig(host="127.0.0.1", port=31000)
    gym = Gym(ServerClient(head_server_config=head, global_config_dict=config))
    with pytest.raises(OutputInUse, match="folder of token records"):
        delivery_of(config).lock()
    await gym.close()

    delivery = delivery_of(config)
    delivery.lock()
    delivery.unlock()


async def failing(agent: HabitAgent, row: Json) -> Json:
    await agent.chat(row, [USER])
    raise RuntimeError("the agent broke down after a model call")


async def test_a_rollout_that_fails_leaves_no_records(tmp_path: Path) -> None:
    """A run of weeks has failures every day; their records would fill the disk, and no result needs them."""
    row = {"responses_create_params": {"input": "hi"}, "agent_ref": {"name": "agent"}}
    async with capture_world(block(tmp_path), failing) as world:
        await world.collect(tmp_path)
        [failed] = world.helper().run_examples([row])
        with pytest.raises(ClientResponseError):
            await failed

    assert len(world.engine.generations) == 2
    assert list((tmp_path / "tokens").iterdir()) == []


async def test_a_session_forgets_the_rollouts_that_it_delivered(tmp_path: Path) -> None:
    """The set of rollouts with records must not grow with the session."""
    row = {"agent_ref": {"name": "agent"}}
    config: Json = {"token_id_capture": block(tmp_path)}
    delivery = delivery_of(config)
    store = TokenCaptureStore(tmp_path / "tokens")

    async def send(job: Job) -> Json:
        fields: Json = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.1]}
        await store.put(
            TokenEntry(rollout_id=str(job.key), model_call_id="c", parent_resolution="root", response_id="r", **fields)
        )
        return {"response": final_response("r", [output_text("yes")])}

    result = await delivery.wrap(send, stored=False)(Job(RolloutKey(0, 0), row))

    assert "mask_sample" not in result
    assert result["_ng_token_capture"]["generated_tokens_delivered"] == 1
    assert delivery._remains == set()


class SmallEngine(Engine):
    """An engine whose context has space for a number of calls."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.calls = calls

    async def handle(self, request: web.Request) -> web.Response:
        if len(self.generations) == self.calls:
            return web.Response(status=400, text="the maximum context length is 8 tokens")
        return await super().handle(request)


async def until_it_is_full(agent: HabitAgent, row: Json) -> Json:
    """Talk until the context is full, as an agent does that keeps the text of the answers only."""
    items: list[Json] = [USER]
    output: list[Json] = []
    while True:
        response = await agent.respond(row, items)
        if response["incomplete_details"]:
            return {**response, "output": output}
        text = output_text(response["output"][0]["content"][0]["text"])
        output.append(text)
        items += [text, {"role": "user", "content": "more"}]


@pytest.mark.parametrize("calls", [0, 2])
async def test_a_context_that_is_full_is_not_a_missing_call(tmp_path: Path, calls: int) -> None:
    """Long rollouts end this way; as masked ones they would end the run by max_mask_fraction."""
    engine = SmallEngine(calls)
    async with capture_world(block(tmp_path), until_it_is_full, engine) as world:
        [result] = await world.collect(tmp_path)

    assert result["_ng_failure_class"] == "limit"
    capture = result["_ng_token_capture"]
    assert "mask_sample" not in result, capture
    assert capture["n_calls"] == calls
    assert capture["generated_tokens_delivered"] == sum(len(generation) for _, generation in engine.generations)


async def test_a_chat_answer_without_space_is_not_a_missing_call(tmp_path: Path) -> None:
    """Agents that speak Chat get the same answer in another form."""

    async def chats(agent: HabitAgent, row: Json) -> Json:
        response_id, first = await agent.chat(row, [USER])
        await agent.chat(row, [USER, first, USER])
        return final_response(response_id, [output_text(first["content"])])

    async with capture_world(block(tmp_path), chats, SmallEngine(1)) as world:
        [result] = await world.collect(tmp_path)

    assert "mask_sample" not in result, result["_ng_token_capture"]


async def test_the_tokens_of_a_masked_rollout_are_counted_as_left_out(tmp_path: Path) -> None:
    """They are not in the result; counted as delivered, they would be missing in every balance of the run."""

    async def edits(agent: HabitAgent, row: Json) -> Json:
        await agent.chat(row, [USER])
        edited = {"role": "assistant", "content": "something else"}
        response_id, last = await agent.chat(row, [USER, edited, USER])
        return final_response(response_id, [output_text(last["content"])])

    async with capture_world(block(tmp_path), edits) as world:
        [result] = await world.collect(tmp_path)

    capture = result["_ng_token_capture"]
    generated = sum(len(generation) for _, generation in world.engine.generations)
    assert result["mask_sample"]
    assert (capture["generated_tokens_delivered"], capture["delivered_fraction"]) == (0, 0.0)
    assert capture["left_out"] == {"masked": generated}
    assert rollout_of(result).left_out == {"token capture: masked": generated}


async def test_traces_that_cannot_be_built_mark_a_result_with_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A malformed record must not cost the rollout, whether its agent keeps the token fields or not."""

    async def keeps_the_last(agent: HabitAgent, row: Json) -> Json:
        await agent.respond(row, [USER])
        return await agent.respond(row, [{"role": "user", "content": "another"}])

    def raise_error(*_: Any) -> Any:
        raise ValueError("a record is malformed")

    monkeypatch.setattr("nemo_gym.token_id_capture.delivery.build_delivery", raise_error)
    async with capture_world(block(tmp_path), keeps_the_last) as world:
        [result] = await world.collect(tmp_path)

    assert result["reward"] == 1.0
    assert result["mask_sample"]
    assert result["_ng_token_capture"]["mask_reason"] == "build_failed: a record is malformed"
