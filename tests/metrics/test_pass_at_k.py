"""pass@k and its relatives give the numbers they promise."""

import itertools
import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.metrics.pass_at_k import (
    add_avg_sample_std_dev,
    compute_pass_majority_metrics,
    compute_subset_metrics,
    headline_metrics,
    highest_k_metrics,
    pass_at_k,
)

rewards = st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=7)


def task(*rewards, **fields):
    return [{"reward": reward, **fields} for reward in rewards]


@settings(max_examples=60, deadline=None)
@given(rewards, st.data())
def test_the_closed_form_is_what_trying_every_choice_of_k_gives(outcomes, data):
    """The estimator is only unbiased if it equals the average over all ways to draw k of n."""
    k = data.draw(st.integers(1, len(outcomes)))
    draws = list(itertools.combinations(outcomes, k))

    expected = sum(any(draw) for draw in draws) / len(draws)

    assert math.isclose(pass_at_k(len(outcomes), int(sum(outcomes)), k), expected, abs_tol=1e-12)


@pytest.mark.parametrize(("n", "correct", "k"), [(2, 3, 1), (2, -1, 1), (2, 1, 3), (2, 1, 0)])
def test_impossible_counts_are_refused(n, correct, k):
    """A number for 'best of five' out of three tries would be an invention."""
    with pytest.raises(ValueError, match="pass@k needs"):
        pass_at_k(n, correct, k)


def test_metrics_of_two_tasks_with_two_rollouts_each():
    """The whole answer, keys and order, for a case worked out by hand."""
    metrics, scores, names, max_k = compute_pass_majority_metrics([task(1.0, 0.0), task(0.0, 0.0)])

    assert metrics == {
        "pass@1/accuracy": 25.0,
        "pass@1[avg-of-1]/accuracy": 50.0,
        "pass@2/accuracy": 50.0,
        "pass@1[avg-of-2]/accuracy": 25.0,
        "per_sample_aggregate": {"accuracy": [50.0, 0.0]},
        "pass@1[avg-of-2]/accuracy/std_dev_across_runs": statistics.stdev([50.0, 0.0]),
        "pass@1[avg-of-2]/accuracy/std_err_across_runs": pytest.approx(25.0),
    }
    assert list(metrics)[:4] == [
        "pass@1/accuracy",
        "pass@1[avg-of-1]/accuracy",
        "pass@2/accuracy",
        "pass@1[avg-of-2]/accuracy",
    ]
    assert scores == [[{"accuracy": 1.0}, {"accuracy": 0.0}], [{"accuracy": 0.0}, {"accuracy": 0.0}]]
    assert (names, max_k) == (["accuracy"], 2)


@settings(max_examples=50, deadline=None)
@given(st.lists(rewards, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_tasks_changes_nothing(outcomes, random):
    """Rollouts finish in any order; a score that depends on it cannot be reproduced."""
    tasks = [task(*rewards) for rewards in outcomes]
    shuffled = random.sample(tasks, len(tasks))

    assert compute_pass_majority_metrics(tasks)[0] == compute_pass_majority_metrics(shuffled)[0]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.floats(-5, 5), min_size=3, max_size=3), min_size=1, max_size=6))
def test_averages_are_the_means_the_standard_library_gives(outcomes):
    """Graded rewards: avg-of-k is the mean over tasks of the mean of the first k."""
    metrics, _, _, max_k = compute_pass_majority_metrics([task(*rewards) for rewards in outcomes])

    for k in range(1, max_k + 1):
        expected = 100 * statistics.fmean(statistics.fmean(rewards[:k]) for rewards in outcomes)
        assert metrics[f"pass@1[avg-of-{k}]/accuracy"] == pytest.approx(expected, abs=1e-9)


def test_a_graded_score_passes_as_well_as_its_best_try():
    """There is no counting of right and wrong when rewards lie in between."""
    metrics = compute_pass_majority_metrics([task(0.2, 0.7, 0.5)])[0]

    assert [metrics[f"pass@{k}/accuracy"] for k in (1, 2, 3)] == [20.0, 70.0, 70.0]


def test_a_task_with_fewer_rollouts_enters_pass_at_k_only_where_it_has_enough():
    """Otherwise two tries would be sold as the best of three."""
    metrics = compute_pass_majority_metrics([task(0.0, 0.0), task(1.0, 1.0, 1.0)])[0]

    assert metrics["pass@2/accuracy"] == 50.0
    assert metrics["pass@3/accuracy"] == 100.0
    assert metrics["pass@1[avg-of-3]/accuracy"] == 50.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), None, "1.0"])
def test_a_score_that_is_no_number_enters_no_mean(bad):
    """One NaN in a mean makes the whole benchmark NaN."""
    metrics = compute_pass_majority_metrics([task(1.0, bad), task(0.0)])[0]

    assert metrics["pass@1/accuracy"] == 50.0
    assert "pass@2/accuracy" not in metrics


def test_a_failed_rollout_is_not_a_wrong_answer():
    """An outage must not lower a model's score."""
    failed = {"reward": 0.0, "_ng_failure_class": "judge_failed"}

    metrics, scores, _, max_k = compute_pass_majority_metrics([[*task(1.0), failed]])

    assert metrics["pass@1[avg-of-1]/accuracy"] == 100.0
    assert (scores, max_k) == ([[{"accuracy": 1.0}]], 1)


