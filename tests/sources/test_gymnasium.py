"""Episodes of gymnasium are those of the package's loop: same actions, same reward in every step, same end."""

from typing import Any

import gymnasium
import pytest

from resources_servers.gymnasium_envs.texts import observation_text
from tests.sources.conftest import Evaluation, actions_of, source
from tests.sources.policies import choose_number

pytestmark = pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")
NAMES = source("gymnasium").runnable_ids
MAX_TURNS = 30


def play_alone(record: dict[str, Any]) -> tuple[list[float], bool, bool]:
    """Play the actions of a record in gymnasium's loop; return rewards, terminated, truncated."""
    env = gymnasium.make(record["environment"], **record["arguments"])
    env.reset(seed=record["seed"])
    rewards, terminated, truncated = [], False, False
    for action in actions_of(record):
        assert not terminated
        assert not truncated
        _, reward, terminated, truncated, _ = env.step(int(action.strip("[]")))
        rewards.append(float(reward))
    return rewards, bool(terminated), bool(truncated)


def test_every_environment_gives_the_rewards_of_the_package(evaluation: Evaluation) -> None:
    """The rewards of each step train a policy, and rounding or a lost step would not show in a mean."""
    names = [f"gymnasium:{name}?size=5&max_turns={MAX_TURNS}" for name in NAMES]
    records = evaluation.run(names, "--concurrency", "64", GYM_TEST_POLICY="choose_number")

    assert len(records) == 5 * len(NAMES) >= 40
    for record in records:
        rewards, terminated, truncated = play_alone(record)
        assert record["step_rewards"] == rewards
        assert record["reward"] == pytest.approx(sum(rewards))
        assert record["terminated"] == terminated
        assert record["ending"] == ("finished" if terminated else "truncated" if truncated else "stopped")
    assert {"finished", "stopped"} <= {record["ending"] for record in records}


def test_the_policy_sees_what_the_environment_observes(evaluation: Evaluation) -> None:
    """The policy of this test reads the observation, so another one would lead to other actions."""
    records = evaluation.run(["gymnasium:CartPole-v1?size=5&max_turns=20"], GYM_TEST_POLICY="choose_number")
    for record in records:
        env = gymnasium.make("CartPole-v1")
        observation, _ = env.reset(seed=record["seed"])
        prompt = record["responses_create_params"]["input"][-1]["content"]
        text, actions = prompt, []
        assert prompt.endswith(observation_text(env, observation))
        for number in range(20):
            actions.append(choose_number(text, number))
            observation, _, terminated, _, _ = env.step(int(actions[-1].strip("[]")))
            text = observation_text(env, observation)
            if terminated:
                break
        assert actions_of(record) == actions


def test_arguments_of_a_name_reach_the_constructor(evaluation: Evaluation, tmp_path) -> None:
    """Without slipping, the way right-right-down-down-down-right always leads to the goal of the small lake."""
    (tmp_path / "answers.json").write_text('["[2]", "[2]", "[1]", "[1]", "[1]", "[2]"]')
    records = evaluation.run(
        ["gymnasium:FrozenLake-v1?size=2&is_slippery=false"],
        GYM_TEST_POLICY="replies",
        GYM_TEST_ANSWERS=str(tmp_path / "answers.json"),
    )

    assert [(record["reward"], record["terminated"]) for record in records] == [(1.0, True)] * 2


def test_replies_without_an_action_end_the_episode_as_illegal(evaluation: Evaluation, tmp_path) -> None:
    """The environment must not get an action that the model did not choose."""
    (tmp_path / "answers.json").write_text('["[0]", "left", "[9]", "[]"]')
    records = evaluation.run(
        ["gymnasium:Taxi-v4?size=2"], GYM_TEST_POLICY="replies", GYM_TEST_ANSWERS=str(tmp_path / "answers.json")
    )

    assert [(record["ending"], record["reward"]) for record in records] == [("illegal_move", -1.0)] * 2
    assert not any(record["terminated"] for record in records)


def test_the_list_of_ids_is_that_of_the_package() -> None:
    """A new release of the package must not leave the list behind."""
    assert set(source("gymnasium").ids) == set(gymnasium.registry)
