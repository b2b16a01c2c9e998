"""For a folder's `generate.py`: its command line, and rows of questions drawn from a seed."""

import argparse
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

DEFAULT_ROWS = 40


def run_generator(rows: Callable[..., Sequence[dict[str, Any]]], description: str | None) -> None:
    """Parse the command line and write the result of `rows(count, seed=seed)`, one JSON object per line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("out", type=Path, help="file to write")
    parser.add_argument("--rows", type=int, default=DEFAULT_ROWS, help="number of rows")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random generator")
    args = parser.parse_args()
    args.out.write_text("".join(json.dumps(row) + "\n" for row in rows(args.rows, seed=args.seed)), encoding="utf-8")


def question_rows(
    count: int, *, seed: int, kinds: Sequence[Callable[[random.Random], tuple[str, str]]], instruction: str
) -> list[dict[str, Any]]:
    """Return `count` rows with different questions, drawn from the kinds in turn.

    A kind returns a question and its answer. The prompt is the question and, on a new line, `instruction`.
    """
    draw = random.Random(seed)
    answers: dict[str, str] = {}
    while len(answers) < count:
        question, answer = kinds[len(answers) % len(kinds)](draw)
        answers.setdefault(question, answer)
    return [
        {
            "responses_create_params": {"input": [{"role": "user", "content": f"{question}\n{instruction}"}]},
            "question": question,
            "expected_answer": answer,
        }
        for question, answer in answers.items()
    ]
