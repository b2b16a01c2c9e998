"""What is said of a score beyond its mean."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.metrics.aggregate import RolloutStats
from nemo_gym.metrics.intervals import ClusteredMean
from nemo_gym.metrics.pass_at_k import add_pass_hat_k, pass_at_k, pass_hat_k
from nemo_gym.metrics.scores import compute_attrition, compute_scores


def row(task, rollout, reward, **fields):
    return {"_ng_task_index": task, "_ng_rollout_index": rollout, "reward": reward, **fields}


def make_tally(rows):
    stats = RolloutStats()
    for one in rows:
        stats.add(one)
    return stats


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_and_pass_hat_are_what_enumerating_every_draw_gives(case):
    """The closed forms, against all ways to draw k of n rollouts."""
    n, right, k = case
    rollouts = [1] * right + [0] * (n - right)
    draws = list(itertools.combinations(rollouts, k))

    assert pass_at_k(n, right, k) == pytest.approx(sum(any(draw) for draw in draws) / len(draws))
    assert pass_hat_k(n, right, k) == pytest.approx(sum(all(draw) for draw in draws) / len(draws))


@pytest.mark.parametrize("estimate", [pass_at_k, pass_hat_k])
def test_k_beyond_the_rollouts_is_refused(estimate):
    """No unbiased estimate exists, so none is given."""
    with pytest.raises(ValueError, match="k <= n"):
        estimate(2, 1, 3)


REWARDS = st.dictionaries(
    st.tuples(st.integers(0, 4), st.integers(0, 3)), st.sampled_from([0.0, 1.0]) | st.floats(-3, 3), min_size=1
)


@settings(max_examples=80, deadline=None)
@given(REWARDS)
def test_the_mean_and_its_interval_are_those_of_the_rewards(rewards):
    """Computed task by task in a hurry, or value by value: the same."""
    scores = compute_scores(make_tally(row(task, rollout, reward) for (task, rollout), reward in rewards.items()))

    plain = ClusteredMean((task, reward) for (task, _), reward in rewards.items()).mean()
    assert scores["reward"]["mean"] == pytest.approx(plain.value, abs=1e-12)
    assert scores["reward"]["num_rollouts"] == len(rewards)
    assert scores["reward"]["num_tasks"] == plain.tasks
    if plain.low is None:
        assert "ci95" not in scores["reward"]
    else:
        assert scores["reward"]["ci95"] == [pytest.approx(plain.low, abs=1e-9), pytest.approx(plain.high, abs=1e-9)]
        assert scores["reward"]["standard_error"] == pytest.approx(plain.standard_error, abs=1e-9)


def test_a_pass_or_fail_reward_has_pass_at_k_and_pass_hat_k():
    """How often once in k, and how often always: two very different models can have the same mean."""
    rewards = {0: (1, 1, 0, 0), 1: (1, 0), 2: (0, 0, 0, 0)}
    rows = [row(task, n, float(r)) for task, values in rewards.items() for n, r in enumerate(values)]

    score = compute_scores(make_tally(rows))["reward"]

    assert list(score["pass@k"]) == list(score["pass^k"]) == ["1", "2", "3", "4"]
    assert score["pass@k"]["1"]["mean"] == pytest.approx((0.5 + 0.5 + 0) / 3)
    assert score["pass@k"]["2"]["mean"] == pytest.approx(((1 - 1 / 6) + 1 + 0) / 3)
    assert score["pass^k"]["2"]["mean"] == pytest.approx((1 / 6 + 0 + 0) / 3)
    assert score["pass@k"]["4"]["num_tasks"] == 2


def test_a_graded_reward_has_neither():
    """What counts as a pass is not ours to guess."""
    assert "pass@k" not in compute_scores(make_tally([row(0, 0, 0.5), row(1, 0, 1.0)]))["reward"]


def test_with_many_repeats_only_some_k_are_reported():
    """A table of a thousand lines cannot be read."""
    score = compute_scores(make_tally([row(0, n, float(n % 2)) for n in range(100)]))["reward"]

    assert list(score["pass@k"]) == ["1", "2", "4", "8", "16", "32", "64", "100"]


def test_failures_bound_the_score_from_below():
    """Excluded, they flatter; as zeros, they punish: the truth lies between."""
    stats = make_tally([row(0, 0, 1.0), row(1, 0, 1.0), row(2, 0, 0.0)])
    stats.add_failure(3, 0, "timeout")
    stats.add_failure(2, 1, "judge_failed")
    stats.add_failure(0, 0, "timeout")  # failed once, scored in the end

    score, attrition = compute_scores(stats)["reward"], compute_attrition(stats)

    assert score["mean"] == pytest.approx(2 / 3)
    assert score["failures_as_zero"]["mean"] == pytest.approx(2 / 5)
    assert score["failures_as_zero"]["num_tasks"] == 4
    assert attrition == {"scored": 3, "failed": 2, "failed_by_kind": {"timeout": 1, "judge_failed": 1}}


def test_without_failures_there_is_one_score():
    """Nothing is printed twice."""
    stats = make_tally([row(0, 0, 1.0), row(1, 0, 0.0)])

    assert "failures_as_zero" not in compute_scores(stats)["reward"]
    assert compute_attrition(stats) == {"scored": 2, "failed": 0}


def test_retried_rollouts_are_shown_apart():
    """A retry is another chance; to compare two runs one must know how often it was given."""
    rows = [row(0, 0, 1.0, _ng_attempt_index=1), row(0, 1, 0.0), row(1, 0, 0.0, _ng_attempt_index=0)]

    assert compute_attrition(make_tally(rows))["retried"] == {
        "count": 1,
        "mean_reward": 1.0,
        "mean_reward_of_others": 0.0,
    }


def test_every_number_has_its_interval_and_nan_has_none():
    """Token counts vary too."""
    rows = [row(t, 0, float(t % 2), steps=t, junk=math.nan) for t in range(4)]

    scores = compute_scores(make_tally(rows))

    assert list(scores) == ["reward", "steps"]
    assert scores["steps"]["ci95"][0] < 1.5 < scores["steps"]["ci95"][1]


def test_servers_can_add_pass_hat_k_to_their_metrics():
    """In percent, beside pass@k, for scores that are pass or fail."""
    metrics = {}

    add_pass_hat_k(metrics, [[{"a": 1, "b": 0.5}, {"a": 0, "b": 1}], [{"a": 1}]], ["a", "b"], 2)

    assert metrics == {"pass^1/a": pytest.approx(75.0), "pass^2/a": 0.0}
