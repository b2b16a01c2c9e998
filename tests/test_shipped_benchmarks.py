"""The benchmarks that come with the package: the same for everybody, and not to be had cheaply."""

from collections import Counter

import pytest

from benchmarks.arithmetic_suite import prepare as arithmetic_suite
from benchmarks.general_knowledge import prepare as general_knowledge
from nemo_gym.benchmarks import discover_benchmarks
from nemo_gym.catalog.roots import PARENT_DIR
from resources_servers.arithmetic.app import last_number


def asked(row):
    return row["responses_create_params"]["input"][-1]["content"]


def test_both_are_found_by_name():
    """What `--benchmark` takes and `gym list benchmarks` shows."""
    found = discover_benchmarks([PARENT_DIR])

    assert {"arithmetic_suite", "general_knowledge"} <= found.keys()


@pytest.mark.parametrize("rows", [arithmetic_suite.rows, general_knowledge.rows])
def test_rows_depend_on_the_seed_alone(rows):
    """Two people who compare scores have answered the same questions."""
    assert rows(seed=3) == rows(seed=3)
    assert rows(seed=3) != rows(seed=4)
    assert len({asked(row) for row in rows()}) == len(rows())


def test_every_calculation_is_graded_right_by_its_oracle_and_wrong_by_its_echo():
    """The expected answer is what the verifier reads, and never the last number of the question."""
    rows = arithmetic_suite.rows(per_kind=20, seed=1)

    assert all(last_number(f"So the result is {row['expected_answer']}.") == row["expected_answer"] for row in rows)
    assert not [row for row in rows if last_number(asked(row)) == row["expected_answer"]]


def test_the_suite_has_as_many_questions_of_every_kind():
    """A score by operation or by level means the same everywhere."""
    rows = arithmetic_suite.rows()

    assert set(Counter((row["operation"], row["level"]) for row in rows).values()) == {10}
    assert len(rows) == 180


@pytest.mark.parametrize("operation", arithmetic_suite.OPERATIONS)
def test_answers_are_what_python_computes(operation):
    """The generator builds the answer beside the text; here it is worked out from the text again."""
    for row in arithmetic_suite.rows(per_kind=5, seed=2):
        if row["operation"] != operation.__name__:
            continue
        text = asked(row).split("?")[0].removeprefix("What is ")
        if "remainder" in text:
            words = text.split()
            value = int(words[words.index("when") + 1]) % int(words[-1])
        else:
            value = eval(text, {"__builtins__": {}})  # digits and operators we wrote ourselves
        assert value == row["expected_answer"]


def test_more_questions_than_there_are_is_an_error_with_a_reason():
    """Not a loop without end."""
    with pytest.raises(ValueError, match="not so many different questions of addition at level 1"):
        arithmetic_suite.rows(per_kind=1000)


def test_no_letter_is_right_more_often_than_another():
    """Who always answers the same earns a quarter."""
    rows = general_knowledge.rows()

    assert Counter(row["expected_answer"] for row in rows) == dict.fromkeys("ABCD", 15)
    assert set(Counter(row["topic"] for row in rows).values()) == {10}


def test_the_right_option_is_where_the_answer_says():
    """Shuffling must carry the key along."""
    sources = {row["question"]: row["answer"] for row in general_knowledge.questions()}
    for row in general_knowledge.rows(seed=9):
        question = asked(row).split("\n")[0]

        assert row["options"][row["expected_answer"]] == sources[question]
        assert len(set(row["options"].values())) == 4
