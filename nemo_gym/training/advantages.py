"""Advantages of rollouts relative to their group, in plain Python."""

import math
from collections import defaultdict
from collections.abc import Iterable

from nemo_gym.training.types import Rollout


def group_advantages(rollouts: Iterable[Rollout], *, normalize: bool = True) -> dict[str, float]:
    """Return the advantage of each trainable rollout by its id: its reward minus the mean of its group.

    Only trainable rollouts count for the mean: a failure is never a reward. With `normalize`, the difference is divided
    by the standard deviation of the group; in a group with equal rewards all advantages are 0.
    """
    rewards: dict[str, dict[str, float]] = defaultdict(dict)
    for rollout in rollouts:
        if rollout.trainable and rollout.reward is not None:
            rewards[rollout.group][rollout.rollout_id] = rollout.reward
    advantages = {}
    for group in rewards.values():
        mean = math.fsum(group.values()) / len(group)
        deviation = math.sqrt(math.fsum((reward - mean) ** 2 for reward in group.values()) / len(group))
        scale = deviation if normalize else 1.0
        for rollout_id, reward in group.items():
            advantages[rollout_id] = (reward - mean) / scale if deviation > 1e-12 else 0.0
    return advantages
