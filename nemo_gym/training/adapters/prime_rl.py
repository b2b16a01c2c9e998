"""prime-rl: the fields of its `TrainingSample`, with advantages, which its trainer does not compute."""

from collections.abc import Iterable
from typing import Any

from nemo_gym.training.adapters import reward_of, trainable_samples
from nemo_gym.training.advantages import group_advantages
from nemo_gym.training.types import Rollout


def to_training_samples(
    rollouts: Iterable[Rollout], *, environment: str, temperature: float, loss: str = "default"
) -> list[dict[str, Any]]:
    """Return the fields of a `TrainingSample` for each sample.

    `temperature` is the sampling temperature of the run. It is written for every token, prompts included, because
    prime-rl wants a value for each. The advantage is the reward minus the mean of the group's trainable rollouts.
    """
    rollouts = list(rollouts)
    advantages = group_advantages(rollouts, normalize=False)
    samples = []
    for rollout, sample in trainable_samples(rollouts):
        mask = [bool(value) for value in sample.loss_mask]
        advantage = advantages[rollout.rollout_id]
        samples.append(
            {
                "token_ids": sample.token_ids,
                "mask": mask,
                "logprobs": sample.logprobs,
                "temperatures": [temperature] * len(mask),
                "env_name": environment,
                "advantages": [{"loss": loss, "values": [advantage * value for value in mask], "mask": mask}],
                "reward": reward_of(rollout),
            }
        )
    return samples
