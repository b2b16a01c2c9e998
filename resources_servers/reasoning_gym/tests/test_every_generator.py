"""Test every generator of the package: its answer scores full here, and no answer is evaluated."""

import importlib
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.workers.pool import WorkerPool, WorkerReply, WorkerResult
from resources_servers.reasoning_gym.app import WORK
from resources_servers.reasoning_gym.generate import rows
from resources_servers.reasoning_gym.names import DATASETS
from resources_servers.reasoning_gym.scoring import hedge_reason, rejection_reason

pytestmark = pytest.mark.skipif(importlib.util.find_spec("reasoning_gym") is None, reason="needs reasoning-gym")

NO_ANSWER = {
    "composite": "is made of other datasets, whose names its rows carry",
    "boxnet": "comes without an answer; a plan for the robots has to be found",
    "rush_hour": "comes without an answer; the moves have to be found",
}
"""Generators without an answer, and the reason."""
IN_METADATA = {
    "graph_color": "possible_answer",
    "propositional_logic": "example_answer",
    "rubiks_cube": "example_correct_answer",
}
"""Fields of the metadata where some generators put an example of a right answer."""
EVALUATING = (
    "string_insertion",
    "spiral_matrix",
    "number_sorting",
    "binary_matrix",
    "n_queens",
    "countdown",
    "puzzle24",
    "simple_integration",
    "intermediate_integration",
    "polynomial_multiplication",
)
"""Datasets whose scorers in the package evaluate the answer."""


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(WORK, size=2, cpu_seconds=10.0, memory_bytes=4 << 30) as workers:
        yield workers


def own_answer(row: dict[str, Any]) -> str:
    name = row["metadata"]["source_dataset"]
    answer = row["metadata"][IN_METADATA[name]] if name in IN_METADATA else row["answer"]
    return answer if isinstance(answer, str) else json.dumps(answer)


def job(row: dict[str, Any], answer: str) -> dict[str, Any]:
    entry = {key: row[key] for key in ("question", "answer", "metadata")}
    return {"dataset": row["metadata"]["source_dataset"], "answer": answer, "entry": entry}


def finished_value(result: WorkerReply) -> dict[str, Any]:
    assert isinstance(result, WorkerResult), result
    return dict(result.value)


def test_the_list_of_datasets_is_that_of_the_package() -> None:
    """A missing dataset cannot be used, and a superfluous one fails only when it is used."""
    assert set(importlib.import_module("reasoning_gym.factory").DATASETS) == DATASETS


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the package leaves files open
def test_the_answer_of_every_generator_scores_full(pool: WorkerPool) -> None:
    """Rows pass through JSON, which has neither tuples nor numpy; scorers must accept them all the same."""
    tasks = {name: rows(1, seed=4, datasets=(name,))[0] for name in sorted(DATASETS - set(NO_ANSWER))}

    running = {name: pool.submit(job(row, own_answer(row))) for name, row in tasks.items()}
    scores = {name: finished_value(future.result()) for name, future in running.items()}

    assert {name: score for name, score in scores.items() if score["score"] != 1.0} == {}
    assert len(scores) == 103


HEDGES = (
    "{right} or {wrong}",
    "{wrong}\n{right}",
    "{right}.0 / {wrong}",
    "**{first}**{rest} | {wrong}",
    "({right}); {wrong}",
    "{first}\u200b{rest} ({wrong})",
    "{right}.00 maybe {wrong}",
    "{tight}; {wrong}",
)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_hedge_pays_no_more_than_its_wrong_half(pool: WorkerPool) -> None:
    """Several candidates in one answer must not collect the reward of the right one, however it is spelt."""
    running = {}
    for name in sorted(DATASETS - set(NO_ANSWER) - set(IN_METADATA)):
        row, other = rows(2, seed=9, datasets=(name,))
        right, wrong = own_answer(row), own_answer(other)
        parts = {"first": right[:1], "rest": right[1:], "tight": right.replace(", ", ",")}
        hedges = [form.format(right=right, wrong=wrong, **parts) for form in HEDGES]
        running[name] = [pool.submit(job(row, answer)) for answer in (wrong, *hedges)]
    scores = {
        name: [finished_value(future.result())["score"] for future in futures] for name, futures in running.items()
    }

    assert {name: points for name, points in scores.items() if max(points[1:]) > max(points[0], 0.05)} == {}


@pytest.mark.parametrize(
    ("answer", "oracle", "is_refused"),
    [
        ("17", "17", False),
        (" 17 ", "17", False),
        ("17 euros", "17", False),
        ("$17", "17", False),
        ("17.0", "17", False),
        ("170", "17", False),
        ("17 18", "17", True),
        ("not 17, or 17 then", "17", True),
        ("Knave, I think", "knave", True),
        ("**knave**", "knave", False),
        ("**k**nave / knight", "knave", True),
        ("kna-ve knight", "knave", True),
        ("a,b,c or c,b,a", "a, b, c", True),
        ("a,b,c", "a, b, c", False),
        ("\\frac{3}{4}", "3/4", False),
        ("\\frac{3}{4}, 1", "3/4", True),
        ("either knight or spy", "knave", True),
        ("now or never", "now or never", False),
        ("07:30", "7:30", False),
        ("05:07:13.0", "05:07:13", False),
        ("17.0 euros", "17", False),
        ("[1, 2.0]", "[1, 2]", False),
        ("ｋnave knight", "knave", True),
        ("anything", None, False),
        ("--418", "-418", True),
        ("- -418", "-418", True),
        ("-418", "-418", False),
    ],
)
def test_an_answer_may_not_contain_more_than_the_right_one(answer: str, oracle: str | None, is_refused: bool) -> None:
    """Units and decoration are harmless; a second candidate is not."""
    assert (hedge_reason(answer, oracle) is not None) is is_refused


