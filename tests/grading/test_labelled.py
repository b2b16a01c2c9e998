"""The labelled choices and expected answers agree with their labels; misses are listed."""

import itertools
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from nemo_gym.grading.choices import compare_choice, extract_choice
from nemo_gym.grading.math import NeedsSymbols, compare_math, raise_needs_symbols
from nemo_gym.grading.result_types import ExtractedAnswer, VerdictKind

ROWS: list[dict[str, Any]] = [
    json.loads(line) for line in (Path(__file__).parent / "data" / "choices.jsonl").read_text("utf-8").splitlines()
]


def extract_option(row: dict[str, Any]) -> str | None:
    extraction = extract_choice(row["text"], row["options"], row.get("texts"))
    return extraction.value if isinstance(extraction, ExtractedAnswer) else None


def test_there_are_enough_labelled_choices_of_both_kinds() -> None:
    """A verifier is only as good as its labelled data."""
    assert len(ROWS) >= 200
    assert sum(row["reads"] is not None for row in ROWS) >= 80
    assert sum(row["reads"] is None for row in ROWS) >= 80


def test_no_reply_is_read_as_an_option_it_does_not_choose() -> None:
    """A letter picked out of prose is a reward for nothing."""
    wrong = [(row["text"], extract_option(row)) for row in ROWS if extract_option(row) not in (None, row["reads"])]

    assert wrong == []


def test_all_but_the_listed_choices_are_extracted() -> None:
    """The list of missed forms is published, so it has to be exact."""
    missed = [row["text"] for row in ROWS if row["reads"] is not None and extract_option(row) is None]

    assert missed == [row["text"] for row in ROWS if row.get("missed")]


def test_no_reply_scores_on_an_option_it_does_not_choose() -> None:
    """Against every possible gold: a reply scores for one option at most."""
    for row in ROWS:
        scores = [
            key
            for key in row["options"]
            if compare_choice(row["text"], key, row["options"], row.get("texts")).outcome is VerdictKind.CORRECT
        ]

        assert scores in ([], [row["reads"]]), row["text"]


def test_the_docs_list_every_answer_that_is_missed() -> None:
    """Users of a verifier must know its mistakes."""
    page = (Path(__file__).parents[2] / "docs" / "grading.md").read_text("utf-8")
    lines = (Path(__file__).parent / "data" / "math.jsonl").read_text("utf-8").splitlines()
    missed = [row["answer"] for row in map(json.loads, lines) if row.get("missed")]
    missed += [row["text"] for row in ROWS if row.get("missed")]

    assert [answer for answer in missed if f"`{answer}`".replace("|", "\\|") not in page] == []
    assert f"| mathematics | {len(lines)} |" in page
    assert f"| choices | {len(ROWS)} |" in page


SAME = [
    {"1/2", "50%", "0.5"},
    {r"\frac{1}{3}", "1/3"},
    {"12", r"12\text{ cm}^2"},
    {r"5\text{ cm}", r"\{5\}", "5"},
    {"3 hours", "x=3", "3"},
    {"2x+3", "y=2x+3"},
    {"(1,2)", "x=1, y=2", r"\begin{pmatrix}1\\2\end{pmatrix}"},
]
"""Expected answers of the labelled pairs that are one answer in several forms."""


def test_no_expected_answer_passes_for_another_one() -> None:
    """8,000 unselected pairs must be different; expressions are left to the workers."""
    lines = (Path(__file__).parent / "data" / "math.jsonl").read_text("utf-8").splitlines()
    golds = list(dict.fromkeys(json.loads(line)["gold"] for line in lines))
    equal_pairs = []
    for answer, gold in itertools.permutations(golds, 2):
        with suppress(NeedsSymbols):
            if compare_math(answer, gold, symbolic=raise_needs_symbols).correct:
                equal_pairs.append((answer, gold))

    assert [pair for pair in equal_pairs if not any(set(pair) <= same for same in SAME)] == []
    assert len(equal_pairs) >= 20
