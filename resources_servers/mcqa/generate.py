"""Write multiple-choice rows about fractions of an hour: `python generate.py OUT --rows 40 --seed 0`."""

import random
from typing import Any

from nemo_gym.data.generator_command import run_generator

LETTERS = "ABCD"
ASK = "Answer with the letter of the right option in \\boxed{}."
PARTS = {"half": 30, "a third": 20, "a quarter": 15, "a fifth": 12, "a sixth": 10, "a tenth": 6, "a twelfth": 5}


def row(hours: int, part: str, seed: int) -> dict[str, Any]:
    """Build a question: how many minutes are some hours and a part of an hour?"""
    right = hours * 60 + PARTS[part]
    draw = random.Random(f"{hours} {part} {seed}")
    wrong = draw.sample([n for n in range(right - 25, right + 26) if n != right and n > 0], len(LETTERS) - 1)
    values = draw.sample([right, *wrong], len(LETTERS))
    options = [{letter: f"{value} minutes"} for letter, value in zip(LETTERS, values, strict=True)]
    option_lines = "\n".join(f"{letter}. {text}" for option in options for letter, text in option.items())
    question = f"How many minutes are {hours} hours and {part} of an hour?\n{option_lines}\n{ASK}"
    return {
        "responses_create_params": {"input": [{"role": "user", "content": question}]},
        "options": options,
        "expected_answer": LETTERS[values.index(right)],
        "grading_mode": "strict_single_letter_boxed",
    }


def rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Return `count` different questions."""
    questions = [(hours, part) for hours in range(2, 24) for part in PARTS]
    if count > len(questions):
        raise SystemExit(f"there are only {len(questions)} different questions; asked for {count}")
    return [row(hours, part, seed) for hours, part in random.Random(seed).sample(questions, count)]


def main() -> None:
    run_generator(rows, __doc__)


if __name__ == "__main__":
    main()
