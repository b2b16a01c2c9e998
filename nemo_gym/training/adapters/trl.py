"""TRL's `GRPOTrainer`: a `rollout_func` that runs the rows of its prompts through the servers of a session.

The rows are the prompts, as JSON text, because TRL hands only the `prompt` column to a `rollout_func`. The trainer's
weights go to the policy before the first rollouts of each generation. Checked with TRL 1.16.
"""

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from nemo_gym.training.sync import SyncGym
from nemo_gym.training.torch_policy import TorchPolicy
from nemo_gym.training.types import Rollout, Sample
from nemo_gym.wire.stored_rollout import Row

logger = logging.getLogger(__name__)

RolloutFunc = Callable[[list[Any], Any], dict[str, Any]]
OnRollouts = Callable[[list[Rollout], Any], None]


def prompt_column(rows: Iterable[Row]) -> list[dict[str, str]]:
    """Return the rows as a dataset for TRL: `Dataset.from_list(prompt_column(rows))`."""
    return [{"prompt": json.dumps(row)} for row in rows]


def gym_reward(completions: Sequence[Any], rollout_reward: Sequence[float | None], **_: Any) -> list[float | None]:
    """Return the rewards of the environment; None, which TRL leaves out of its baseline, without a usable score."""
    assert len(completions) == len(rollout_reward)
    return list(rollout_reward)


def rollout_func(
    gym: SyncGym, policy: TorchPolicy, on_rollouts: OnRollouts = lambda _rollouts, _trainer: None
) -> RolloutFunc:
    """Return a `rollout_func` for `GRPOTrainer`; use it with the reward function `gym_reward`.

    `on_rollouts(rollouts, trainer)` sees the rollouts of each generation before TRL trains on them, for example to
    apply the gates.
    """

    def generate(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        version = int(trainer.state.global_step)
        if version > gym.version:
            with gym.weights(version):
                policy.update(trainer.accelerator.unwrap_model(trainer.model), version=version)
        rollouts = sorted(gym.stream([json.loads(prompt) for prompt in prompts]), key=lambda rollout: rollout.task)
        on_rollouts(rollouts, trainer)
        return to_trl(rollouts, end_id=trainer.processing_class.eos_token_id)

    return generate


def to_trl(rollouts: Sequence[Rollout], *, end_id: int) -> dict[str, Any]:
    """Return what a `rollout_func` returns: one sequence for each rollout, in their order.

    TRL needs one completion for each prompt. A rollout that cannot be trained on, or has several samples, is a single
    token with mask 0 and no reward, which changes neither the loss nor the baseline.
    """
    sequences = [_only_sample(rollout) for rollout in rollouts]
    output: dict[str, Any] = {
        "prompt_ids": [], "completion_ids": [], "logprobs": [], "env_mask": [], "rollout_reward": []
    }  # fmt: skip
    for rollout, sample in zip(rollouts, sequences, strict=True):
        start = sample.prompt_len if sample is not None else 0
        output["prompt_ids"].append(sample.token_ids[:start] if sample is not None else [end_id])
        output["completion_ids"].append(sample.token_ids[start:] if sample is not None else [end_id])
        output["logprobs"].append(sample.logprobs[start:] if sample is not None else [0.0])
        output["env_mask"].append(sample.loss_mask[start:] if sample is not None else [0])
        output["rollout_reward"].append(rollout.reward if sample is not None else None)
    left_out = sequences.count(None)
    if left_out:
        reasons = {
            rollout.why_not or "several samples" for rollout, each in zip(rollouts, sequences, strict=True) if not each
        }
        logger.warning("%d of %d rollouts are not trained on: %s", left_out, len(rollouts), "; ".join(sorted(reasons)))
    return output


def _only_sample(rollout: Rollout) -> Sample | None:
    return rollout.samples[0] if rollout.trainable and len(rollout.samples) == 1 else None
