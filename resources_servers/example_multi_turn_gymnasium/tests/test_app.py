"""Prove the multi-turn example: the last reply decides, and the row asks the follow-ups."""

from pathlib import Path

import pytest

from nemo_gym.authoring.model_replies import text_response
from nemo_gym.authoring.verifier_proof import VerifierProof, offline_client
from resources_servers.example_multi_turn_gymnasium.app import MultiTurnServer, contains_answer
from resources_servers.example_multi_turn_gymnasium.generate import rows


class TestProof(VerifierProof):
    """Oracle, odd forms, wrong answers, cheats, broken rows, example data and fixture cases."""

    folder = Path(__file__).parents[1]


def test_the_follow_ups_are_asked_one_after_the_other() -> None:
    """The row decides the conversation, not the model."""
    http, row = offline_client(MultiTurnServer), rows(1, seed=1)[0]
    body = {**row, "response": text_response("Noted.")}
    http.post("/reset", json=row)
    steps = [http.post("/step", json=body).json() for _ in [*row["follow_ups"], "end"]]

    assert [step["observation"] for step in steps] == [*row["follow_ups"], None]
    assert [step["terminated"] for step in steps] == [*(False for _ in row["follow_ups"]), True]


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("the capital is PARIS.", True),
        ("Parisian", False),
        ("Ｐａｒｉｓ", True),
        ("par is", False),
        ("", False),
    ],
)
def test_a_substring_is_whole_words(text: str, right: bool) -> None:
    """A part of another word is not the answer."""
    assert contains_answer(text, "Paris", None) is right
