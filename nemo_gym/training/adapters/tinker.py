"""Tinker: the trajectory groups of tinker-cookbook, from which it builds its training data."""

from collections.abc import Iterable
from importlib import import_module
from typing import Any

from nemo_gym.training.adapters import is_truncated, reward_of, trainable_samples
from nemo_gym.training.types import Rollout, Sample


def to_trajectory_groups(rollouts: Iterable[Rollout]) -> list[Any]:
    """Return one `TrajectoryGroup` for each group, with a trajectory for each sample of a trainable rollout.

    A transition is a model call: the tokens before it and what it generated. Its reward is that of its turn, if the
    environment gives one; the reward of the rollout is the final reward, without the rewards of the turns, because
    Tinker adds them up.
    """
    types = import_module("tinker_cookbook.rl.types")
    groups: dict[str, list[tuple[Rollout, Sample]]] = {}
    for rollout, sample in trainable_samples(rollouts):
        groups.setdefault(rollout.group, []).append((rollout, sample))
    return [
        types.TrajectoryGroup(
            trajectories_G=[_trajectory(sample, types) for _, sample in pairs],
            final_rewards_G=[reward_of(rollout) - _turn_rewards(sample) for rollout, sample in pairs],
            metrics_G=[dict(rollout.reward_components) for rollout, _ in pairs],
        )
        for pairs in groups.values()
    ]


def _trajectory(sample: Sample, types: Any) -> Any:
    """Return a trajectory; constrained calls are part of the observations, so that there is no loss on them."""
    tinker, completers = import_module("tinker"), import_module("tinker_cookbook.completers")
    spans = [span for span in sample.spans if not span.constrained]
    transitions = [
        types.Transition(
            ob=tinker.ModelInput.from_ints(sample.token_ids[: span.start]),
            ac=completers.TokensWithLogprobs(
                tokens=sample.token_ids[span.start : span.end],
                maybe_logprobs=sample.logprobs[span.start : span.end],
                stop_reason="length" if span.finish_reason == "length" else "stop",
            ),
            reward=span.reward or 0.0,
            episode_done=span is spans[-1],
        )
        for span in spans
    ]
    final = tinker.ModelInput.from_ints(sample.token_ids)
    return types.Trajectory(transitions, final, "length" if is_truncated(sample) else "stop")


def _turn_rewards(sample: Sample) -> float:
    return sum(span.reward or 0.0 for span in sample.spans if not span.constrained)
