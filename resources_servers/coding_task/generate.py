"""Write repositories with a bug and hidden tests: `python generate.py OUT --rows 12 --seed 0`."""

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from nemo_gym.data.generator_command import run_generator
from resources_servers.coding_task.problems import PROBLEMS, Files, Problem

SECONDS = 60.0
ASK = (
    "The working directory is a small Python repository. Its test {test} fails because of a bug in the program. Read "
    "the files, fix the program, and check the fix with `python3 -m unittest {module}`. Changes of tests do not count. "
    "When the test passes, say in one sentence what was wrong."
)
RUN_TESTS = """
import json, sys
sys.path.insert(0, "")
outcomes = []
for code in json.load(sys.stdin):
    names = {}
    try:
        exec(code, names)
        outcomes.append({"expected": names["result"]})
    except Exception as error:
        outcomes.append({"raises": type(error).__name__})
print(json.dumps(outcomes))
"""


def expected_outcomes(files: Files, tests: list[str]) -> list[dict[str, Any]]:
    """Run test code on the right repository; return the value of each test, or the exception that it raises."""
    with tempfile.TemporaryDirectory(prefix="gym-coding-task-") as folder:
        for name, content in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        run = subprocess.run(
            [sys.executable, "-B", "-c", RUN_TESTS],
            cwd=folder,
            input=json.dumps(tests),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        )
    outcomes: list[dict[str, Any]] = json.loads(run.stdout)
    return outcomes


def row(problem: Problem, seed: int) -> dict[str, Any]:
    """Build a task whose hidden tests are drawn from `seed`."""
    tests = problem.hidden(random.Random(f"{problem.name} {seed}"))
    right = {**problem.files, problem.module: problem.with_replacement(problem.fix)}
    outcomes = expected_outcomes(right, tests)
    question = ASK.format(test=problem.test_path, module=problem.test_path.removesuffix(".py"))
    return {
        "responses_create_params": {"input": [{"role": "user", "content": question}]},
        "workspace": {"files": problem.repository()},
        "verifier_metadata": {
            "problem": problem.name,
            "hidden_tests": [{"code": code, **outcome} for code, outcome in zip(tests, outcomes, strict=True)],
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
