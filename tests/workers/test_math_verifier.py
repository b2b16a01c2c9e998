"""Verify mathematical answers, with math-verify in worker processes."""

import asyncio
import importlib.util
import json
import multiprocessing
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.errors import EnvFailed
from nemo_gym.grading.result_types import ExtractedAnswer, Verdict, VerdictKind
from nemo_gym.workers.math_verifier import MathVerifier

pytest.importorskip("math_verify")

ROWS: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "grading" / "data" / "math.jsonl").read_text("utf-8").splitlines()
]


@pytest.fixture(scope="module")
def verifier() -> Iterator[MathVerifier]:
    with MathVerifier(size=2) as made:
        yield made


def test_there_are_enough_labelled_pairs_of_both_kinds() -> None:
    """A verifier is only as good as the pairs it was tested with."""
    assert len(ROWS) >= 300
    assert sum(row["equal"] for row in ROWS) >= 150
    assert sum(not row["equal"] for row in ROWS) >= 150


def test_the_labelled_pairs_have_no_false_positive_and_only_the_listed_misses(verifier: MathVerifier) -> None:
    """Rewards depend on it. The misses are documented, so the list has to be exact."""

    async def compare_all() -> list[Verdict]:
        calls = [verifier.compare_async(row["answer"], row["gold"], question=row.get("question")) for row in ROWS]
        return list(await asyncio.gather(*calls))

    verdicts = asyncio.run(compare_all())
    graded = list(zip(ROWS, verdicts, strict=True))

    assert [(row["gold"], row["answer"]) for row, verdict in graded if verdict.correct and not row["equal"]] == []
    missed = [(row["gold"], row["answer"]) for row, verdict in graded if row["equal"] and not verdict.correct]
    assert missed == [(row["gold"], row["answer"]) for row in ROWS if row.get("missed")]
    assert [row for row, verdict in graded if verdict.outcome is VerdictKind.UNDECIDED] == []


@pytest.mark.parametrize(
    ("gold", "answer", "is_equal"),
    [
        ("8", "8h", False),
        ("8s", "8", False),
        ("8 g", "8", False),
        ("4ft", "4", False),
        ("x + 4", "x + 4d", False),
        ("c_1", "c_1t", False),
        (r"\frac{1}{2}", r"\frac{1}{2} gh", False),
        ("s + 5 g", "5 g + s", True),
        ("(c-d)(c+d)", "c^2-d^2", True),
        (r"8\text{ h}", "8", True),
        ("8 km", "8", True),
        ("8km", "8 km", True),
    ],
)
def test_a_trailing_letter_is_a_variable_unless_it_must_be_a_unit(
    verifier: MathVerifier, gold: str, answer: str, is_equal: bool
) -> None:
    """A variable that is dropped as a unit pays an answer that lacks it."""
    assert verifier.compare(answer, gold).correct is is_equal
    assert verifier.compare(gold, answer).correct is is_equal


@pytest.mark.parametrize(
    ("gold", "answer", "is_equal"),
    [("7250", "(7,250)", False), ("(7, 250)", "(7,250)", True), ("(7,250)", "7,250", False), ("7250", "7,250", True)],
)
def test_a_comma_in_parentheses_separates_two_numbers(
    verifier: MathVerifier, gold: str, answer: str, is_equal: bool
) -> None:
    """A point of the plane is not a number with a thousands separator."""
    assert verifier.compare(answer, gold).correct is is_equal


PAIRS = [
    (r"\frac{\sqrt{3}}{2}", r"\frac{3}{2\sqrt{3}}", True),
    ("(x-2)(x+2)", "x^2-4", True),
    ("(x-2)(x+2)", "x^2+4", False),
    (r"2\pi", r"\pi+\pi", True),
]


def _compare_pairs(answers: list[tuple[str, str, bool]]) -> list[bool]:
    with MathVerifier(size=1) as verifier:
        return [verifier.compare(answer, gold).correct for answer, gold, _ in answers]


