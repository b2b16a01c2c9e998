"""Every generator of reasoning-gym runs by name, and plain answers get the score of the package's own scorer."""

import json

import pytest
import reasoning_gym

from resources_servers.reasoning_gym.names import DATASETS
from resources_servers.reasoning_gym.rows import make_rows
from resources_servers.reasoning_gym.scoring import prepare
from tests.sources.conftest import Evaluation, source

pytestmark = pytest.mark.filterwarnings(  # the package leaves files open
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
SCORED_BY_US = {"game_of_life_halting"}
"""The package gives every answer the full score there."""
NAMES = [name for name in source("reasoning_gym").runnable_ids if name not in SCORED_BY_US]


def test_right_answers_get_the_score_of_the_package(evaluation: Evaluation, tmp_path) -> None:
    """One row of each generator: its rows and its scorer agree with the package."""
    prepare()
    answers: dict[str, str] = {}
    expected: dict[str, float] = {}
    lines = []
    for name in NAMES:
        (row,) = make_rows({"id": name, "seed": 0, "size": 1, "arguments": {}})
        entry = reasoning_gym.create_dataset(name, seed=0, size=1)[0]
        answer = entry["answer"] if isinstance(entry["answer"], str) else "none"
        answers[row["responses_create_params"]["input"][0]["content"]] = f"<answer>{answer}</answer>"
        expected[name] = float(reasoning_gym.get_score_answer_fn(name)(answer, entry))
        lines.append(json.dumps(row))
    path = tmp_path / "answers.json"
    path.write_text(json.dumps(answers))

    env = {"GYM_TEST_POLICY": "answers", "GYM_TEST_ANSWERS": str(path)}
    records = evaluation.run_rows([f"reasoning_gym:{NAMES[0]}"], lines, **env)

    assert len(records) == len(NAMES) > 100
    rewards = {record["task_name"]: record["reward"] for record in records}
    assert {name: rewards[name] for name in NAMES} == pytest.approx(expected)


def test_a_name_makes_the_rows_of_its_generator_with_its_arguments(evaluation: Evaluation) -> None:
    """The package makes the rows in another process; the same name gives the same rows."""
    names = ["reasoning_gym:chain_sum?size=3&min_terms=4&max_terms=4&seed=5"]
    records = evaluation.run(names)
    dataset = reasoning_gym.create_dataset("chain_sum", seed=5, size=3, min_terms=4, max_terms=4)

    assert [record["question"] for record in records] == [dataset[number]["question"] for number in range(3)]
    assert [record["reward"] < 1 for record in records] == [True] * 3


def test_the_list_of_ids_is_that_of_the_package() -> None:
    """A new release of the package must not leave the list behind."""
    assert set(source("reasoning_gym").ids) == DATASETS
    assert set(reasoning_gym.factory.DATASETS) == set(DATASETS)
