"""The command line of a folder's generator."""

import json
import sys
from pathlib import Path

import pytest

from nemo_gym.data.generator_command import question_rows, run_generator


def rows(count: int, *, seed: int) -> list[dict[str, int]]:
    return [{"number": seed + number} for number in range(count)]


def test_rows_are_written_as_the_command_line_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All generators share one command line, and the seed makes their rows reproducible."""
    target = tmp_path / "rows.jsonl"
    monkeypatch.setattr(sys, "argv", ["generate.py", str(target), "--rows", "2", "--seed", "7"])

    run_generator(rows, "Makes rows.")

    assert [json.loads(line) for line in target.read_text().splitlines()] == [{"number": 7}, {"number": 8}]


def test_questions_are_drawn_from_the_kinds_in_turn_without_repetition() -> None:
    """A dataset with two equal rows would count one task twice."""
    kinds = [
        lambda draw: (f"{(number := draw.randrange(3))}?", str(number)),
        lambda draw: (f"{(letter := draw.choice('ab'))}?", letter),
    ]

    rows = question_rows(4, seed=1, kinds=kinds, instruction="Be brief.")

    questions = [row["question"] for row in rows]
    assert len(set(questions)) == 4
    assert [question[0].isdigit() for question in questions] == [True, False, True, False]
    assert all(row["question"] == f"{row['expected_answer']}?" for row in rows)
    assert rows[0]["responses_create_params"]["input"][0]["content"] == f"{questions[0]}\nBe brief."
    assert rows == question_rows(4, seed=1, kinds=kinds, instruction="Be brief.")
