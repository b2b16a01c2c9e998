"""Compare two LaTeX expressions with math-verify. Runs only in worker processes.

Two expressions are equal only if their values agree at sample points and math-verify finds them equal. math-verify is
too lenient with some forms (a percentage equals its number, values are equal after rounding); `grading` handles these
before, by comparing structure and numbers.
"""

import logging
import random
from dataclasses import replace
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any

import math_verify
import sympy
from sympy.core.relational import Relational

from nemo_gym.grading.math import UnreadableExpression, compare_math
from nemo_gym.grading.numbers import is_rounding_of, parse_number

MAX_LENGTH = 1000
_SAMPLE_POINTS = 4
_DIGITS = 40
_EQUAL_DIGITS = 25
"""Digits that two values must share to count as equal."""

_WARM_UP_PAIRS = (
    (r"\frac{\sqrt{2}}{3x}+x^{2}-1", r"(x-1)(x+1)"),
    (r"2x+3y=6", r"\frac{x}{3}+\frac{y}{2}=1"),
    (r"\frac{3}{2\sqrt{3}}", r"\frac{1}{2}\sqrt{3}"),
    (r"2\pi r^{2}+\ln 2", r"e^{2}\cdot\sin(x)"),
    (r"x \le 3", r"2x<5"),
    ("3+4i", "a_1-b^{-2}"),
)
"""Expressions that the host compares once: the parsers build tables on first use, which forked workers then share."""


def prepare() -> None:
    """Build the tables of the parsers; the host calls this before the first fork."""
    logging.disable(logging.CRITICAL)
    for answer, gold in _WARM_UP_PAIRS:
        are_equal(answer, gold)


def compare(payload: dict[str, Any]) -> dict[str, Any]:
    """Grade one answer: the function that `nemo_gym.workers.math_verifier` calls in workers."""
    verdict = compare_math(payload["answer"], payload["gold"], symbolic=are_equal, question=payload["question"])
    return {"outcome": verdict.outcome.value, "rule": verdict.rule, "reason": verdict.reason}


def are_equal(answer: str, gold: str) -> bool:
    """Return True if `answer` and `gold` are the same expression, equation or inequality; a decimal may be rounded."""
    expected = parse_latex(gold, "the expected answer")
    actual = parse_latex(answer, "the answer")
    if isinstance(expected, Relational) or isinstance(actual, Relational):
        return _is_same_relation(actual, expected)
    decimal = parse_number(answer)
    if decimal is not None and decimal.form in ("decimal", "scientific"):
        return _rounds_to(expected, answer)
    decimal = parse_number(gold)
    if decimal is not None and decimal.form in ("decimal", "scientific"):
        return _rounds_to(actual, gold)
    if not _agree_at_sample_points(actual, expected):
        return False
    if sympy.expand((actual - expected).doit()) == 0:  # exact, and much faster than simplifying
        return True
    return bool(math_verify.verify(expected, actual, strict=True, numeric_precision=30, timeout_seconds=None))


def parse_latex(latex: str, subject: str) -> Any:
    """Return the sympy form of an expression, equation or inequality.

    Raises:
        UnreadableExpression: the text cannot be parsed; the message begins with `subject`.
    """
    parsed = _parse(latex) if len(latex) <= MAX_LENGTH else None
    if not isinstance(parsed, sympy.Expr | Relational) or parsed in (sympy.nan, sympy.zoo):
        raise UnreadableExpression(f"{subject} is not an expression that can be read")
    return parsed


@lru_cache(maxsize=512)
def _parse(latex: str) -> Any:
    """Parse LaTeX with math-verify; return None if it cannot be parsed."""
    expressions = math_verify.parse(
        "\\boxed{" + latex.replace("*", "\\cdot ") + "}",
        [_extraction_config()],
        fallback_mode="no_fallback",
        extraction_mode="first_match",
        parsing_timeout=None,
    )
    return _with_real_symbols(expressions[0]) if expressions else None


@cache
def _extraction_config() -> Any:
    """Return math-verify's configuration without its removal of units, which drops variables (`6m` is not 6)."""
    default = math_verify.LatexExtractionConfig(boxed_match_priority=0)
    return replace(default, normalization_config=replace(default.normalization_config, units=False))


def _with_real_symbols(expression: Any) -> Any:
    """Replace `i` by the imaginary unit and every other symbol by a real symbol of the same name.

    Then two parsed expressions can be compared. Returns None for anything without `free_symbols`.
    """
    if not hasattr(expression, "free_symbols"):
        return None
    return expression.xreplace(
        {s: sympy.I if s.name == "i" else sympy.Symbol(s.name, real=True) for s in expression.free_symbols}
    )


def _agree_at_sample_points(actual: Any, expected: Any) -> bool:
    """Return False if the values of the expressions differ at one of a few points where both have a value."""
    names = sorted({symbol.name for symbol in actual.free_symbols | expected.free_symbols})
    tolerance = sympy.Rational(1, 10**_EQUAL_DIGITS)
    generator = random.Random(20)  # the same points every time
    for _ in range(_SAMPLE_POINTS if names else 1):
        point = {name: sympy.Rational(generator.randint(20, 300), 97) for name in names}
        left, right = _value_at(actual, point), _value_at(expected, point)
        if left is not None and right is not None and abs(left - right) > tolerance * (abs(left) + abs(right)):
            return False
    return True


def _value_at(expression: Any, point: dict[str, Any]) -> Any:
    """Return the value of an expression for the given values of its symbols; None if it is not a finite number."""
    values = {symbol: point[symbol.name] for symbol in expression.free_symbols}
    value = expression.subs(values).doit().evalf(_DIGITS)
    return value if value.is_number and value.is_finite else None


def _rounds_to(expression: Any, literal: str) -> bool:
    """Return True if the decimal `literal` equals the expression, exactly or correctly rounded."""
    decimal = parse_number(literal)
    if expression.free_symbols or decimal is None:
        return False
    value = expression.doit()
    if not isinstance(value, sympy.Rational):
        value = value.evalf(_DIGITS)
    if not (value.is_real and value.is_finite):
        return False
    exact = Fraction(str(value))
    return abs(exact - decimal.value) <= abs(exact) / 10**30 or is_rounding_of(decimal, exact)


def _is_same_relation(actual: Any, expected: Any) -> bool:
    """Return True if both are equations or inequalities and the same up to a constant factor."""
    if not (isinstance(actual, Relational) and isinstance(expected, Relational)):
        return False
    (left, kind), (expected_left, expected_kind) = _one_sided(actual), _one_sided(expected)
    if kind is not expected_kind or {s.name for s in left.free_symbols} != {s.name for s in expected_left.free_symbols}:
        return False
    ratio = sympy.simplify(left / expected_left)
    if ratio.free_symbols or not ratio.is_finite or ratio.is_zero is not False:  # `is_zero` is None if unknown
        return False
    # A negative factor reverses an inequality.
    return kind in (sympy.Equality, sympy.Unequality) or bool(ratio.is_positive)


def _one_sided(relation: Any) -> tuple[Any, Any]:
    """Move all terms to one side: return `a < b` as `(a - b, <)`, `a > b` as `(b - a, <)`, `a = b` as `(a - b, =)`."""
    flipped = {sympy.StrictGreaterThan: sympy.StrictLessThan, sympy.GreaterThan: sympy.LessThan}
    kind = type(relation)
    difference = (relation.lhs - relation.rhs).doit()
    return (-difference, flipped[kind]) if kind in flipped else (difference, kind)
