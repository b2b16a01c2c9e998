"""Adapters: rollouts in the form that each trainer reads.

Each module has functions `to_…(rollouts)`. They use only trainable rollouts unless they say otherwise, and import the
trainer's package only if they build its objects.

- `areal`: AReaL's trajectory dictionaries
- `art`: OpenPipe ART's trajectory groups
- `atropos`: Atropos' scored groups
- `nemo_rl`: NeMo RL's message logs
- `openrlhf`: OpenRLHF's agent outputs
- `prime_rl`: prime-rl's training samples
- `rllm`: rLLM's episodes
- `skyrl`: SkyRL's generator output
- `slime`: slime's samples
- `tinker`: Tinker's trajectories
- `verl`: verl's `DataProto`
"""

from collections.abc import Iterable, Iterator

from nemo_gym.training.types import Rollout, Sample


def trainable_samples(rollouts: Iterable[Rollout]) -> Iterator[tuple[Rollout, Sample]]:
    """Yield the samples of trainable rollouts that have at least one token to train on."""
    for rollout in rollouts:
        if rollout.trainable:
            for sample in rollout.samples:
                if 1 in sample.loss_mask:
                    yield rollout, sample


def reward_of(rollout: Rollout) -> float:
    """Return the reward of a scored rollout.

    Raises:
        ValueError: the rollout has no reward; a failure is never a reward.
    """
    if rollout.reward is None:
        raise ValueError(f"rollout {rollout.rollout_id} has no reward: {rollout.why_not}")
    return rollout.reward


def is_truncated(sample: Sample) -> bool:
    """Return whether the last model call of a sample ended at its token limit."""
    return sample.spans[-1].finish_reason == "length"
