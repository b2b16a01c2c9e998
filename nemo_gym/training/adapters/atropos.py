"""Atropos: the `ScoredDataGroup` that an environment sends to `/scored_data` of the trajectory API."""

from collections.abc import Iterable
from typing import Any

from nemo_gym.training.adapters import reward_of, trainable_samples
from nemo_gym.training.types import Rollout, Sample

IGNORED = -100
"""Atropos' mask of a token without loss; a token with loss has its id."""
NO_LOGPROB = 1.0
"""Atropos' log-prob of a token that the policy did not generate."""


def to_scored_groups(rollouts: Iterable[Rollout]) -> list[dict[str, Any]]:
    """Return one group for each group of rollouts, without groups that have no trainable rollout."""
    groups: dict[str, list[tuple[Rollout, Sample]]] = {}
    for rollout, sample in trainable_samples(rollouts):
        groups.setdefault(rollout.group, []).append((rollout, sample))
    return [
        {
            "tokens": [sample.token_ids for _, sample in pairs],
            "masks": [_where_trained(sample, sample.token_ids, IGNORED) for _, sample in pairs],
            "scores": [reward_of(rollout) for rollout, _ in pairs],
            "inference_logprobs": [_where_trained(sample, sample.logprobs, NO_LOGPROB) for _, sample in pairs],
            "advantages": None,
            "ref_logprobs": None,
            "messages": None,
            "group_overrides": {"group": group},
            "overrides": [{"rollout_id": rollout.rollout_id} for rollout, _ in pairs],
        }
        for group, pairs in groups.items()
    ]


def _where_trained(sample: Sample, values: list[Any], otherwise: Any) -> list[Any]:
    return [value if mask else otherwise for value, mask in zip(values, sample.loss_mask, strict=True)]
