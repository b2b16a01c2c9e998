"""Run the scorer of a task in a worker process, without ever evaluating the answer of a model.

Some scorers of the package call `eval` on the answer or pass it to a parser that does. `eval` is replaced by a function
that reads literals only, and only arithmetic or algebraic expressions reach the parser.
"""

import ast
import importlib
import math
import re
import unicodedata
from collections.abc import Callable
from itertools import accumulate
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
"""Datasets whose scorers pass the answer to sympy's parser, which evaluates Python."""

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
_TWO_SIGNS = re.compile(r"\s*[-+−]\s*[-+−][-+−\s]*[\d.]")
_BIG_POWER = re.compile(r"\*\*\s*\(?\s*-?\s*\d{4,}|\*\*[^+\-*/]*\*\*")

_CONTENT = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo", "Nd", "Nl", "No", "So"})
"""Unicode categories of letters, digits and pictures; the other characters around an answer are decoration."""

_NOT_UNITS = re.compile(
    r"or|and|not|nor|no|to|vs|than|maybe|zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|dozen"
    r"|\w+teen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred|thousand|[mb]illion|half|third|quarter|twice"
)
"""Words after a number that are no unit: they change the number or begin another one."""

_CANDIDATES = frozenset({"or", "either", "alternatively", "otherwise", "maybe", "perhaps", "possibly", "versus", "vs"})
"""Words that join several candidates."""
_EMPTY = re.compile(r"\\(?:[dt]?frac|text|math[a-z]{2,4}|boxed|left|right|cdot|times|quad)(?![a-z])|(?<=\w)\.0+(?!\d)")
"""What is not part of what an answer says: LaTeX commands, and zeros after a decimal point."""

_PLANS = frozenset({"jugs", "knight_swap", "tower_of_hanoi"})
"""Datasets of which a right answer may be longer than that of the row: more moves."""

_TUPLES = frozenset({"arc_agi", "rearc"})
"""Datasets whose scorers compare with tuples, which JSON does not have."""


def prepare() -> None:
    """Import the package once, before the workers start, and replace its `eval`."""
    importlib.import_module("reasoning_gym")
    for name in _LITERALS:
        vars(importlib.import_module(name))["eval"] = ast.literal_eval


def score(job: dict[str, Any]) -> dict[str, Any]:
    """Score an answer with the scorer of `job["dataset"]`; `rejected` is the reason for a zero without a score.

    If the scorer fails on an answer but can grade the answer of the row, the answer has the wrong form.
    """
    dataset, answer, entry = job["dataset"], job["answer"], job["entry"]
    if dataset in _TUPLES:
        entry = {**entry, "metadata": {**entry["metadata"], "output": _as_tuples(entry["metadata"]["output"])}}
    if reason := rejection_reason(dataset, answer) or hedge_reason(answer, entry["answer"], dataset):
        return {"score": 0.0, "rejected": reason}
    scorer = find_scorer(dataset)
    try:
        points = scorer(answer, entry)
    except Exception as problem:  # the boundary: third-party code that reads text of a model
        scorer(entry["answer"], entry)  # if this fails too, the row is at fault and the job fails
        return {"score": 0.0, "rejected": f"the scorer cannot read it: {type(problem).__name__}"}
    value = float(points)
    if has_answer_inside(answer, entry["answer"]) and (value < 1 or is_other_number(answer, entry["answer"])):
        return {"score": 0.0, "rejected": "it contains the answer as a part of another one"}
    if 0 < value < 1 and dataset not in _PLANS and has_more_words(answer, entry["answer"]):
        return {"score": 0.0, "rejected": "it is wrong and has more words than the answer"}
    return {"score": value if math.isfinite(value) else repr(value)}


def rejection_reason(dataset: str, answer: str) -> str | None:
    """Return the reason why an answer must not reach the scorer; None if it may."""
    if dataset in _ARITHMETIC:
        if not _ARITHMETIC_TEXT.fullmatch(answer) or _BIG_POWER.search(answer):
            return "not an arithmetic expression"
    elif dataset in _ALGEBRA:
        names = set(_NAME.findall(answer))
        has_valid_form = _ALGEBRA_TEXT.fullmatch(answer) and not re.search(r"\.\s*[A-Za-z]", answer)
        if (
            not has_valid_form
            or _BIG_POWER.search(answer)
            or not all(len(name) == 1 or name in _FUNCTIONS for name in names)
        ):
            return "not an algebraic expression"
    elif dataset == "sokoban" and (re.search(r"[/|;]", answer) or set("".join(_content_words(answer))) - set("lrud")):
        return "not a list of moves"  # the scorer ignores everything else
    return None


