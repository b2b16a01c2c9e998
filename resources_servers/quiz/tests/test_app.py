"""Prove the verifier of quizzes: the option that the reply chooses decides."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from benchmarks.general_knowledge.prepare import LETTERS, rows
from nemo_gym.authoring.verifier_cases import offline_server
from nemo_gym.authoring.verifier_proof import VerifierProof, offline_client, verify_reply
from resources_servers.quiz.app import QuizServer

ROWS = rows()
ROW = ROWS[0]


class TestProof(VerifierProof):
    """Oracle, odd forms, wrong answers, cheats, broken rows and example data."""

    folder = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def http() -> TestClient:
    return offline_client(QuizServer)


def test_every_question_of_the_benchmark_is_solved_by_its_oracle(http: TestClient) -> None:
    """The benchmark has more rows than the proof tries."""
    for row in ROWS:
        assert verify_reply(http, row, f"Answer: {row['expected_answer']}")["reward"] == 1.0


def test_repeating_a_question_of_the_benchmark_scores_nothing(http: TestClient) -> None:
    """The prompt shows every option, so the echo is the cheapest cheat."""
    for row in ROWS:
        assert verify_reply(http, row, row["responses_create_params"]["input"][0]["content"])["reward"] == 0.0


def test_a_wrong_option_is_reported_as_the_answer(http: TestClient) -> None:
    """A wrong answer is not the same as no answer."""
    for letter in set(LETTERS) - {ROW["expected_answer"]}:
        verdict = verify_reply(http, ROW, f"Answer: {letter}")

        assert (verdict["reward"], verdict["extracted_answer"]) == (0.0, letter)


@pytest.mark.parametrize("text", ["", "I do not know.", "Answer:", "Answer: A, B, C or D", "A B C D", "Answer: X"])
def test_a_reply_that_chooses_no_option_has_no_answer(http: TestClient, text: str) -> None:
    """Hedging does not choose an option, and must not count as a wrong one."""
    assert verify_reply(http, ROW, text)["extracted_answer"] is None


def test_metrics_are_given_for_each_topic() -> None:
    """A mean over history and computing hides both."""
    server = offline_server(QuizServer)
    tasks = [
        [{"reward": 1.0, "extracted_answer": "A", "topic": "history"}, {"reward": 0.0, "topic": "history"}],
        [{"reward": 0.0, "extracted_answer": "B", "topic": "science"}],
    ]

    metrics = server.compute_metrics(tasks)

    assert metrics["history/pass@2/accuracy"] == 100.0
    assert metrics["science/pass@1/accuracy"] == 0.0
    assert metrics["pass@1/no_answer"] == pytest.approx(25.0)
    assert "pass@2/accuracy" in server.get_key_metrics({"mean/reward": 0.3, **metrics})


def test_stored_responses_can_be_verified_again(http: TestClient) -> None:
    """The verdict does not depend on a session."""
    assert http.get("/reverify_mode").json() == {"reverify_mode": "stateless"}
