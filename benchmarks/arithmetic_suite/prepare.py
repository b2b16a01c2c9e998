"""Write the rows of the arithmetic suite: calculations generated from a seed, reproducibly."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nemo_gym import WORKING_DIR
from nemo_gym.catalog.atomic_files import whole_file

LEVELS = (1, 2, 3)
"""Number of digits."""
INSTRUCTION = "Work it out and end your reply with the result as a plain number."

Question = tuple[str, int]
Draw = random.Random


def number(draw: Draw, digits: int) -> int:
    """Draw a number with this many digits; a single digit is at least 2, so that no question is trivial."""
    return draw.randint(10 ** (digits - 1) if digits > 1 else 2, 10**digits - 1)


def addition(draw: Draw, level: int) -> Question:
    a, b = number(draw, level), number(draw, level)
    return f"What is {a} + {b}?", a + b


def subtraction(draw: Draw, level: int) -> Question:
    a, b = number(draw, level), number(draw, level)
    return f"What is {a} - {b}?", a - b


def multiplication(draw: Draw, level: int) -> Question:
    a, b = number(draw, level), number(draw, max(1, level - 1))
    return f"What is {a} * {b}?", a * b


def division(draw: Draw, level: int) -> Question:
    quotient, divisor = number(draw, level), number(draw, max(1, level - 1))
    return f"What is {quotient * divisor} / {divisor}?", quotient


def remainder(draw: Draw, level: int) -> Question:
    a, b = number(draw, level + 1), number(draw, max(1, level - 1))
    return f"What is the remainder when {a} is divided by {b}?", a % b


def expression(draw: Draw, level: int) -> Question:
    a, b, c = (number(draw, level) for _ in range(3))
    if draw.random() < 0.5:
        return f"What is ({a} + {b}) * {c}?", (a + b) * c
    return f"What is {a} + {b} * {c}?", a + b * c


OPERATIONS: tuple[Callable[[Draw, int], Question], ...] = (
    addition,
    subtraction,
    multiplication,
    division,
    remainder,
    expression,
)


def rows(per_kind: int = 10, seed: int = 0) -> list[dict[str, Any]]:
    """Generate `per_kind` different questions of every operation and level."""
    draw = random.Random(seed)
    used: set[str] = set()
    tasks = []
    for operation in OPERATIONS:
        for level in LEVELS:
            for _ in range(per_kind):
                question, answer = _new_question(operation, level, draw, used)
                message = {"role": "user", "content": f"{question} {INSTRUCTION}"}
                tasks.append(
                    {
                        "responses_create_params": {"input": [message]},
                        "expected_answer": answer,
                        "operation": operation.__name__,
                        "level": f"{level} digit{'s' * (level > 1)}",
                    }
                )
    return tasks


def _new_question(operation: Callable[[Draw, int], Question], level: int, draw: Draw, used: set[str]) -> Question:
    """Draw an unused question whose last number is not its answer, so that repeating it earns no reward."""
    for _ in range(10_000):
        question, answer = operation(draw, level)
        if question not in used and int(re.findall(r"\d+", question)[-1]) != abs(answer):
            used.add(question)
            return question, answer
    raise ValueError(f"{operation.__name__} at level {level} does not have that many different questions")


def prepare(per_kind: int = 10, seed: int = 0) -> Path:
    """Write the rows and return their path. Another seed gives other questions of the same kinds."""
    path = WORKING_DIR / "benchmarks" / "arithmetic_suite" / "data" / "arithmetic_suite.jsonl"
    with whole_file(path) as file:
        file.writelines(json.dumps(task).encode() + b"\n" for task in rows(per_kind, seed))
    return path


if __name__ == "__main__":
    prepare()
