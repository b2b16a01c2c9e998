"""Prove the coin grid: only collected coins earn a reward, at the step that collects them."""

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nemo_gym.authoring.verifier_cases import offline_server
from nemo_gym.authoring.verifier_proof import VerifierProof, verify_reply
from nemo_gym.wire.episode import Signals
from resources_servers.example_coin_grid.app import CoinGridServer, Walk, coin_places, draw_png

ROW = {"responses_create_params": {"input": []}, "seed": 3, "coins": 2}


class TestProof(VerifierProof):
    """Oracle, odd forms, wrong answers, cheats, broken rows and example data, each case in its own session."""

    folder = Path(__file__).parents[1]


def client(**settings: Any) -> TestClient:
    http = TestClient(offline_server(CoinGridServer, **settings).setup_webserver())
    assert http.post("/seed_session", json=ROW).status_code == 200
    return http


def test_the_opening_has_the_task_and_the_tools() -> None:
    """The row has neither."""
    opening = client().post("/seed_session", json=ROW).json()["opening"]

    assert "5 x 5 cells with 2 coins" in opening["messages"][0]["content"]
    assert [entry["name"] for entry in opening["tools"]] == ["look", "move"]
    assert opening["tools"][1]["parameters"]["properties"]["steps"]["exclusiveMaximum"] == 5


def test_a_step_is_rewarded_when_it_collects_a_coin() -> None:
    """Credit belongs to the turn that earned it; the last coin ends the episode."""
    http = client()
    column, row = min(coin_places(3, 2))
    signals = []
    for direction, steps in (("right", column), ("down", row)):
        if steps:
            reply = http.post("/move", json={"direction": direction, "steps": steps})
            signals.append(Signals.parse(reply.headers["x-nemo-gym-episode"]))

    assert sum(signal.reward or 0.0 for signal in signals) == pytest.approx(0.5)
    assert not any(signal.done for signal in signals)
    assert verify_reply(http, ROW, "Done.")["collected"] == 1


def test_the_map_is_also_an_image_if_that_is_configured() -> None:
    """An image observation is a content part beside the text."""
    text, image = client(images=True).post("/look", json={}).json()

    assert text["text"].count("o") == 2
    assert image["image_url"].startswith("data:image/png;base64,iVBOR")
    assert draw_png(Walk(coin_places(3, 2)).map_rows()).endswith(b"IEND\xaeB`\x82")


def test_a_lost_session_is_an_error_and_no_zero() -> None:
    """A server that lost the session must not score a right rollout as wrong."""
    with pytest.raises(AssertionError, match="no walk"):
        verify_reply(TestClient(offline_server(CoinGridServer).setup_webserver()), ROW, "Done.")
