"""The oracle scores full in many forms; null and cheats score nothing."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from nemo_gym.environment.proof import VerifierProof, client_of
from nemo_gym.environment.verifier_fixture import said
from resources_servers.example_multi_turn_gymnasium import audit
from resources_servers.example_multi_turn_gymnasium.app import VERIFIER_FIXTURE, MultiTurnServer, says
from resources_servers.example_multi_turn_gymnasium.generate import rows

ROWS = rows(20, seed=1)


class TestProof(VerifierProof):
    """The oracle, odd forms, close answers, cheats and broken rows."""

    audit = audit
    server = MultiTurnServer
    fixture = VERIFIER_FIXTURE
    generated = ROWS
    examples = rows(5, seed=0)
    data = Path(__file__).parent.parent / "data"


@pytest.fixture(scope="module")
def http() -> TestClient:
    return client_of(MultiTurnServer)


def test_the_follow_ups_are_asked_one_after_the_other(http: TestClient) -> None:
    """The conversation is the row's, not the model's."""
    row = ROWS[0]
    http.post("/reset", json=row)
    asked = [http.post("/step", json={**row, "response": said("Noted.")}).json() for _ in [*row["follow_ups"], "end"]]

    assert [step["observation"] for step in asked] == [*row["follow_ups"], None]
    assert [step["terminated"] for step in asked] == [*(False for _ in row["follow_ups"]), True]


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
def test_a_substring_is_words_of_its_own(text: str, right: bool) -> None:
    """Part of another word is another word."""
    assert says(text, "Paris", None) is right
