"""Rewards at the ends of the range of floats, in every statistic."""

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.metrics.aggregate import compute_aggregate_metrics
from nemo_gym.metrics.column_statistics import mean
from nemo_gym.metrics.intervals import ClusteredMean
from nemo_gym.reward_profile import compute_pass_majority_metrics
from nemo_gym.rollouts.outcome import FailedRollout, Job, ScoredRollout, ScoringRule, classify_result

finite = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([1.7e308, -1.7e308, 1e200, 5e-324])
OUTPUT = {"output": [{"type": "message", "role": "assistant", "content": "x"}]}


def job() -> Job:
    return Job.of({"_ng_task_index": 0, "_ng_rollout_index": 0, "agent_ref": {"name": "the_agent"}})


@given(st.lists(st.tuples(st.integers(0, 3), finite), min_size=1, max_size=12))
def test_means_and_intervals_of_finite_rewards_are_finite(pairs: list[tuple[int, float]]) -> None:
    """A sum of two rewards of 1e308 is infinite although their mean is not."""
    result = ClusteredMean(pairs).mean()

    assert result is not None
    assert all(math.isfinite(value) for value in (result.value, result.low or 0.0, result.high or 0.0))
    assert math.isclose(result.value, mean([value for _, value in pairs]), rel_tol=1e-6, abs_tol=1e290)


@given(st.lists(st.tuples(st.integers(0, 3), finite), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_large_rewards_that_cancel_each_other_leave_the_mean_of_the_others(
    pairs: list[tuple[int, float]], chance: random.Random
) -> None:
    """Rounding lost the small rewards: the mean was 1e292 instead of 0.09 (a rare failure of the test above)."""
    pairs = [*pairs, *((chance.randrange(4), -value) for _, value in pairs), (0, 1.0)]
    chance.shuffle(pairs)
    result = ClusteredMean(pairs).mean()

    assert result is not None
    assert math.isclose(result.value, mean([value for _, value in pairs]), rel_tol=1e-6, abs_tol=1e280)


@given(st.lists(st.lists(finite, min_size=1, max_size=3), min_size=1, max_size=3))
def test_the_metrics_of_finite_rewards_can_be_computed(tasks: list[list[float]]) -> None:
    """An overflow in one statistic must not lose the metrics of the whole run."""
    rows = [
        {"_ng_task_index": task, "_ng_rollout_index": number, "reward": reward}
        for task, rewards in enumerate(tasks)
        for number, reward in enumerate(rewards)
    ]

    metrics = compute_aggregate_metrics(rows).agent_metrics
    passes = compute_pass_majority_metrics([[{"reward": reward} for reward in rewards] for rewards in tasks])[0]

    numbers = [value for value in [*metrics.values(), *passes.values()] if isinstance(value, float)]
    assert all(map(math.isfinite, numbers))


def test_ordinary_means_do_not_change() -> None:
    """The scale for large values must not cost digits of others."""
    pairs = [(0, 0.1), (0, 0.7), (1, 0.2), (2, 1e-300)]

    assert ClusteredMean(pairs).mean().value == math.fsum(value for _, value in pairs) / 4  # type: ignore[union-attr]


def test_an_unusable_reward_is_a_failure_of_the_resources_server() -> None:
    """The agent only passed it on."""
    rule = ScoringRule(verifier="the_verifier")
    for reward in (2e100, -1e308, "NaN", "-Infinity", math.inf, None, [1.0], 10**400):
        outcome = classify_result(job(), {"reward": reward, "response": OUTPUT}, rule=rule)

        assert isinstance(outcome, FailedRollout), reward
        assert (outcome.failure.kind, outcome.failure.server) == ("invalid_reward", "the_verifier")
    assert "NaN" in str(classify_result(job(), {"reward": "NaN", "response": OUTPUT}, rule=rule))


def test_a_declared_range_allows_extreme_rewards() -> None:
    """The author of the environment knows them."""
    rule = ScoringRule(reward_range=(-1.5e308, 1.5e308))

    assert isinstance(classify_result(job(), {"reward": 1e308, "response": OUTPUT}, rule=rule), ScoredRollout)