def test_the_same_verdict_in_the_main_thread_a_thread_a_loop_a_process_and_under_load(verifier: MathVerifier) -> None:
    """Signal-based timeouts fail, or always answer no, outside the main thread."""
    expected = [equal for _, _, equal in PAIRS]
    in_thread: list[bool] = []

    def compare_in_thread() -> None:
        in_thread.extend(verifier.compare(answer, gold).correct for answer, gold, _ in PAIRS)

    thread = threading.Thread(target=compare_in_thread)
    thread.start()
    thread.join()

    async def compare_many() -> list[bool]:
        calls = [verifier.compare_async(f"{answer}+{n}", f"{gold}+{n}") for n in range(40) for answer, gold, _ in PAIRS]
        return [verdict.correct for verdict in await asyncio.gather(*calls)]

    with multiprocessing.get_context("spawn").Pool(1) as processes:
        in_process = processes.apply(_compare_pairs, (PAIRS,))

    assert [verifier.compare(answer, gold).correct for answer, gold, _ in PAIRS] == expected
    assert in_thread == expected
    assert in_process == expected
    assert asyncio.run(compare_many()) == expected * 40


PATHOLOGICAL = [
    "9^{9^{9^{9}}}",
    r"(((((9^{9})^{9})^{9})^{9})^{9})^{9}+x",
    "x^{10^{10}}-1",
    "(a+b+c+d)^{4000}",
    r"\sqrt{" * 150 + "x" + "}" * 150,
    "(" * 400 + "x" + ")" * 400,
]


def test_pathological_answers_end_on_time_and_leave_a_full_pool() -> None:
    """Stuck workers would make every later verdict wait forever."""
    with MathVerifier(size=2, cpu_seconds=1.0) as verifier:

        async def burst() -> list[Verdict]:
            return list(await asyncio.gather(*(verifier.compare_async(a, "x+1") for a in PATHOLOGICAL)))

        verdicts = asyncio.run(burst())

        assert not any(verdict.correct for verdict in verdicts)
        assert verdicts[0].outcome is VerdictKind.UNDECIDED
        assert "time" in str(verdicts[0].reason)
        assert verifier.compare("(y-2)(y+2)", "y^2-4").correct


HOSTILE = [
    "__import__('os').system('touch /tmp/pwned')",
    r"\operatorname{__import__}(os)",
    "().__class__.__bases__[0].__subclasses__()",
    "lambda: 0",
    r"x; import os",
    "eval(open('/etc/passwd').read())",
    "{{7*7}}",
    "${jndi:ldap://x}",
    "exec('x=1')",
    r"\input{/etc/passwd}",
    r"\write18{touch /tmp/pwned}",
    "x" * 3000,
    "\x00\x01",
    "\ud800",
]


def test_text_that_looks_like_code_is_only_compared(verifier: MathVerifier) -> None:
    """Model output must never be evaluated, and is never the answer."""
    for text in HOSTILE:
        assert verifier.compare(text, "x+1").outcome in (VerdictKind.WRONG, VerdictKind.UNPARSED), text


def test_the_answer_is_found_behind_the_reasoning(verifier: MathVerifier) -> None:
    """A box in the reasoning is not the answer; the viewer highlights the span in the whole text."""
    text = r"<think>\boxed{3}</think>It is $\boxed{4}$."

    assert verifier.verify(text, "4").correct
    assert verifier.verify(text, "3").outcome is VerdictKind.WRONG
    assert verifier.verify(r"<think>\boxed{4}", "4").outcome is VerdictKind.UNPARSED
    assert asyncio.run(verifier.verify_async(text, "4")).correct
    answer = verifier.extract(text)
    assert isinstance(answer, ExtractedAnswer)
    assert text[slice(*answer.span)] == r"\boxed{4}"


def test_a_repeated_answer_is_taken_from_the_cache(verifier: MathVerifier) -> None:
    """Repeats of one task give the same answers; the closed pool shows that no worker is used."""
    with MathVerifier(size=1) as short:
        first = short.compare("(z+1)^2", "z^2+2z+1")
        short.close()

        assert short.compare("(z+1)^2", "z^2+2z+1") == first


def test_numbers_need_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most answers are numbers; an installation without the extra must grade them."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with MathVerifier() as verifier:
        assert verifier.verify("The answer is 1,234.", "1234").correct
        with pytest.raises(EnvFailed, match="math-verify is not installed") as raised:
            verifier.compare("x+1", "1+x+0")

    assert raised.value.fix == "pip install 'nemo-gym[math]'"
