"""A task's own scorer, asked in a worker process. Nothing that a model wrote is evaluated here either.

Some scorers of the package call `eval` on the answer, or hand it to a parser that does. Theirs is replaced by one that
reads literals only, and an answer that is not a plain expression never reaches the parser.
"""

import ast
import importlib
import math
import re
from collections.abc import Callable
from typing import Any

_LITERALS = {
    "reasoning_gym.algorithmic.string_insertion",
    "reasoning_gym.algorithmic.spiral_matrix",
    "reasoning_gym.algorithmic.number_sorting",
    "reasoning_gym.algorithmic.binary_matrix",
    "reasoning_gym.games.n_queens",
}
"""Modules whose scorers evaluate the answer as a Python literal."""

_ARITHMETIC = frozenset({"countdown", "puzzle24"})
_ALGEBRA = frozenset({"simple_integration", "intermediate_integration", "polynomial_multiplication"})
"""Datasets whose scorers give the answer to sympy's parser, which evaluates Python."""

_FUNCTIONS = frozenset(
    [
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "acosh",
        "atanh",
        "exp",
        "log",
        "ln",
        "sqrt",
        "Abs",
        "pi",
        "E",
    ]
)
_ARITHMETIC_TEXT = re.compile(r"[0-9+\-*/().\s]{1,500}")
_ALGEBRA_TEXT = re.compile(r"[0-9A-Za-z+\-*/^().\s]{1,2000}")
_NAME = re.compile(r"[A-Za-z]+[0-9]*")
_BIG_POWER = re.compile(r"\*\*\s*\(?\s*-?\s*\d{4,}|\*\*[^+\-*/]*\*\*")

_TUPLES = frozenset({"arc_agi", "rearc"})
"""Datasets whose scorers compare with tuples, which JSON does not have."""


def prepare() -> None:
    """Import the package once, before there are workers, and take `eval` away from it."""
    importlib.import_module("reasoning_gym")
    for name in _LITERALS:
        vars(importlib.import_module(name))["eval"] = ast.literal_eval


def score(job: dict[str, Any]) -> dict[str, Any]:
    """What the scorer of `job["dataset"]` says about an answer: `score`, or `rejected` with the reason.

    A scorer that fails on an answer although it can grade the row's own one has met an answer in the wrong form.
    """
    dataset, answer, entry = job["dataset"], job["answer"], job["entry"]
    if dataset in _TUPLES:
        entry = {**entry, "metadata": {**entry["metadata"], "output": _tuples(entry["metadata"]["output"])}}
    if reason := refused(dataset, answer):
        return {"score": 0.0, "rejected": reason}
    scorer = scorer_of(dataset)
    try:
        found = scorer(answer, entry)
    except Exception as problem:  # the boundary: a scorer of somebody else, given text of a model
        scorer(entry["answer"], entry)  # fails too when the row is at fault, and then this job does
        return {"score": 0.0, "rejected": f"the scorer cannot read it: {type(problem).__name__}"}
    value = float(found)
    return {"score": value if math.isfinite(value) else repr(value)}


def refused(dataset: str, answer: str) -> str | None:
    """Why an answer is not shown to the scorer; None when it may be."""
    if dataset in _ARITHMETIC:
        if not _ARITHMETIC_TEXT.fullmatch(answer) or _BIG_POWER.search(answer):
            return "not an arithmetic expression"
    elif dataset in _ALGEBRA:
        names = set(_NAME.findall(answer))
        plain = _ALGEBRA_TEXT.fullmatch(answer) and not re.search(r"\.\s*[A-Za-z]", answer)
        if not plain or _BIG_POWER.search(answer) or not all(len(name) == 1 or name in _FUNCTIONS for name in names):
            return "not an algebraic expression"
    return None


def scorer_of(dataset: str) -> Callable[[Any, dict[str, Any]], Any]:
    """The scorer of a dataset, ours where the package's own accepts anything."""
    if dataset == "game_of_life_halting":
        return _same_word
    scorer: Callable[[Any, dict[str, Any]], Any] = importlib.import_module("reasoning_gym").get_score_answer_fn(dataset)
    return scorer


def _same_word(answer: Any, entry: dict[str, Any]) -> float:
    """The package compares `bool("False")` with `bool("True")`, so that every text is right."""
    return float(str(answer).strip(" .'\"`").lower() == str(entry["answer"]).lower())


def _tuples(value: Any) -> Any:
    return tuple(_tuples(one) for one in value) if isinstance(value, list) else value