def test_majority_goes_with_the_most_frequent_answer():
    """Voting is scored by the answer that won, whatever the others were."""
    rollouts = [
        {"answer": "7", "reward": 0.0},
        {"answer": "8", "reward": 1.0},
        {"answer": "8", "reward": 1.0},
        {"answer": None, "reward": 0.0},
    ]

    metrics = compute_pass_majority_metrics([rollouts], answer_key="answer")[0]

    assert [metrics[f"majority@{k}/accuracy"] for k in (1, 2, 3, 4)] == [0.0, 50.0, 100.0, 100.0]
    assert metrics["pass@1[avg-of-4]/no_answer"] == 25.0


def test_no_answer_at_all_wins_nothing():
    """A task without any answer counts as lost, not as absent."""
    rollouts = [{"answer": None, "reward": 0.0}, {"answer": None, "reward": 0.0}]
    lists = [{"answer": [1], "reward": 1.0}, {"answer": [1], "reward": 1.0}]

    metrics = compute_pass_majority_metrics([rollouts, lists], answer_key="answer")[0]

    assert metrics["majority@2/accuracy"] == 50.0


def test_a_server_may_name_its_own_scores():
    """Truth values count 0 or 1, and every score has its own line."""

    def score(rollout):
        return {"strict": rollout["reward"] == 1.0, "loose": rollout["reward"] > 0}

    metrics, _, names, _ = compute_pass_majority_metrics([task(0.5), task(1.0)], score_fn=score)

    assert names == ["strict", "loose"]
    assert (metrics["pass@1/strict"], metrics["pass@1/loose"]) == (50.0, 100.0)


def test_no_tasks_give_no_metrics():
    """An empty run is reported as nothing, not as zero."""
    assert compute_pass_majority_metrics([]) == ({}, [], [], 0)
    assert compute_pass_majority_metrics([[]]) == ({}, [[]], [], 0)


def test_the_spread_within_tasks_is_added_in_place():
    """It tells a noisy model from hard tasks."""
    metrics, scores, names, max_k = compute_pass_majority_metrics([task(1.0, 0.0, 1.0), task(1.0, 1.0, 1.0)])

    add_avg_sample_std_dev(metrics, scores, names, max_k)

    first = [statistics.stdev([1.0, 0.0]), 0.0]
    assert metrics["pass@1[avg-of-2]/accuracy/avg_sample_std_dev"] == pytest.approx(100 * statistics.fmean(first))
    assert "pass@1[avg-of-1]/accuracy/avg_sample_std_dev" not in metrics


def test_each_subset_has_the_metrics_of_its_tasks():
    """Per-category scores are the same computation on fewer tasks."""
    tasks = [task(1.0, 1.0, kind="easy"), task(0.0, 1.0, kind="hard"), task(0.0, 0.0, kind=""), []]

    metrics = compute_subset_metrics(tasks, "kind")

    assert metrics["easy/pass@1[avg-of-2]/accuracy"] == 100.0
    assert metrics["hard/pass@1[avg-of-2]/accuracy"] == 50.0
    assert {name.split("/")[0] for name in metrics} == {"easy", "hard"}
    assert not [name for name in metrics if "per_sample_aggregate" in name]


def test_the_headline_is_the_metric_at_the_highest_k():
    """k is compared as a number: 10 beats 9."""
    metrics = {f"pass@1[avg-of-{k}]/{name}": float(k) for k in (1, 9, 10) for name in ("accuracy", "no_answer")}
    metrics |= {"pass@1[avg-of-10]/accuracy/std_dev_across_runs": 1.0, "pass@10/accuracy": 3.0, "mean/reward": 0.5}

    assert highest_k_metrics(metrics, "pass@{k}") == {"pass@10/accuracy": 3.0}
    assert highest_k_metrics(metrics, "pass@1[avg-of-{k}]") == {
        "pass@1[avg-of-10]/accuracy": 10.0,
        "pass@1[avg-of-10]/no_answer": 10.0,
    }
    assert list(highest_k_metrics(metrics, "pass@1[avg-of-{k}]", exclude_names=["no_answer"])) == [
        "pass@1[avg-of-10]/accuracy"
    ]
    assert list(highest_k_metrics(metrics, "pass@1[avg-of-{k}]", score_names=["no_answer"])) == [
        "pass@1[avg-of-10]/no_answer"
    ]
    assert highest_k_metrics({}, "majority@{k}") == {}
    with pytest.raises(ValueError, match=r"has no '\{k\}'"):
        highest_k_metrics(metrics, "pass@k")


def test_the_headline_of_an_agent_has_the_mean_reward_and_the_highest_k() -> None:
    """Most servers report these; one that is missing, as with a single repeat, must not end the report."""
    metrics = {"mean/reward": 0.5, "mean/calls": 2.0, "pass@1/accuracy": 0.5, "pass@4/accuracy": 0.9, "other": 1.0}

    assert headline_metrics(metrics) == {"mean/reward": 0.5, "pass@4/accuracy": 0.9}
    assert headline_metrics(metrics, "mean/calls", "absent", patterns=("majority@{k}",)) == {
        "mean/reward": 0.5,
        "mean/calls": 2.0,
    }
    assert headline_metrics({}) == {}


def test_a_majority_without_votes_has_no_answer():
    """A report with `pass@1/no_answer 100` beside `majority@1/no_answer 0` contradicts itself."""
    tasks = [task(0.0, 0.0, answer=None), task(1.0, 1.0, answer="4")]

    metrics = compute_pass_majority_metrics(tasks, answer_key="answer")[0]

    assert metrics["pass@1/no_answer"] == metrics["majority@2/no_answer"] == 50.0
    assert metrics["majority@2/accuracy"] == 50.0
