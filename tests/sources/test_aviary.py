"""Environments of Aviary play as in its own loop, with the tools they offer when the episode begins."""

import asyncio
import importlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
from aviary.core import Environment, Message, ToolCall, ToolRequestMessage

from tests.sources.conftest import Evaluation, source

VAULTS = "tests.sources.peer_environments:Vaults"


def policy_file(folder: Path, *replies: Any) -> dict[str, str]:
    """Return the variables that make the policy give these replies in turn."""
    path = folder / "answers.json"
    path.write_text(json.dumps(replies))
    return {"GYM_TEST_POLICY": "replies", "GYM_TEST_ANSWERS": str(path)}


def tool(name: str, **arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "arguments": arguments}]}


async def play_alone(env: Environment, replies: list[Any]) -> tuple[list[float], bool, bool, list[str]]:
    """Play replies in the loop that the package documents; return rewards, done, truncated and outputs of tools."""
    await env.reset()
    rewards: list[float] = []
    outputs: list[str] = []
    done = truncated = False
    for number, reply in enumerate(replies):
        calls = reply.get("tool_calls", []) if isinstance(reply, dict) else []
        action: Message = Message(role="assistant", content=reply if isinstance(reply, str) else "")
        if calls:
            action = ToolRequestMessage(
                tool_calls=[
                    ToolCall(id=str(number), function={"name": one["name"], "arguments": one["arguments"]})
                    for one in calls
                ]
            )
        messages, reward, done, truncated = await env.step(action)
        outputs += [message.content for message in messages if message.role == "tool"]
        rewards.append(float(reward))
        if done or truncated:
            break
    await env.close()
    return rewards, done, truncated, outputs


def tool_outputs(record: dict[str, Any]) -> list[str]:
    return [item["output"] for item in record["response"]["output"] if item["type"] == "function_call_output"]


@pytest.mark.parametrize(
    "replies",
    [
        ["no tool", tool("turn", digits=1), tool("turn", digits=1005)],
        [tool("turn", digits=1), tool("turn", digits=2), tool("turn", digits=3)],
        [tool("burn", digits=1), tool("turn", digits=1007)],
    ],
    ids=["right at last", "out of tries", "unknown tool"],
)
def test_the_tasks_of_a_dataset_give_the_rewards_of_the_package(evaluation: Evaluation, tmp_path, replies) -> None:
    """A dataset of a user is named as module:Name; each task is one row, and its tools are known at reset only."""
    records = evaluation.run([f"aviary:{VAULTS}?size=40"], "--concurrency", "40", **policy_file(tmp_path, *replies))
    module, _, name = VAULTS.partition(":")
    dataset = getattr(importlib.import_module(module), name)()

    assert [record["index"] for record in records] == list(range(40))
    for record in records:
        env = dataset.get_new_env_by_idx(record["index"])
        rewards, done, truncated, outputs = asyncio.run(play_alone(env, replies * 7))
        assert record["step_rewards"] == rewards[: len(record["step_rewards"])]
        if done or truncated:
            assert record["reward"] == sum(rewards)
            assert (record["terminated"], record["truncated"]) == (done, not done)
        assert tool_outputs(record) == outputs[: len(tool_outputs(record))]
        assert [one["name"] for one in record["responses_create_params"]["tools"]] == ["turn"]


def test_the_dummy_environment_draws_the_numbers_of_its_seed(evaluation: Evaluation, tmp_path) -> None:
    """It draws from the global generator, so each session needs its own process and its own seed."""
    replies = [tool("get_random_int"), tool("get_random_int"), tool("print_story", story="once")]
    records = evaluation.run(["aviary:dummy?size=24"], "--concurrency", "24", **policy_file(tmp_path, *replies))

    assert len(records) == 24
    for record in records:
        random.seed(record["seed"])
        rewards, done, _, outputs = asyncio.run(play_alone(Environment.from_name("dummy"), replies))
        assert (record["step_rewards"], record["terminated"]) == (rewards, done) == ([0.0, 0.0, 1.0], True)
        assert tool_outputs(record) == outputs


def test_the_calculator_of_gsm8k_grades_a_submitted_answer(evaluation: Evaluation, tmp_path) -> None:
    """Arguments in a name reach the constructor, so one problem needs no dataset."""
    replies = [tool("calculator", expr="6*7"), tool("submit_answer", answer="42")]
    name = "aviary:calculator?size=2&problem_id=p1&problem=6 times 7&answer=42"
    records = evaluation.run([name], **policy_file(tmp_path, *replies))
    env = Environment.from_name("calculator", problem_id="p1", problem="6 times 7", answer=42)
    rewards, done, _, outputs = asyncio.run(play_alone(env, replies))

    assert [(record["step_rewards"], record["terminated"]) for record in records] == [(rewards, done)] * 2
    assert tool_outputs(records[0]) == outputs
    assert records[0]["reward"] == 1.0


def test_arguments_that_are_no_object_are_an_output_that_the_model_reads(evaluation: Evaluation, tmp_path) -> None:
    """The package cannot read such a call; the episode must go on, as after any other mistake of the model."""
    broken = {"tool_calls": [{"name": "turn", "arguments": "{not json"}]}
    records = evaluation.run([f"aviary:{VAULTS}?size=1"], **policy_file(tmp_path, broken, tool("turn", digits=1000)))

    assert records[0]["reward"] == 1.0
    assert "not a JSON object" in tool_outputs(records[0])[0]


def test_the_list_of_ids_is_that_of_the_package() -> None:
    """A new release of the package must not leave the list behind."""
    env = importlib.import_module("aviary.env")
    assert set(source("aviary").ids) == {*env.ENV_REGISTRY, *env.TASK_DATASET_REGISTRY}
