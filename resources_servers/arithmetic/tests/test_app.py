"""Prove the verifier of arithmetic: the last number of the reply decides."""

from pathlib import Path

import pytest

from nemo_gym.authoring.verifier_proof import VerifierProof
from resources_servers.arithmetic.app import last_number
from resources_servers.arithmetic.generate import WORKED_SUMS, rows


class TestProof(VerifierProof):
    """Oracle, odd forms, wrong answers, cheats, broken rows, example data and fixture cases."""

    folder = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("text", "number"),
    [("3 + 4 = 7", 7), ("it is 1,024.", 1024), ("-3", -3), ("x2", None), ("", None), ("2.50", 2.5), ("٣", None)],
)
def test_the_last_number_is_read_as_people_write_it(text: str, number: float | None) -> None:
    """Digits inside words and in other scripts are not answers."""
    assert last_number(text) == number


def test_the_worked_sums_are_never_the_question() -> None:
    """A sum that the prompt solves must not be the task."""
    questions = {row["responses_create_params"]["input"][-1]["content"] for row in rows(60, seed=0)}

    assert not questions & {f"What is {a} + {b}?" for a, b in WORKED_SUMS}
