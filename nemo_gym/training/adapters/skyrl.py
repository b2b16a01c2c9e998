"""SkyRL: the dictionary that `GeneratorInterface.generate` returns."""

from collections.abc import Iterable
from typing import Any

from nemo_gym.training.adapters import reward_of, trainable_samples
from nemo_gym.training.types import Rollout


def to_generator_output(rollouts: Iterable[Rollout]) -> dict[str, Any]:
    """Return a `GeneratorOutput`: one entry for each sample, in the order of the rollouts.

    `trajectory_ids` are pairs of instance and repetition: build SkyRL's `TrajectoryID` from them. `is_last_step` marks
    the last sample of a rollout, for training on its steps.
    """
    rollouts = list(rollouts)
    pairs = list(trainable_samples(rollouts))
    last = {rollout.rollout_id: index for index, (rollout, _) in enumerate(pairs)}
    return {
        "prompt_token_ids": [sample.token_ids[: sample.prompt_len] for _, sample in pairs],
        "response_ids": [sample.token_ids[sample.prompt_len :] for _, sample in pairs],
        "rewards": [reward_of(rollout) for rollout, _ in pairs],
        "loss_masks": [sample.loss_mask[sample.prompt_len :] for _, sample in pairs],
        "rollout_logprobs": [sample.logprobs[sample.prompt_len :] for _, sample in pairs],
        "stop_reasons": [sample.spans[-1].finish_reason or "stop" for _, sample in pairs],
        "trajectory_ids": [(rollout.group, rollout.rollout_id) for rollout, _ in pairs],
        "is_last_step": [last[rollout.rollout_id] == index for index, (rollout, _) in enumerate(pairs)],
        "rollout_metrics": {
            "rollouts": len(rollouts),
            "rollouts_left_out": sum(not rollout.trainable for rollout in rollouts),
        },
    }
