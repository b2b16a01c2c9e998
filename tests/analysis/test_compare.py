"""The comparison of runs says which is better, which tasks flipped, and whether the runs may be compared."""

from typing import Any

import pytest

from nemo_gym.analysis.comparability import run_differences
from nemo_gym.analysis.compare import RunScores, compare_many, compare_two

IDENTITY: dict[str, Any] = {
    "rows": "blake2b:1",
    "plan": {"responses_create_params": {"temperature": 0.7}, "prompt": None},
    "servers": {"math.math_server.tolerance": 0.1, "policy_model.openai_model.model": "small"},
    "code": {"nemo-gym": "1.0", "resources_servers/math_server": "aa", "responses_api_models/openai_model": "bb"},
}


def scores(name: str, rewards: dict[int, float], **facts: Any) -> RunScores:
    """Scores of a run with one repeat of each task."""
    return RunScores(name, rewards, dict.fromkeys(rewards, 1), **facts)


def other_identity(**parts: Any) -> dict[str, Any]:
    """The identity with other values."""
    return {**IDENTITY, **parts}


def test_a_clear_improvement_is_said_in_a_sentence() -> None:
    """The first line of the page answers the question."""
    first = scores("a", {task: float(task % 4 == 0) for task in range(40)})
    second = scores("b", {task: float(task % 2 == 0) for task in range(40)})

    result = compare_two(first, second)

    assert result["verdict"] == "better"
    assert result["sentence"].startswith("B is better by 25.0 points, 95 % CI ")
    assert result["sentence"].endswith("10 tasks flipped up, 0 down.")
    assert (result["flips"]["up"], result["flips"]["down"], result["better"], result["worse"]) == (10, 0, 10, 0)


def test_a_worse_run_is_worse_by_a_positive_amount() -> None:
    """`worse by −25 points` would be read as better."""
    first = scores("a", {task: float(task % 2 == 0) for task in range(40)})
    second = scores("b", {task: float(task % 4 == 0) for task in range(40)})

    sentence = compare_two(first, second)["sentence"]

    assert sentence.startswith("B is worse by 25.0 points, 95 % CI ")
    assert "−" not in sentence


def test_a_difference_within_chance_is_not_called_better() -> None:
    """Two tasks more of forty are noise."""
    first = scores("a", {task: float(task < 20) for task in range(40)})
    second = scores("b", {task: float(task < 19 or task in (30, 31)) for task in range(40)})

    result = compare_two(first, second)

    assert result["verdict"] == "no clear change"
    assert result["sentence"].startswith("No clear difference: B − A is +2.5 points")


def test_runs_without_a_common_task_are_not_compared() -> None:
    """A mean over no task is no number."""
    result = compare_two(scores("a", {1: 1.0}), scores("b", {2: 1.0}))

    assert result["sentence"] == "Not comparable: no task is scored in both runs."
    assert (result["tasks"], result["only_first"], result["only_second"], result["comparable"]) == (0, 1, 1, False)


@pytest.mark.parametrize(
    ("other", "kind", "words"),
    [
        (other_identity(rows="blake2b:2"), "data", "the input rows differ"),
        (
            other_identity(servers={**IDENTITY["servers"], "math.math_server.tolerance": 0.2}),
            "verifier",
            "math.tolerance",
        ),
        (
            other_identity(code={**IDENTITY["code"], "resources_servers/math_server": "cc"}),
            "verifier",
            "its code changed",
        ),
    ],
)
def test_other_data_or_another_verifier_is_not_comparable(other: dict[str, Any], kind: str, words: str) -> None:
    """The rewards measure different things, so their difference means nothing."""
    rewards = {task: float(task % 2) for task in range(20)}

    result = compare_two(scores("a", rewards, identity=IDENTITY), scores("b", rewards, identity=other))

    assert not result["comparable"]
    assert result["sentence"].startswith("Not comparable: ") and words in result["sentence"]
    assert result["differences"][0]["kind"] == kind and result["differences"][0]["breaking"]


