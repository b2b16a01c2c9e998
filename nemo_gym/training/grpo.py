"""GRPO for small models: group-normalised advantages and a clipped ratio to the sampler's log-probs.

Reads only `Rollout` and `Sample`: the tokens, mask and log-probs are those that the engine reported. Needs torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nemo_gym.training.advantages import group_advantages
from nemo_gym.training.torch_engine import forward_logits
from nemo_gym.training.types import Rollout, Sample


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """A sample, and the advantage of its rollout."""

    sample: Sample
    advantage: float


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What one update did."""

    tokens: int
    """Number of tokens with mask 1."""
    loss: float
    clipped: float
    """Fraction of the tokens whose ratio was clipped in the last epoch."""


def with_advantages(rollouts: Sequence[Rollout]) -> list[TrainingSequence]:
    """Return the samples of the trainable rollouts with the advantage of each: its reward relative to its group.

    A group whose rewards are all equal says nothing about the policy; its advantages are 0.
    """
    advantages = group_advantages(rollouts)
    return [
        TrainingSequence(sample, advantages[rollout.rollout_id])
        for rollout in rollouts
        if rollout.rollout_id in advantages
        for sample in rollout.samples
    ]


def token_logprobs(model: nn.Module, samples: Sequence[Sample]) -> Tensor:
    """Return the log-prob of every token after those before it: [sample, position], 0 for the first and the padding."""
    logits = forward_logits(model, [sample.token_ids for sample in samples])
    width = logits.shape[1]
    ids = torch.tensor([sample.token_ids + [0] * (width - len(sample.token_ids)) for sample in samples])
    logprobs = logits[:, :-1].float().log_softmax(-1)
    chosen = logprobs.gather(2, ids[:, 1:, None].to(logits.device))[..., 0]
    return torch.cat([torch.zeros_like(chosen[:, :1]), chosen], dim=1)


def logprobs_of_samples(model: nn.Module, samples: Sequence[Sample]) -> dict[int, list[float]]:
    """Return the log-probs of each sample as a list, by `id(sample)`: the trainer's side of `check_parity`."""
    with torch.no_grad():
        computed = token_logprobs(model, samples).tolist() if samples else []
    return {id(sample): row[: len(sample.token_ids)] for sample, row in zip(samples, computed, strict=True)}


def policy_loss(model: nn.Module, sequences: Sequence[TrainingSequence], clip: float) -> tuple[Tensor, float]:
    """Return the clipped loss, averaged over the tokens with mask 1, and the fraction of clipped tokens."""
    samples = [sequence.sample for sequence in sequences]
    logprobs = token_logprobs(model, samples)
    width = logprobs.shape[1]
    mask = _pad_rows([sample.loss_mask for sample in samples], width, logprobs)
    sampled = _pad_rows([sample.logprobs for sample in samples], width, logprobs)
    advantages = torch.tensor([[sequence.advantage] for sequence in sequences]).to(logprobs)
    ratio = ((logprobs - sampled) * mask).exp()
    limited = ratio.clamp(1 - clip, 1 + clip)
    gain = torch.minimum(ratio * advantages, limited * advantages)
    count = mask.sum().clamp(min=1)
    is_clipped = (gain < ratio * advantages).to(mask) * mask
    return -(gain * mask).sum() / count, float(is_clipped.sum() / count)


def update_policy(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    sequences: Sequence[TrainingSequence],
    *,
    epochs: int = 4,
    clip: float = 0.2,
    max_grad_norm: float = 1.0,
) -> UpdateResult:
    """Take `epochs` steps on one batch. A batch in which every advantage is 0 changes nothing."""
    tokens = sum(sequence.sample.trainable_tokens for sequence in sequences)
    if not any(sequence.advantage for sequence in sequences):
        return UpdateResult(tokens, 0.0, 0.0)
    loss_value = clipped = 0.0
    for _ in range(epochs):
        loss, clipped = policy_loss(model, sequences, clip)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
        optimizer.step()
        loss_value = float(loss.detach())
    return UpdateResult(tokens, loss_value, clipped)


def _pad_rows(rows: Sequence[Sequence[float]], width: int, like: Tensor) -> Tensor:
    return torch.tensor([[*row, *[0.0] * (width - len(row))] for row in rows]).to(like)
