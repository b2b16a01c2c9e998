"""Advantages of rollouts relative to their group, in plain Python."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from nemo_gym.training.types import Rollout


def group_advantages(rollouts: Iterable[Rollout], *, normalize: bool = True) -> dict[str, float]:
    """Return the advantage of each trainable rollout by its id: its reward relative to those of its group.

    Only trainable rollouts count: a failure is never a reward.
    """
    groups: dict[str, dict[str, float]] = defaultdict(dict)
    for rollout in rollouts:
        if rollout.trainable and rollout.reward is not None:
            groups[rollout.group][rollout.rollout_id] = rollout.reward
    advantages: dict[str, float] = {}
    for rewards in groups.values():
        advantages |= zip(rewards, relative_rewards(list(rewards.values()), normalize=normalize), strict=True)
    return advantages


def relative_rewards(rewards: Sequence[float], *, normalize: bool = True) -> list[float]:
    """Return each reward minus their mean.

    With `normalize`, the difference is divided by the standard deviation; if all rewards are equal, it is 0.
    """
    if not rewards:
        return []
    mean = math.fsum(rewards) / len(rewards)
    deviation = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    scale = deviation if normalize else 1.0
    return [(reward - mean) / scale if deviation > 1e-12 else 0.0 for reward in rewards]