def test_no_subset_is_called_better_in_runs_that_are_not_comparable() -> None:
    """`Clearly better in hard` below `Not comparable` would be believed."""
    subsets = {"difficulty": {task: "hard" if task % 2 else "easy" for task in range(60)}}
    first = scores("a", dict.fromkeys(range(60), 0.0), identity=IDENTITY, subsets=subsets)
    second = scores("b", dict.fromkeys(range(60), 1.0), identity=other_identity(rows="blake2b:2"), subsets=subsets)

    result = compare_two(first, second)

    assert "better" not in result["details"]
    assert {result["verdict"], *(row["verdict"] for row in result["subsets"])} == {"no clear change"}


def test_the_second_sentence_names_groups_and_counts_the_rest() -> None:
    """`hard` alone may be a difficulty or a level; `hard ….` may be the end or not."""
    subsets = {f"level{number}": {task: "x" if task % 2 else "y" for task in range(60)} for number in range(3)}
    first = scores("a", {task: 0.1 * (task % 2) for task in range(60)}, subsets=subsets)
    second = scores("b", dict.fromkeys(range(60), 1.0), subsets=subsets)

    details = compare_two(first, second)["details"]

    assert "Clearly better in level0 x, level0 y, level1 x, level1 y and 2 more." in details


@pytest.mark.parametrize(
    ("other", "kind", "text"),
    [
        (other_identity(plan={"responses_create_params": {"temperature": 1.0}}), "sampling", "temperature: 0.7 → 1.0"),
        (other_identity(plan={**IDENTITY["plan"], "prompt": {"user": "{q}"}}), "prompt", "the prompt differs"),
        (
            other_identity(servers={**IDENTITY["servers"], "policy_model.openai_model.model": "large"}),
            "model",
            "policy_model.model: small → large",
        ),
        (other_identity(code={**IDENTITY["code"], "nemo-gym": "2.0"}), "code", "nemo-gym: 1.0 → 2.0"),
    ],
)
def test_what_may_be_the_question_is_listed_and_still_compared(other: dict[str, Any], kind: str, text: str) -> None:
    """Users compare models, prompts and sampling on purpose; a forgotten second change must not stay hidden."""
    (difference,) = run_differences(IDENTITY, other)

    assert (difference.kind, difference.text, difference.is_breaking) == (kind, text, False)


def test_an_unknown_identity_hides_no_comparison() -> None:
    """Files of other tools have no identity."""
    assert run_differences({}, IDENTITY) == []


def test_subsets_are_corrected_for_their_number() -> None:
    """Of twenty subsets one looks clear by chance."""
    tasks = range(60)
    groups = {"difficulty": {task: ("easy", "hard", "odd")[task % 3] for task in tasks}}
    first = scores("a", dict.fromkeys(tasks, 0.0), subsets=groups)
    second = scores("b", {task: float(task % 3 == 1) for task in tasks}, subsets=groups)

    rows = {row["value"]: row for row in compare_two(first, second)["subsets"]}

    assert rows["hard"]["verdict"] == "better" and rows["easy"]["verdict"] == "no clear change"
    assert all(row["p_corrected"] >= row["p"] for row in rows.values())
    assert rows["hard"]["tasks"] == 20 and rows["hard"]["means"] == [0.0, 1.0]


def test_costs_are_relative_and_shares_in_points() -> None:
    """From 1 % to 2 % failures is one point, not 100 %."""
    first = scores("a", {0: 1.0}, facts={"dollars": 0.5, "failed": 0.01, "turns": 2.0})
    second = scores("b", {0: 1.0}, facts={"dollars": 0.6, "failed": 0.02})

    costs = {row["name"]: row for row in compare_two(first, second)["costs"]}

    assert costs["dollars"]["change"] == pytest.approx(0.2)
    assert costs["failed"]["change"] == pytest.approx(0.01)
    assert "turns" not in costs, "a fact that one run lacks cannot be compared"


