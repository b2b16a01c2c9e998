"""Measure the CPU time of grading one answer: multiple choice in this process, mathematics in workers.

`python -m perf.grading`
"""

import asyncio
import json
import os
import resource
import time
from pathlib import Path

from nemo_gym.authoring.model_replies import text_response
from nemo_gym.authoring.verifier_cases import offline_server
from nemo_gym.grading.choices import compare_choice
from nemo_gym.grading.extraction import strip_reasoning
from nemo_gym.grading.result_types import ExtractedAnswer
from nemo_gym.workers.math_verifier import MathVerifier
from resources_servers.mcqa.app import MCQAResourcesServer, MCQAVerifyRequest

CHOICE_MS = 0.5
"""Maximum CPU time of extracting and comparing one choice."""
MATH_PER_SECOND = 200.0
"""Minimum number of ordinary mathematical answers per second on two cores."""
CORES = 2

REPLY = (
    "<think>"
    + "Let me weigh option A against option B. The answer might be C. " * 100
    + "</think>\n\nThe passage says so twice, and nothing speaks for A. The others are older.\n\n**Answer: B**"
)
TEXTS = {"A": "Paris", "B": "London", "C": "Rome", "D": "Berlin"}

ORDINARY = [
    ("12", "12"),
    (r"\frac{3}{4}", "3/4"),
    ("1,024", "1024"),
    (r"x = \frac{7}{3}", r"2\frac13"),
    ("(1, -2)", "(1,-2)"),
    (r"[0,\infty)", r"x \ge 0"),
    (r"\{1,2,3\}", "3,2,1"),
    ("45^\\circ", "45"),
    (r"2\sqrt{%d}", r"\sqrt{%d \cdot 4}"),
    ("x^2+%dx", "x(x+%d)"),
]
"""Eight in ten answers are numbers or lists of them; the last two differ in every round."""


def choice_ms(repeats: int = 300) -> float:
    """Return the CPU milliseconds of grading one choice after two pages of reasoning; best of five."""
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        for _ in range(repeats):
            text = strip_reasoning(REPLY)
            assert isinstance(text, ExtractedAnswer)
            assert compare_choice(text.value, "B", "ABCD", TEXTS).correct
        best = min(best, (time.process_time() - start) / repeats)
    return best * 1000


def mcqa_verify_ms(repeats: int = 300) -> float:
    """Return the CPU milliseconds of `verify` of the server `mcqa`; best of five."""
    server = offline_server(MCQAResourcesServer, grading_mode="any_form")
    row = {"responses_create_params": {"input": "Which?"}, "options": [{k: t} for k, t in TEXTS.items()]}
    body = MCQAVerifyRequest.model_validate({**row, "expected_answer": "B", "response": text_response(REPLY)})

    async def verify() -> float:
        start = time.process_time()
        for _ in range(repeats):
            assert (await server.verify(body)).reward == 1.0
        return (time.process_time() - start) / repeats

    return min(asyncio.run(verify()) for _ in range(5)) * 1000


def _cpu() -> float:
    mine, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return mine.ru_utime + mine.ru_stime + children.ru_utime + children.ru_stime


def _children_cpu() -> float:
    """Return the CPU seconds of live descendant processes, which `getrusage` does not include."""
    ticks = os.sysconf("SC_CLK_TCK")
    parents, spent = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
            spent[int(entry.name)] = (int(fields[11]) + int(fields[12])) / ticks
    total = 0.0
    for pid, seconds in spent.items():
        ancestor = parents.get(pid)
        while ancestor and ancestor != os.getpid():
            ancestor = parents.get(ancestor)
        total += seconds if ancestor else 0.0
    return total


def math_cpu_ms(answers: list[tuple[str, str]], verifier: MathVerifier) -> float:
    """Return the CPU milliseconds of one answer, in this process and its workers together."""

    async def compare_all() -> None:
        verdicts = await asyncio.gather(*(verifier.compare_async(answer, gold) for answer, gold in answers))
        assert all(verdict.correct for verdict in verdicts), [v for v in verdicts if not v.correct][:3]

    before = _cpu() + _children_cpu()
    asyncio.run(compare_all())
    return (_cpu() + _children_cpu() - before) / len(answers) * 1000


def _rounds(pairs: list[tuple[str, str]], count: int, first: int) -> list[tuple[str, str]]:
    """Repeat the pairs with different numbers where they take one, so that no cache applies."""
    return [
        (answer % n if "%d" in answer else answer, gold % n if "%d" in gold else gold)
        for n in range(first, first + count)
        for answer, gold in pairs
    ]


def measure(count: int = 100) -> dict[str, float]:
    """Return all figures; the best of three where measured repeatedly."""
    with MathVerifier(size=CORES) as verifier:
        verifier.compare("x+1", "1+x+0")
        ordinary = [math_cpu_ms(_rounds(ORDINARY, count, 2 + run * count), verifier) for run in range(3)]
        symbolic = [math_cpu_ms(_rounds(ORDINARY[-2:], count, 9000 + run * count), verifier) for run in range(3)]
    return {
        "choice_ms": choice_ms(),
        "mcqa_verify_ms": mcqa_verify_ms(),
        "choice_limit_ms": CHOICE_MS,
        "math_ms": min(ordinary),
        "math_limit_ms": CORES * 1000 / MATH_PER_SECOND,
        "math_per_second": CORES * 1000 / min(ordinary),
        "symbolic_ms": min(symbolic),
    }


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
