"""Write rows with a hidden digit: `python generate.py OUT --rows 10 --seed 0`."""

import random
from typing import Any

from nemo_gym.data.generator_command import run_generator

QUESTION = "Ask, then say the digit."
TOOL = {
    "type": "function",
    "name": "ask",
    "description": "Return the digit.",
    "parameters": {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
    "strict": True,
}


def row(digit: int) -> dict[str, Any]:
    """Build one task: the same question for each digit, so that only the tool can tell the digits apart."""
    conversation = [{"role": "user", "content": QUESTION}]
    params = {"input": conversation, "tools": [TOOL], "parallel_tool_calls": False}
    return {"responses_create_params": params, "digit": digit}


def rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Return `count` rows; every ten of them have each digit once, in random order."""
    draw = random.Random(seed)
    digits: list[int] = []
    while len(digits) < count:
        digits += draw.sample(range(10), 10)
    return [row(digit) for digit in digits[:count]]


def main() -> None:
    run_generator(rows, __doc__)


if __name__ == "__main__":
    main()