def test_a_wrong_answer_with_more_words_than_the_right_one_earns_nothing(pool: WorkerPool) -> None:
    """Scorers that compare letters pay for each of several candidates that is nearly right."""
    row = rows(1, seed=4, datasets=("spell_backward",))[0]
    near = f"{row['answer'][:-1]}?"

    scores = [finished_value(pool.run(job(row, answer)))["score"] for answer in (near, f"{near} {near} abc")]

    assert scores[0] > 0.0
    assert scores[1] == 0.0


def test_only_moves_solve_sokoban(pool: WorkerPool) -> None:
    """The scorer of the package ignores every other character."""
    row = rows(1, seed=4, datasets=("sokoban",))[0]
    right = row["answer"]

    scores = [
        finished_value(pool.run(job(row, answer)))["score"] for answer in (f"0{right} / 1", f"[{', '.join(right)}]")
    ]

    assert scores == [0.0, 1.0]


def test_a_task_without_an_answer_gives_no_reward_for_words(pool: WorkerPool) -> None:
    """A row without an answer must not accept everything."""
    for name in ("boxnet", "rush_hour"):
        row = rows(1, seed=4, datasets=(name,))[0]
        assert finished_value(pool.run(job(row, "I give up")))["score"] <= 0.01


@pytest.mark.parametrize("name", EVALUATING)
def test_an_answer_is_never_evaluated(pool: WorkerPool, tmp_path: Path, name: str) -> None:
    """The scorers of the package would run code of the model in our process."""
    row = rows(1, seed=4, datasets=(name,))[0]
    forged = "__import__('builtins').exit(0)"
    signal = "[c for c in ().__class__.__base__.__subclasses__()]"
    touched = tmp_path / "evaluated"

    answers = [f"__import__('pathlib').Path({str(touched)!r}).touch()", forged, signal, f"open({str(touched)!r}, 'w')"]
    scores = [finished_value(pool.run(job(row, answer)))["score"] for answer in answers]

    assert max(scores) <= 0.01
    assert not touched.exists()


def test_code_that_computes_the_answer_is_not_the_answer(pool: WorkerPool) -> None:
    """The scorers of the package evaluate such code and accept it."""
    inserted, spiral = (rows(1, seed=4, datasets=(name,))[0] for name in ("string_insertion", "spiral_matrix"))
    numbers = [int(number) for number in spiral["answer"].split()]

    listed, worked_out = f"list({inserted['answer']!r})", f"[int(n) for n in {spiral['answer']!r}.split()]"
    code = [job(inserted, listed), job(spiral, worked_out)]
    literals = [job(inserted, repr(list(inserted["answer"]))), job(spiral, repr(numbers))]

    assert [finished_value(pool.run(one))["score"] < 0.9 for one in code] == [True, True]
    assert [finished_value(pool.run(one))["score"] > 0 for one in literals] == [True, True]


@pytest.mark.parametrize(
    ("name", "answer", "is_allowed"),
    [
        ("countdown", "(3 + 4) * 12 - 7/2", True),
        ("countdown", "x + 1", False),
        ("countdown", "9**9**9", False),
        ("countdown", "2**99999", False),
        ("puzzle24", "eval(1)", False),
        ("simple_integration", "2*X**3/3 + sin(2*X) + C", True),
        ("simple_integration", "exp(x)*log(x) + 0.5*x**2", True),
        ("simple_integration", "x.subs(1)", False),
        ("simple_integration", "x. __class__", False),
        ("simple_integration", "lambda: 1", False),
        ("polynomial_multiplication", "6*x**2*y - 12*z + 5", True),
        ("polynomial_multiplication", "print(1)", False),
        ("chain_sum", "anything", True),
    ],
)
def test_only_simple_expressions_reach_a_parser(name: str, answer: str, is_allowed: bool) -> None:
    """The parser of sympy evaluates its input as Python."""
    assert (rejection_reason(name, answer) is None) is is_allowed


def test_an_answer_that_the_scorer_cannot_read_is_wrong(pool: WorkerPool) -> None:
    """The answer is at fault if the scorer can grade the answer of the row."""
    row = rows(1, seed=4, datasets=("prime_factorization",))[0]

    score = finished_value(pool.run(job(row, "two and three")))

    assert score["score"] == 0.0
    assert "ValueError" in score["rejected"]


def test_a_scorer_that_fails_on_the_answer_of_the_row_is_a_failure(pool: WorkerPool) -> None:
    """The row is at fault, so the rollout must not have a reward."""
    row = {**rows(1, seed=4, datasets=("prime_factorization",))[0], "answer": "broken"}
    row["metadata"] = {"source_dataset": "prime_factorization"}

    result = pool.run(job(row, "two and three"))

    assert getattr(result, "kind", None) == "crash"


@pytest.mark.parametrize(("answer", "score"), [("True", 1.0), ("False", 0.0), ("true.", 1.0), ("anything", 0.0)])
def test_halting_is_decided_by_the_word(pool: WorkerPool, answer: str, score: float) -> None:
    """The scorer of the package accepts every text."""
    row = {**rows(1, seed=4, datasets=("game_of_life_halting",))[0], "answer": "True"}

    assert finished_value(pool.run(job(row, answer)))["score"] == score
