"""Prove the verifier of needles in a long text: every requested value, and no other, is right."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from nemo_gym.authoring.verifier_cases import offline_server
from nemo_gym.authoring.verifier_proof import VerifierProof, offline_client, verify_reply
from resources_servers.multineedle import audit
from resources_servers.multineedle.app import MultineedleResourcesServer, recall_by_depth
from resources_servers.multineedle.generate import rows
from resources_servers.multineedle.reading import values_by_name

ROWS = rows(2, seed=3)
ROW = ROWS[0]


class TestProof(VerifierProof):
    """Oracle, odd forms, wrong answers, cheats, broken rows, example data and fixture cases."""

    folder = Path(__file__).parents[1]
    oracle_rows = 60
    checked_rows = 12  # every kind of needle with every count


@pytest.fixture(scope="module")
def http() -> TestClient:
    return offline_client(MultineedleResourcesServer)


def test_every_needle_occurs_once_in_its_text_at_its_depth() -> None:
    """A needle that is missing or has two values cannot be found."""
    for row in rows(60, seed=2):
        text = row["responses_create_params"]["input"][0]["content"]
        for needle in row["needles"]:
            assert text.count(needle["value"]) == 1
            assert abs(text.index(needle["value"]) / len(text) - needle["depth"]) < 0.05


def test_the_verdict_reports_every_needle(http: TestClient) -> None:
    """Recall of each needle shows where a model stops reading."""
    row = ROWS[1]
    (name, value), *others = audit.expected_pairs(row)

    verdict = verify_reply(http, row, audit.lines([(name, value), *((other, "0") for other, _ in others)]))

    assert [needle["found"] for needle in verdict["needle_results"]] == [True] + [False] * len(others)
    assert verdict["needle_results"][1]["given"] == ["0"]
    assert verdict["fraction_found"] == pytest.approx(1 / len(row["needles"]))


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("I do not know.", "no name that was asked for is followed by a value"),
        ("<think>hm", "the reasoning is not closed"),
        (audit.wrong(ROW)[1], None),
    ],
)
def test_a_reply_without_an_answer_has_a_reason(http: TestClient, reply: str, reason: str | None) -> None:
    """A reply that cannot be read calls for another prompt, a wrong answer for another model."""
    assert verify_reply(http, ROW, reply)["unparsed_reason"] == reason


def test_a_name_may_contain_another_name() -> None:
    """York is not New York, and New York is not York."""
    values = values_by_name("New York: 1\nYork: 2\nYorkshire: 3", ["York", "New York"])

    assert values == {"York": ["2"], "New York": ["1"]}


def test_a_very_long_reply_is_read_in_one_pass(http: TestClient) -> None:
    """A reply that rambles must not block the server: at most 200,000 characters are read."""
    for piece in ("Lisbon, ", "- **", "|\n", "Lisbon is ", ": " * 10):
        assert verify_reply(http, ROW, piece * 100_000)["reward"] == 0.0
    assert verify_reply(http, ROW, "Lisbon, " * 100_000 + "\n" + audit.oracle(ROW))["reward"] == 1.0


def test_recall_is_reported_for_each_quarter_of_the_text() -> None:
    """Long-context evaluation asks where in the text a model stops finding facts."""
    result = {"name": "x", "given": []}
    rollout = {"needle_results": [{**result, "found": True, "depth": 0.1}, {**result, "found": False, "depth": 1.0}]}

    assert recall_by_depth([[rollout]]) == {"recall/depth=0-25%": 1.0, "recall/depth=75-100%": 0.0}


def test_metrics_have_the_reward_and_the_recall(http: TestClient) -> None:
    """Training uses the reward; recall shows progress earlier."""
    server = offline_server(MultineedleResourcesServer)
    half = verify_reply(http, ROW, audit.wrong(ROW)[0])

    metrics = server.compute_metrics([[verify_reply(http, ROW, audit.oracle(ROW))], [half]])

    assert metrics["pass@1/accuracy"] == 50.0
    assert metrics["pass@1/recall"] == pytest.approx(100 * (1 + half["fraction_found"]) / 2)
