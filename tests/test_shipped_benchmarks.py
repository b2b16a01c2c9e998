"""The shipped benchmarks are reproducible and cannot be solved by cheats."""

from collections import Counter

import pytest

from benchmarks.arithmetic_suite import prepare as arithmetic_suite
from benchmarks.general_knowledge import prepare as general_knowledge
from nemo_gym.benchmarks import discover_benchmarks
from nemo_gym.config.search_roots import PARENT_DIR
from resources_servers.arithmetic.app import last_number


def question_text(row):
    return row["responses_create_params"]["input"][-1]["content"]


def test_both_are_found_by_name():
    """`--benchmark` and `gym list benchmarks` use these names."""
    benchmarks = discover_benchmarks([PARENT_DIR])

    assert {"arithmetic_suite", "general_knowledge"} <= benchmarks.keys()


@pytest.mark.parametrize("rows", [arithmetic_suite.rows, general_knowledge.rows])
def test_rows_depend_on_the_seed_alone(rows):
    """Scores are comparable only if they come from the same questions."""
    assert rows(seed=3) == rows(seed=3)
    assert rows(seed=3) != rows(seed=4)
    assert len({question_text(row) for row in rows()}) == len(rows())


def test_the_oracle_scores_and_an_echo_of_the_question_does_not():
    """The verifier reads the last number, so the question must not end with its answer."""
    rows = arithmetic_suite.rows(per_kind=20, seed=1)

    assert all(last_number(f"So the result is {row['expected_answer']}.") == row["expected_answer"] for row in rows)
    assert not [row for row in rows if last_number(question_text(row)) == row["expected_answer"]]


def test_the_suite_has_equally_many_questions_of_every_kind():
    """Scores by operation and level have the same weight."""
    rows = arithmetic_suite.rows()

    assert set(Counter((row["operation"], row["level"]) for row in rows).values()) == {10}
    assert len(rows) == 180


@pytest.mark.parametrize("operation", arithmetic_suite.OPERATIONS)
def test_answers_are_what_python_computes(operation):
    """Question and answer are generated together, so a bug could make both wrong in the same way."""
    for row in arithmetic_suite.rows(per_kind=5, seed=2):
        if row["operation"] != operation.__name__:
            continue
        text = question_text(row).split("?")[0].removeprefix("What is ")
        if "remainder" in text:
            words = text.split()
            value = int(words[words.index("when") + 1]) % int(words[-1])
        else:
            value = eval(text, {"__builtins__": {}})  # digits and operators we wrote ourselves
        assert value == row["expected_answer"]


def test_too_many_questions_are_an_error():
    """The generator must not search without end."""
    with pytest.raises(ValueError, match="addition at level 1 does not have that many different questions"):
        arithmetic_suite.rows(per_kind=1000)


def test_no_letter_is_right_more_often_than_another():
    """A constant answer must not score more than a quarter."""
    rows = general_knowledge.rows()

    assert Counter(row["expected_answer"] for row in rows) == dict.fromkeys("ABCD", 15)
    assert set(Counter(row["topic"] for row in rows).values()) == {10}


def test_the_expected_letter_is_that_of_the_right_option():
    """Shuffling the options must move the expected answer with them."""
    sources = {row["question"]: row["answer"] for row in general_knowledge.questions()}
    for row in general_knowledge.rows(seed=9):
        question = question_text(row).split("\n")[0]

        assert row["options"][row["expected_answer"]] == sources[question]
        assert len(set(row["options"].values())) == 4
