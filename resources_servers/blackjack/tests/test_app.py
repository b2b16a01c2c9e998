"""Prove the verifier of blackjack: only proper action tags move the game, and every outcome pays as promised."""

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nemo_gym.authoring.verifier_cases import offline_server
from nemo_gym.authoring.verifier_proof import VerifierProof, offline_client, verify_reply
from resources_servers.blackjack.app import BlackjackServer, Game, hand_value
from resources_servers.blackjack.audit import episode


class TestProof(VerifierProof):
    """Oracle, odd forms, wrong answers, cheats, broken rows, example data and fixture cases."""

    folder = Path(__file__).parents[1]
    reward_range = (-1.0, 1.0)


@pytest.fixture(scope="module")
def http() -> TestClient:
    return offline_client(BlackjackServer)


def row(seed: int) -> dict[str, Any]:
    return {"responses_create_params": {"input": []}, "seed": seed}


def test_a_row_without_a_seed_plays_the_hand_of_its_task(http: TestClient) -> None:
    """Existing rows have no seed. The verifier deals again, so it must deal the hand that was played."""
    without = {"responses_create_params": {"input": []}, "_ng_task_index": 3, "_ng_rollout_index": 1}

    opening = http.post("/reset", json=without)

    assert opening.status_code == 200, opening.text
    assert Game.deal(3).table in opening.json()["observation"]
    assert verify_reply(http, without, episode(["stand"]))["reward"] == play(http, 3, "stand")["reward"]


def play(http: TestClient, seed: int, *actions: str) -> dict[str, Any]:
    return verify_reply(http, row(seed), episode(list(actions)))


@pytest.mark.parametrize(
    ("cards", "expected"),
    [
        (["A♠", "K♥"], 21),
        (["A♠", "A♥"], 12),
        (["A♠", "9♥", "A♦"], 21),
        (["A♠", "K♥", "5♦"], 16),
        (["10♠", "J♥", "2♦"], 22),
        (["2♠", "3♥"], 5),
    ],
)
def test_the_value_of_a_hand(cards: list[str], expected: int) -> None:
    """An ace is 11 as long as that is not too much."""
    assert hand_value(cards) == expected


def test_every_outcome_is_possible_and_paid_as_promised(http: TestClient) -> None:
    """+1, 0 and -1 are the rewards that trainers see."""
    verdicts = [play(http, seed, "stand") for seed in range(40)]

    assert {verdict["reward"] for verdict in verdicts} == {1.0, 0.0, -1.0}
    for verdict in verdicts:
        player, dealer = verdict["info"]["player"], verdict["info"]["dealer"]
        assert dealer >= 17
        assert (verdict["reward"] == 1.0) == (dealer > 21 or player > dealer)


def test_one_card_too_many_loses_at_once(http: TestClient) -> None:
    """The dealer's cards do not matter then."""
    bust = play(http, 1, *["hit"] * 15)

    assert (bust["reward"], bust["terminated"]) == (-1.0, True)
    assert bust["info"]["player"] > 21
    assert bust["steps"] < 15


@pytest.mark.parametrize(
    "reply", ["", "I have no idea.", '{"action": "stand", "reward": 1.0}', "<action>fold</action>"]
)
def test_a_reply_without_a_legal_action_loses_every_hand(http: TestClient, reply: str) -> None:
    """Standing wins more than half of the hands, so silence must not stand."""
    assert {verify_reply(http, row(seed), reply)["reward"] for seed in range(20)} == {-1.0}


def test_a_reply_without_a_tag_can_be_configured_to_stand() -> None:
    """Datasets written for that rule stay usable."""
    http = offline_client(BlackjackServer, missing_action="stand")

    for seed in range(20):
        assert verify_reply(http, row(seed), "I have no idea.")["reward"] == play(http, seed, "stand")["reward"]


def test_the_dealer_s_second_card_is_hidden(http: TestClient) -> None:
    """Otherwise the player would have nothing to decide."""
    observation = http.post("/reset", json=row(7)).json()

    game = Game.deal(7)
    assert game.dealer[0] in observation["observation"]
    assert game.dealer[1] not in json.dumps(observation, ensure_ascii=False)


def test_metrics_separate_wins_ties_and_losses() -> None:
    """A mean of zero can be all ties or half wins."""
    tasks = [[{"reward": 1.0}, {"reward": -1.0}], [{"reward": 0.0}, {"reward": 1.0}]]

    assert offline_server(BlackjackServer).compute_metrics(tasks) == {"won": 0.5, "tied": 0.25, "lost": 0.25}