def test_several_runs_are_compared_with_the_first() -> None:
    """The more runs, the more likely one looks better by chance: p values are corrected."""
    base = {task: float(task % 2) for task in range(60)}
    better = {task: float(task % 2 or task % 4 == 0) for task in range(60)}

    result = compare_many([scores("a", base), scores("b", better), scores("c", base)])

    assert [row.get("verdict") for row in result["runs"]] == [None, "better", "no clear change"]
    assert result["sentence"] == "Against A: B is better by 25.0 points; C shows no clear change."
    assert result["runs"][1]["p_corrected"] >= result["runs"][1]["p"]


def test_stored_records_give_the_same_scores() -> None:
    """Other commands have records instead of an index; a failure is never a reward."""
    records = [
        {"_ng_task_index": 0, "_ng_rollout_index": 0, "reward": 1.0},
        {"_ng_task_index": 0, "_ng_rollout_index": 1, "reward": 0.0},
        {"_ng_task_index": 1, "_ng_rollout_index": 0, "_ng_failure_class": "timeout"},
    ]

    run = RunScores.from_records("a", records)

    assert (dict(run.means), dict(run.counts)) == ({0: 0.5}, {0: 2})


def test_many_different_means_are_drawn_on_a_grid() -> None:
    """A million tasks must not become a million marks."""
    first = scores("a", {task: task / 2000 for task in range(2000)})
    second = scores("b", {task: ((task * 7) % 2000) / 2000 for task in range(2000)})

    points = compare_two(first, second)["scatter"]

    assert len(points) <= 21 * 21
    assert sum(point["count"] for point in points) == 2000
    assert points[0]["task"] == 0 and all(0 <= point["task"] < 2000 for point in points)


def test_no_interval_leaves_the_scale_of_the_rewards() -> None:
    """A difference of more than 100 points cannot be."""
    first = scores("a", {task: float(task < 4) for task in range(12)})
    second = scores("b", {task: float(task != 1) for task in range(12)})

    result = compare_two(first, second)

    assert result["interval_95"][1] == 1.0
    assert "– 100.0; 8 tasks flipped up, 1 down." in result["sentence"]


def test_other_rows_of_the_same_file_can_be_compared() -> None:
    """A run with --limit 10 and one of the whole file have the same tasks under the same numbers."""
    source = {"name": "x.jsonl", "size": 9, "modified_ns": 1}
    first, second = other_identity(input=source), other_identity(input=source, rows="blake2b:2")
    other_file = other_identity(input={**source, "size": 10}, rows="blake2b:2")
    rewards = dict.fromkeys(range(4), 1.0)

    result = compare_two(scores("a", rewards, identity=first), scores("b", rewards, identity=second))

    assert result["comparable"]
    assert [one["kind"] for one in result["differences"]] == ["selection"]
    assert not compare_two(scores("a", rewards, identity=first), scores("b", rewards, identity=other_file))[
        "comparable"
    ]


def test_rounding_is_no_difference() -> None:
    """Means of the same rewards differ in the last digit if the repeats ended in another order."""
    first = dict.fromkeys(range(20), (0.1 + 0.2 + 0.3) / 3)
    second = dict.fromkeys(range(20), (0.3 + 0.2 + 0.1) / 3)
    assert first != second

    result = compare_two(scores("a", first), scores("b", second))

    assert (result["better"], result["worse"], result["verdict"], result["p"]) == (0, 0, "no clear change", 1.0)


def test_masked_records_enter_no_comparison() -> None:
    """Their rewards measure nothing."""
    records = [{"_ng_task_index": task, "_ng_rollout_index": 0, "reward": 1.0} for task in range(2)]

    assert RunScores.from_records("a", [records[0], {**records[1], "mask_sample": True}]).means == {0: 1.0}