def hedge_reason(answer: str, oracle: str | None, dataset: str = "") -> str | None:
    """Return the reason why an answer that names candidates is refused; None if it names one.

    Many scorers of the package pay a text in which the right answer stands among others ("3 or 4"). Spaces, punctuation
    and case do not count. A unit after a number is allowed, and so are zeros after its decimal point.
    """
    if not oracle:
        return None
    if _TWO_SIGNS.match(answer) and not _TWO_SIGNS.match(oracle):
        return "it is a number with two signs"
    words, right = _content_words(answer), _content_words(oracle)
    if _CANDIDATES & set(words) - set(right):
        return "it names several candidates"
    if dataset in _PLANS | _ARITHMETIC | _ALGEBRA and _find_whole(_fold(oracle), _fold(answer)) is None:
        return None
    position = _find_words(right, words)
    has_more = position is not None and len(position) < len(words) and not _is_number_with_unit(right, words)
    return "it contains more than the answer" if has_more else None


def has_more_words(answer: str, oracle: str | None) -> bool:
    """Return whether an answer says more than the right one, so that a part of it may be another candidate."""
    words, right = _content_words(answer), _content_words(oracle or "")
    is_longer = len(words) > len(right) and len("".join(words)) > len("".join(right))
    return bool(right) and is_longer and not _is_number_with_unit(right, words)


def _is_number_with_unit(right: list[str], words: list[str]) -> bool:
    """Return whether the words are the right answer, without letters, and one more word."""
    unit = words[-1] if words else ""
    is_right = "".join(words[:-1]) == "".join(right) and not any(map(str.isalpha, "".join(right)))
    return is_right and unit.isalpha() and not _NOT_UNITS.fullmatch(unit)


def _find_words(right: list[str], words: list[str]) -> range | None:
    """Find the words that make up the right answer, whatever stands between them; None without content."""
    target, text = "".join(right), "".join(words)
    edges = dict(zip(accumulate(map(len, words), initial=0), range(len(words) + 1), strict=True))
    start = text.find(target) if target else -1
    while start >= 0:
        if start in edges and start + len(target) in edges:
            return range(edges[start], edges[start + len(target)])
        start = text.find(target, start + 1)
    return None


def has_answer_inside(answer: str, oracle: str | None) -> bool:
    """Return whether an answer contains the right one only inside a longer number or word, as 16 and -6 contain 6.

    Many scorers of the package pay such an answer by the share of its length.
    """
    if not oracle:
        return False
    text, right = _fold(answer), _fold(oracle)
    return right in text and _find_whole(right, text) is None


def is_other_number(answer: str, oracle: str) -> bool:
    """Return whether the right answer is a number and the given one is not that number."""
    try:
        right = float(oracle)
    except ValueError:
        return False
    try:
        return not math.isclose(float(answer), right, rel_tol=1e-9)
    except ValueError:
        return True


def _fold(text: str) -> str:
    return " ".join(text.lower().split())


def _find_whole(right: str, text: str) -> re.Match[str] | None:
    """Find the right answer in a text, but not inside a longer number or word."""
    sign = r"(?<![-−+])" if right[0].isdigit() or right[0] == "." else ""
    return re.search(rf"(?<![\w.,]){sign}{re.escape(right)}(?!\w|%|[.,/:^]\d)", text)


def _content_words(text: str) -> list[str]:
    """Return the words of a text in their simplest form, without decoration between and inside them."""
    plain = unicodedata.normalize("NFKD", _EMPTY.sub(" ", text)).casefold()
    return "".join(c if unicodedata.category(c) in _CONTENT else " " for c in plain).split()


def find_scorer(dataset: str) -> Callable[[Any, dict[str, Any]], Any]:
    """Return the scorer of a dataset; ours where that of the package accepts anything."""
    if dataset == "game_of_life_halting":
        return _compare_words
    scorer: Callable[[Any, dict[str, Any]], Any] = importlib.import_module("reasoning_gym").get_score_answer_fn(dataset)
    return scorer


def _compare_words(answer: Any, entry: dict[str, Any]) -> float:
    """Compare words: the package compares `bool("False")` with `bool("True")`, so that every text is right."""
    return float(str(answer).strip(" .'\"`").lower() == str(entry["answer"]).lower())


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(one) for one in value) if isinstance(value, list) else value
