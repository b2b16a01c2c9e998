"""Whether two LaTeX expressions are equal, by math-verify. Runs only in worker processes.

math-verify decides; a second, independent look at the numbers confirms. What it reads leniently (a percentage equal to
its number, values equal after rounding) never gets here: structure and numbers are compared before, by `grading`.
"""

import importlib
import logging
import random
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any

from nemo_gym.grading.math import NotUnderstood, Rules, compare_math
from nemo_gym.grading.numbers import number, stands_for

LONGEST = 1000
_POINTS = 4
_DIGITS = 40
_CLOSE = 25
"""Digits two values have in common when they count as the same."""

_WARMING_UP = (
    (r"\frac{\sqrt{2}}{3x}+x^{2}-1", r"(x-1)(x+1)"),
    (r"2x+3y=6", r"\frac{x}{3}+\frac{y}{2}=1"),
    (r"\frac{3}{2\sqrt{3}}", r"\frac{1}{2}\sqrt{3}"),
    (r"2\pi r^{2}+\ln 2", r"e^{2}\cdot\sin(x)"),
    (r"x \le 3", r"2x<5"),
    ("3+4i", "a_1-b^{-2}"),
)
"""Parsers build their tables as they go: what is read here is read fast by every worker."""


@cache
def _library(name: str) -> Any:
    return importlib.import_module(name)


def prepare() -> None:
    """Import what every worker needs, before there are workers."""
    logging.disable(logging.CRITICAL)
    for answer, gold in _WARMING_UP:
        equal(answer, gold)


def compare(job: dict[str, Any]) -> dict[str, Any]:
    """The verdict on one answer; what `nemo_gym.workers.math` sends and expects."""
    verdict = compare_math(
        job["answer"],
        job["gold"],
        symbolic=equal,
        rules=Rules(worked_out=job["worked_out"]),
        question=job["question"],
    )
    return {"outcome": verdict.outcome.value, "rule": verdict.rule, "reason": verdict.reason}


def equal(answer: str, gold: str) -> bool:
    """Whether `answer` and `gold` are the same expression, equation or inequality."""
    relational = _library("sympy").core.relational.Relational
    wanted = understood(gold, "the expected answer")
    said = understood(answer, "the answer")
    if isinstance(wanted, relational) or isinstance(said, relational):
        return _same_relation(said, wanted)
    decimal = number(answer)
    if decimal is not None and decimal.form in ("decimal", "scientific"):
        return _rounds_to(wanted, answer)
    written = number(gold)
    if written is not None and written.form in ("decimal", "scientific"):
        return _rounds_to(said, gold)
    if not _agree(said, wanted):
        return False
    if _library("sympy").expand((said - wanted).doit()) == 0:  # exact, and much faster than simplifying
        return True
    return bool(_library("math_verify").verify(wanted, said, strict=True, numeric_precision=30, timeout_seconds=None))


def understood(latex: str, whose: str) -> Any:
    """The sympy form of an expression, equation or inequality."""
    found = _parsed(latex) if len(latex) <= LONGEST else None
    sympy = _library("sympy")
    if not isinstance(found, sympy.Expr | sympy.core.relational.Relational) or found in (sympy.nan, sympy.zoo):
        raise NotUnderstood(f"{whose} is not an expression that can be read")
    return found


@lru_cache(maxsize=512)
def _parsed(latex: str) -> Any:
    library = _library("math_verify")
    found = library.parse(
        "\\boxed{" + latex.replace("*", "\\cdot ") + "}",
        [library.LatexExtractionConfig(boxed_match_priority=0)],
        fallback_mode="no_fallback",
        extraction_mode="first_match",
        parsing_timeout=None,
    )
    return _one_alphabet(found[0]) if found else None


def _one_alphabet(expression: Any) -> Any:
    """The same letter means the same in both expressions: real, except `i`."""
    if not hasattr(expression, "free_symbols"):
        return None
    sympy = _library("sympy")
    return expression.xreplace(
        {s: sympy.I if s.name == "i" else sympy.Symbol(s.name, real=True) for s in expression.free_symbols}
    )


def _agree(said: Any, wanted: Any) -> bool:
    """Whether both have the same value at a few points, wherever they have one. A check, not a proof."""
    names = sorted({symbol.name for symbol in said.free_symbols | wanted.free_symbols})
    sympy = _library("sympy")
    close = sympy.Rational(1, 10**_CLOSE)
    chosen = random.Random(20)  # the same points every time
    for _ in range(_POINTS if names else 1):
        point = {name: sympy.Rational(chosen.randint(20, 300), 97) for name in names}
        one, other = _value(said, point), _value(wanted, point)
        if one is not None and other is not None and abs(one - other) > close * (abs(one) + abs(other)):
            return False
    return True


def _value(expression: Any, point: dict[str, Any]) -> Any:
    known = {symbol: point[symbol.name] for symbol in expression.free_symbols}
    value = expression.subs(known).doit().evalf(_DIGITS)
    return value if value.is_number and value.is_finite else None


def _rounds_to(expression: Any, literal: str) -> bool:
    """Whether a decimal is this number, exactly or, with enough digits, but for its last one."""
    written = number(literal)
    if expression.free_symbols or written is None:
        return False
    value = expression.doit()
    if not isinstance(value, _library("sympy").Rational):
        value = value.evalf(_DIGITS)
    if not (value.is_real and value.is_finite):
        return False
    exact = Fraction(str(value))
    return abs(exact - written.value) <= abs(exact) / 10**30 or stands_for(written, exact)


def _same_relation(said: Any, wanted: Any) -> bool:
    """Whether two equations or inequalities are the same up to a constant factor."""
    sympy = _library("sympy")
    if not all(isinstance(one, sympy.core.relational.Relational) for one in (said, wanted)):
        return False
    (one, kind), (other, wanted_kind) = _one_sided(said), _one_sided(wanted)
    if kind is not wanted_kind or {s.name for s in one.free_symbols} != {s.name for s in other.free_symbols}:
        return False
    ratio = sympy.simplify(one / other)
    if ratio.free_symbols or not ratio.is_finite or ratio.is_zero is not False:
        return False
    return kind in (sympy.Equality, sympy.Unequality) or bool(ratio.is_positive)


def _one_sided(relation: Any) -> tuple[Any, Any]:
    """`a < b` as `(a - b, <)`, with every inequality turned to point the same way."""
    sympy = _library("sympy")
    flipped = {sympy.StrictGreaterThan: sympy.StrictLessThan, sympy.GreaterThan: sympy.LessThan}
    kind = type(relation)
    difference = (relation.lhs - relation.rhs).doit()
    return (-difference, flipped[kind]) if kind in flipped else (difference, kind)
