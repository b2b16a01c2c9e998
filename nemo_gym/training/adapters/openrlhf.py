"""OpenRLHF: the dictionary that `AgentExecutor.execute` returns."""

from collections.abc import Iterable
from typing import Any

from nemo_gym.training.adapters import is_truncated, reward_of, trainable_samples
from nemo_gym.training.types import Rollout


def to_agent_outputs(rollouts: Iterable[Rollout]) -> list[dict[str, Any]]:
    """Return one output for each sample: all tokens, and the ranges that the policy generated as `action_ranges`.

    `rollout_log_probs` has a value for each token, as `observation_tokens`. Constrained spans are not actions.
    """
    return [
        {
            "observation_tokens": sample.token_ids,
            "action_ranges": [(span.start, span.end) for span in sample.spans if not span.constrained],
            "rollout_log_probs": sample.logprobs,
            "reward": reward_of(rollout),
            "scores": reward_of(rollout),
            "truncated": is_truncated(sample),
            "extra_logs": {name: float(value) for name, value in rollout.reward_components.items()},
        }
        for rollout, sample in trainable_samples(rollouts)
    ]
