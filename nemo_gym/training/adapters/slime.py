"""slime: the fields of its `Sample`, for `generate_rollout` or a custom generate function."""

from collections.abc import Iterable
from typing import Any

from nemo_gym.training.adapters import is_truncated, reward_of
from nemo_gym.training.types import Rollout, Sample

STATUS_OF_OUTCOME = {"limit": "truncated", "failed": "failed", "cancelled": "aborted"}


def to_samples(rollouts: Iterable[Rollout]) -> list[list[dict[str, Any]]]:
    """Return the keyword arguments of slime's `Sample`, grouped by the rollouts' groups.

    The samples of one rollout have the same `rollout_id`, so that slime averages their losses within the rollout. A
    rollout that is not trainable has `remove_sample` set, so that there is no loss on it, and the status of its
    outcome. slime needs a number as its reward and averages it with the others: it is the mean reward of the group's
    trainable samples, which keeps the group's baseline; 0.0 if it has no such sample. These samples change only the
    group's standard deviation (`grpo_std_normalization`).
    """
    numbered = list(enumerate(rollouts))
    groups: dict[str, list[dict[str, Any]]] = {}
    for number, rollout in numbered:
        group = groups.setdefault(rollout.group, [])
        group_index = list(groups).index(rollout.group)
        group += [_fields(rollout, sample, number, group_index) for sample in rollout.samples]
    for group in groups.values():
        rewards = [fields["reward"] for fields in group if not fields["remove_sample"]]
        baseline = sum(rewards) / len(rewards) if rewards else 0.0
        for fields in group:
            if fields["remove_sample"]:
                fields["reward"] = baseline
    return list(groups.values())


def _fields(rollout: Rollout, sample: Sample, number: int, group_index: int) -> dict[str, Any]:
    start = sample.prompt_len
    versions = [span.weight_version for span in sample.spans if span.weight_version is not None]
    status = STATUS_OF_OUTCOME.get(rollout.outcome, "truncated" if is_truncated(sample) else "completed")
    return {
        "group_index": group_index,
        "index": number,
        "rollout_id": number,
        "tokens": sample.token_ids,
        "response_length": len(sample.token_ids) - start,
        "loss_mask": sample.loss_mask[start:],
        "rollout_log_probs": sample.logprobs[start:],
        "reward": reward_of(rollout) if rollout.trainable else None,
        "status": status,
        "remove_sample": not rollout.trainable,
        "weight_versions": [str(newest) for _, newest in versions],
        "metadata": {"rollout_id": rollout.rollout_id, "trace": sample.trace, "why_not": rollout.why_not},
    }
