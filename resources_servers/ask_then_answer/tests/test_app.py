"""Prove ask_then_answer: only the digit of the session earns the reward, and only the tool can tell it."""

from pathlib import Path

from fastapi import FastAPI
from fastapi.testclient import TestClient

from nemo_gym.authoring.verifier_cases import offline_server
from nemo_gym.authoring.verifier_proof import VerifierProof, verify_reply
from nemo_gym.keys import CLOSE_PATH
from resources_servers.ask_then_answer.app import AskThenAnswerServer, only_digit
from resources_servers.ask_then_answer.generate import row, rows


class TestProof(VerifierProof):
    """Oracle, odd forms, wrong answers, cheats, broken rows and example data, each case in its own session."""

    folder = Path(__file__).parents[1]


def app() -> FastAPI:
    return offline_server(AskThenAnswerServer).setup_webserver()


def test_the_tool_returns_the_digit_of_its_own_session() -> None:
    """A hundred rollouts with different digits use one server at once."""
    server = app()
    ada, bob = TestClient(server), TestClient(server)
    ada.post("/seed_session", json={"digit": 3})
    bob.post("/seed_session", json={"digit": 8})

    assert ada.post("/ask", json={}).json() == {"digit": 3}
    assert bob.post("/ask", json={}).json() == {"digit": 8}


def test_a_verdict_ends_the_session() -> None:
    """Memory is bounded by the rollouts in flight, and a lost session must not look like a digit."""
    http = TestClient(app())
    http.post("/seed_session", json={"digit": 3})
    verdict = verify_reply(http, row(3), "3")

    assert (verdict["reward"], verdict["asked"], verdict["extracted_answer"]) == (0.0, False, 3)
    assert http.post("/ask", json={}).status_code == 409


def test_a_rollout_that_ends_without_a_verdict_leaves_nothing_behind() -> None:
    """Cancelled rollouts would otherwise fill the memory of a long training run."""
    server = offline_server(AskThenAnswerServer)
    with TestClient(server.setup_webserver()) as http:
        http.post("/seed_session", json={"digit": 3})
        assert list(server._digits.values()) == [3]
        assert http.post(CLOSE_PATH).status_code == 200

    assert server._digits == {}  # the shutdown waits for hooks that still run


def test_every_ten_rows_have_each_digit_once() -> None:
    """A step over ten rows rewards no digit more than another, so guessing one digit gains nothing."""
    digits = [task["digit"] for task in rows(30, seed=4)]

    assert all(sorted(digits[start : start + 10]) == list(range(10)) for start in (0, 10, 20))
    assert len({str(task["responses_create_params"]) for task in rows(10, seed=0)}) == 1


def test_several_numbers_are_no_answer() -> None:
    """Otherwise a model could list every digit."""
    assert only_digit("7 or 8") is None
    assert only_digit("7, I say 7") == 7
    assert only_digit("none") is None
    assert only_digit("00") is None
    assert only_digit("-7") is None
