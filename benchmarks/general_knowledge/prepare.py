"""Write the rows of the general knowledge benchmark: every question once, its options in random order."""

import json
import random
from pathlib import Path
from typing import Any

from nemo_gym import WORKING_DIR
from nemo_gym.catalog.atomic_files import whole_file

FOLDER = Path(__file__).resolve().parent
LETTERS = "ABCD"
INSTRUCTION = (
    "Think as long as you like, then end with a line of the form 'Answer: X', where X is the letter you choose."
)


def row(question: dict[str, Any], position: int, draw: random.Random) -> dict[str, Any]:
    """Build one row with the right option at `position`."""
    texts = draw.sample(question["others"], k=len(question["others"]))
    texts.insert(position, question["answer"])
    options = dict(zip(LETTERS, texts, strict=True))
    listed = "\n".join(f"{letter}) {text}" for letter, text in options.items())
    message = {"role": "user", "content": f"{question['question']}\n\n{listed}\n\n{INSTRUCTION}"}
    return {
        "responses_create_params": {"input": [message]},
        "options": options,
        "expected_answer": LETTERS[position],
        "topic": question["topic"],
    }


def questions() -> list[dict[str, Any]]:
    """Load the questions."""
    return [json.loads(line) for line in (FOLDER / "questions.jsonl").read_text(encoding="utf-8").splitlines()]


def rows(seed: int = 0) -> list[dict[str, Any]]:
    """Build all rows. Every letter is right equally often, so a constant answer scores a quarter."""
    sources = questions()
    draw = random.Random(seed)
    positions = [number % len(LETTERS) for number in range(len(sources))]
    draw.shuffle(positions)
    return [row(question, position, draw) for question, position in zip(sources, positions, strict=True)]


def prepare(seed: int = 0) -> Path:
    """Write the rows and return their path. Another seed orders the options differently."""
    path = WORKING_DIR / "benchmarks" / "general_knowledge" / "data" / "general_knowledge.jsonl"
    with whole_file(path) as file:
        file.writelines(json.dumps(task, ensure_ascii=False).encode() + b"\n" for task in rows(seed))
    return path


if __name__ == "__main__":
    prepare()
