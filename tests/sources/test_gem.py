"""Games of GEM end as in its own loop; the package seeds globally and needs Python 3.11."""

from typing import Any

import gem
import pytest

from tests.sources.conftest import Evaluation, actions_of, source
from tests.sources.policies import choose

MAX_TURNS = 8
GAMES = [name for name in source("gem").runnable_ids if name.startswith("game:")]
GENERATED = ["rg:chain_sum", "rg:letter_counting", "rg:base_conversion", "rg:spell_backward"]


def play_alone(row: dict[str, Any]) -> tuple[list[str], list[float], bool, bool]:
    """Play a row in the package's loop; return actions, rewards, terminated, truncated."""
    env = gem.make(row["environment"], **row["arguments"])
    observation, _ = env.reset(seed=row["seed"])
    actions: list[str] = []
    rewards: list[float] = []
    terminated = truncated = False
    while len(actions) < MAX_TURNS and not (terminated or truncated):
        actions.append(choose(observation, len(actions)))
        observation, reward, terminated, truncated, _ = env.step(actions[-1])
        rewards.append(float(reward))
    return actions, rewards, bool(terminated), bool(truncated)


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_every_game_ends_as_in_the_package(evaluation: Evaluation) -> None:
    """All sessions run at once, and all draw from generators that the package seeds globally."""
    names = [f"gem:{name}?size=2&max_turns={MAX_TURNS}" for name in [*GAMES, *GENERATED]]
    records = evaluation.run(names, "--concurrency", "56")

    assert len(records) == 2 * len(names) >= 40
    for record in records:
        actions, rewards, terminated, truncated = play_alone(record)
        assert (actions_of(record), record["step_rewards"]) == (actions, rewards), record["environment"]
        assert record["terminated"] == terminated
        assert record["ending"] == ("finished" if terminated else "truncated" if truncated else "stopped")


def test_the_list_of_ids_is_that_of_the_package() -> None:
    """A new release of the package must not leave the list behind."""
    registry = __import__("gem.envs.registration", fromlist=["ENV_REGISTRY"]).ENV_REGISTRY
    assert set(source("gem").ids) == set(registry)
