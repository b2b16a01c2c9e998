"""Write programming problems with their tests: `python generate.py OUT --rows 12 --seed 0`."""

import random
from typing import Any

from nemo_gym.data.generator_command import run_generator
from resources_servers.code_gen.problems import PROBLEMS, Problem

TESTS = 10
STDIN = "Write a Python program that reads from standard input and prints to standard output."
ASK = "Put all of your code into one fenced block, the last of your answer."


def row(problem: Problem, seed: int) -> dict[str, Any]:
    """Build a task with tests drawn from `seed`; the first test is the example in the question."""
    chance = random.Random(f"{problem.name} {seed}")
    tests = problem.tests(chance, TESTS)
    example = f"For example, with\n{tests[0][0]}\nthe answer is\n{tests[0][1]}"
    parts = [problem.statement, example, *([] if problem.fn_name else [STDIN]), ASK]
    return {
        "responses_create_params": {"input": [{"role": "user", "content": "\n\n".join(parts)}]},
        "verifier_metadata": {
            "problem": problem.name,
            "difficulty": problem.difficulty,
            "unit_tests": {
                "inputs": [stdin for stdin, _ in tests],
                "outputs": [expected for _, expected in tests],
                "fn_name": problem.fn_name,
            },
        },
    }


def rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Return `count` tasks: the problems in random order, and again with other tests if there are more rows."""
    order = random.Random(seed).sample(PROBLEMS, len(PROBLEMS))
    return [row(order[n % len(order)], seed + n // len(order)) for n in range(count)]


def main() -> None:
    run_generator(rows, __doc__)


if __name__ == "__main__":
    main()
