"""Write programming problems with their tests: `python generate.py OUT --rows 12 --seed 0`."""

import random
from typing import Any

from nemo_gym.data.generated import write_generated
from resources_servers.code_gen.problems import PROBLEMS, Problem

TESTS = 10
STDIN = "Write a Python program that reads from standard input and prints to standard output."
ASK = "Put all of your code into one fenced block, the last of your answer."


def row(problem: Problem, seed: int) -> dict[str, Any]:
    """The problem with tests drawn from `seed`; the first test is the example in the question."""
    chance = random.Random(f"{problem.name} {seed}")
    tests = problem.tests(chance, TESTS)
    shown = f"For example, with\n{tests[0][0]}\nthe answer is\n{tests[0][1]}"
    asked = [problem.statement, shown, *([] if problem.fn_name else [STDIN]), ASK]
    return {
        "responses_create_params": {"input": [{"role": "user", "content": "\n\n".join(asked)}]},
        "verifier_metadata": {
            "problem": problem.name,
            "difficulty": problem.difficulty,
            "unit_tests": {
                "inputs": [given for given, _ in tests],
                "outputs": [expected for _, expected in tests],
                "fn_name": problem.fn_name,
            },
        },
    }


def rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """`count` rows: the problems in a random order, again with other tests when there are more rows than problems."""
    order = random.Random(seed).sample(PROBLEMS, len(PROBLEMS))
    return [row(order[n % len(order)], seed + n // len(order)) for n in range(count)]


def main() -> None:
    write_generated(rows, __doc__)


if __name__ == "__main__":
    main()
