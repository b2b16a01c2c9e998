"""rLLM: the dictionaries of its `Episode`, with trajectories of steps."""

from collections.abc import Iterable
from typing import Any

from nemo_gym.training.adapters import reward_of
from nemo_gym.training.types import Rollout, Sample, Span


def to_episodes(rollouts: Iterable[Rollout]) -> list[dict[str, Any]]:
    """Return one episode for each trainable rollout: a trajectory for each sample, a step for each model call.

    A step has the reward of its turn, if the environment gives one; a trajectory has the rollout's reward.
    Constrained calls are left out, because rLLM trains on every step, and so are samples that have no other calls.
    """
    return [
        {
            "id": f"{rollout.group}:{rollout.rollout_id}",
            "is_correct": reward_of(rollout) > 0,
            "trajectories": [
                {
                    "name": sample.trace,
                    "reward": reward_of(rollout),
                    "steps": [_step(sample, span) for span in sample.spans if not span.constrained],
                }
                for sample in rollout.samples
                if not all(span.constrained for span in sample.spans)
            ],
            "metrics": dict(rollout.reward_components),
        }
        for rollout in rollouts
        if rollout.trainable
    ]


def _step(sample: Sample, span: Span) -> dict[str, Any]:
    return {
        "prompt_ids": sample.token_ids[: span.start],
        "response_ids": sample.token_ids[span.start : span.end],
        "logprobs": sample.logprobs[span.start : span.end],
        "reward": span.reward or 0.0,
        "weight_version": None if span.weight_version is None else span.weight_version[1],
    }
