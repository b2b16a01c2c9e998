"""Tasks of SkyRL-gym give the rewards of the package's loop."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import skyrl_gym
from omegaconf import DictConfig

from tests.sources.conftest import Evaluation, source


def write_tasks(path: Path, count: int = 24) -> str:
    """Write tasks in the format of the package's datasets; every third answer is 42."""
    tasks = [
        {
            "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Task {number}?"}],
            "reward_spec": {"method": "rule", "ground_truth": "42" if number % 3 == 0 else str(number)},
            "reward_model": {"ground_truth": "42" if number % 3 == 0 else str(number)},
            "extra_info": {"max_turns": 2 + number % 3},
        }
        for number in range(count)
    ]
    path.write_text("".join(json.dumps(task) + "\n" for task in tasks))
    return str(path)


def play_alone(record: dict[str, Any], replies: list[str]) -> tuple[list[float], bool, list[str]]:
    """Play replies in the package's loop; return rewards, done and observations."""
    env = skyrl_gym.make(record["environment"], env_config=DictConfig({}), extras=record["extras"])
    env.init(record["prompt"])
    rewards, done, observations = [], False, []
    for reply in replies:
        output = env.step(reply)
        rewards.append(float(output["reward"]))
        done = bool(output["done"])
        observations += [message["content"] for message in output["observations"]]
        if done:
            break
    return rewards, done, observations


@pytest.mark.parametrize(
    ("name", "replies"),
    [
        ("gsm8k", ["So it is #### 42"]),
        ("gsm8k_multi_turn", ["hm", "#### 7", "#### 42", "#### 42"]),
        ("aime", ["The final answer is \\boxed{42}. Answer: 42"]),
    ],
)
def test_rewards_and_observations_are_those_of_the_package(evaluation: Evaluation, tmp_path, name, replies) -> None:
    """The rewards of each turn differ from task to task: format, right answer, last turn."""
    (tmp_path / "answers.json").write_text(json.dumps(replies))
    data = write_tasks(tmp_path / "tasks.jsonl")
    records = evaluation.run(
        [f"skyrl_gym:{name}?size=24&data={data}"],
        GYM_TEST_POLICY="replies",
        GYM_TEST_ANSWERS=str(tmp_path / "answers.json"),
    )

    assert len(records) == 24
    for record in records:
        rewards, done, observations = play_alone(record, replies)
        shown = [item["content"] for item in record["response"]["output"] if item.get("role") == "user"]
        assert (record["step_rewards"], record["terminated"], shown) == (rewards, done, observations)
        assert record["responses_create_params"]["input"][0]["content"] == "Be brief."
    assert len({record["reward"] for record in records}) > 1


def test_the_list_of_ids_is_that_of_the_package() -> None:
    """A new release of the package must not leave the list behind."""
    assert set(source("skyrl_gym").ids) == set(importlib.import_module("skyrl_gym.envs.registration").registry)
