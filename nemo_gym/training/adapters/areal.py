"""AReaL: the dictionary that `RolloutWorkflow.arun_episode` returns, with one row of tensors."""

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from nemo_gym.training.adapters import reward_of, trainable_samples
from nemo_gym.training.types import Rollout, Sample

NO_VERSION = -1
"""AReaL's version of a token that no policy generated."""


def to_trajectories(rollouts: Iterable[Rollout], *, tensor: Callable[[Any], Any] | None = None) -> list[dict[str, Any]]:
    """Return one dictionary for each sample, with tensors of shape [1, tokens]; `tensor` is torch's unless given.

    A workflow returns None for a rollout without samples; AReaL then rejects it.
    """
    make = tensor or import_module("torch").tensor
    return [
        {
            "input_ids": make([sample.token_ids]),
            "loss_mask": make([sample.loss_mask]),
            "logprobs": make([sample.logprobs]),
            "versions": make([token_versions(sample)]),
            "attention_mask": make([[True] * len(sample.token_ids)]),
            "rewards": make([reward_of(rollout)]),
        }
        for rollout, sample in trainable_samples(rollouts)
    ]


def token_versions(sample: Sample) -> list[int]:
    """Return the weight version of each token: the newest of its call, or -1 where no call reported one."""
    versions = [NO_VERSION] * len(sample.token_ids)
    for span in sample.spans:
        if span.weight_version is not None:
            versions[span.start : span.end] = [span.weight_version[1]] * (span.end - span.start)
    return versions
