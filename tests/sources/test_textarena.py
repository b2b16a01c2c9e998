"""Games of TextArena end as in its own loop: same actions, same rewards, same reason."""

import contextlib
import random
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import textarena

from nemo_gym.adapters.opponents import scripted_action
from nemo_gym.config.environment_sources import parse_name
from tests.sources.conftest import ROOT, Evaluation, actions_of, family, source
from tests.sources.policies import choose

MAX_TURNS, STEP_SECONDS = 12, 15
RUNNABLE = source("textarena").runnable_ids
GAMES = sorted({family(name): name for name in reversed(RUNNABLE) if not name.endswith(("-raw", "-train"))}.values())
RAW = ["Nim-v0-raw", "ConnectFour-v0-raw", "KuhnPoker-v0-raw", "TicTacToe-v0-raw"]


class Unplayable(Exception):
    """The package raised an error, did not return, or gave the policy no turn."""


def play_alone(row: dict[str, Any]) -> dict[str, Any]:
    """Play a row in the package's own loop.

    Raises:
        Unplayable: the game cannot be played like this.
    """
    try:
        with contextlib.redirect_stdout(None), limited_time():
            return loop_of_the_package(row)
    except Exception as error:
        raise Unplayable(f"{type(error).__name__}: {error}") from error


@contextlib.contextmanager
def limited_time() -> Iterator[None]:
    """Raise TimeoutError in code that does not return."""

    def stop(*_: object) -> None:
        raise TimeoutError("did not return")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(STEP_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def loop_of_the_package(row: dict[str, Any]) -> dict[str, Any]:
    """Play a row in the loop that the package documents, with the same policy and opponent."""
    env = textarena.make(row["environment"])
    env.reset(num_players=row["num_players"], seed=row["seed"])
    chance, seen, counts = random.Random(row["seed"]), {}, {}
    actions, others, waiting = [], [], 0
    while True:
        player, observation = env.get_observation()
        if not isinstance(observation, str):
            observation = "\n".join(message for _, message, _ in observation)
        new = observation.removeprefix(seen.get(player, "")).lstrip("\n") if seen.get(player) else observation
        seen[player] = observation
        if player == row["player"]:
            waiting = 0
            if len(actions) == MAX_TURNS:
                return {"actions": actions, "rewards": None}
            actions.append(choose(new, len(actions)))
            done, _ = env.step(action=actions[-1])
        else:
            waiting += 1
            if waiting >= 1000:
                raise RuntimeError("the policy had no turn")
            others.append(scripted_action("random_move", new, chance, counts.get(player, 0)))
            counts[player] = counts.get(player, 0) + 1
            done, _ = env.step(action=others[-1])
        if done:
            break
    rewards, info = env.close()
    return {
        "actions": actions,
        "others": others,
        "reward": (rewards or {}).get(row["player"], 0.0),
        "rewards": {str(number): float(reward) for number, reward in (rewards or {}).items()},
        "reason": str(info.get(row["player"], {}).get("reason") or "The game is over."),
    }


def summary(record: dict[str, Any]) -> dict[str, Any]:
    return {
        "actions": actions_of(record),
        "others": [turn["action"] for turn in record["other_turns"]],
        "reward": record["reward"],
        "rewards": record["rewards"],
        "reason": record["info"].get("reason") if record["ending"] != "stopped" else None,
    }


def assert_same_games(evaluation: Evaluation, names: list[str], size: int) -> list[dict[str, Any]]:
    """Compare every game with the package's own loop, also those that the package cannot play; return the scored."""
    whole_names = [f"textarena:{name}?size={size}&max_turns={MAX_TURNS}" for name in names]
    instance = parse_name(whole_names[0], [ROOT]).instance
    limit = f"++{instance}.resources_servers.textarena.step_timeout_seconds={STEP_SECONDS}"
    words = ("--concurrency", "64", "--max-attempts", "1")
    records = evaluation.run(whole_names, *words, limit, may_fail=True)
    assert len(records) + len(evaluation.failed) == size * len(names)
    for record in records:
        expected = play_alone(record)
        if expected["rewards"] is None:
            assert (record["ending"], record["reward"]) == ("stopped", 0.0), record["environment"]
            assert actions_of(record) == expected["actions"], record["environment"]
        elif expected["actions"]:
            assert summary(record) == expected, record["environment"]
    for failure in evaluation.failed:
        with pytest.raises(Unplayable) as error:
            play_alone(failure)
        kind = "timeout" if "TimeoutError" in str(error.value) else "tool_error"
        assert failure["_ng_failure"]["kind"] == kind, (failure["environment"], failure["_ng_failure"], error.value)
        assert failure["_ng_failure"]["phase"] == "environment"
    return records


def test_every_game_ends_as_in_the_package_with_64_sessions_at_once(evaluation: Evaluation) -> None:
    """The games seed globally and differ in number and order of players: the adapter must get all of that right."""
    records = assert_same_games(evaluation, GAMES, 2)

    assert len(GAMES) > 60
    assert {record["player"] for record in records} >= {0, 1}
    assert {"finished", "illegal_move", "stopped"} <= {record["ending"] for record in records}


def test_ids_without_wrappers_show_new_messages_only(evaluation: Evaluation) -> None:
    """`-raw` ids give a list of messages, which must read like the text of the others."""
    assert_same_games(evaluation, RAW, 5)


def test_the_list_of_ids_is_that_of_the_package() -> None:
    """A new release of the package must not leave the list behind, which `gym list` and errors show."""
    assert set(source("textarena").ids) == set(textarena.envs.registration.ENV_REGISTRY)


@pytest.mark.parametrize("name", ["TicTacToe-v0", "GuessTheNumber-v0"])
def test_two_runs_of_one_row_are_one_game(evaluation: Evaluation, name: str) -> None:
    """The rollouts of a group must begin in the same state."""
    records = evaluation.run([f"textarena:{name}?size=3"], "--num-repeats", "3")
    games = {(record["seed"], str(record["responses_create_params"]["input"])) for record in records}

    assert len(games) == len({record["seed"] for record in records}) == 3
