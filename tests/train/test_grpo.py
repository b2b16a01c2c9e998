"""GRPO reads rewards relative to the group and changes only what the sampled tokens say."""

from dataclasses import replace
from itertools import count

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: python3 dev.py train")

from nemo_gym.training.grpo import policy_loss, token_logprobs, update_policy, with_advantages  # noqa: E402
from nemo_gym.training.tiny_model import TinyTransformer  # noqa: E402
from nemo_gym.training.types import Rollout, Sample, Span  # noqa: E402

NUMBERS = count()


def rollout(
    reward: float | None, *, group: str = "0", trainable: bool = True, tokens: list[int] | None = None
) -> Rollout:
    ids = tokens or [2, 6, 3, 11]
    sample = Sample(ids, [0, 0, 1, 1], [0.0, 0.0, -1.0, -1.0], 2, [Span(2, 4, 0)])
    outcome = "failed" if reward is None else "scored"
    return Rollout(f"0-{next(NUMBERS)}", 0, group, 0, None, outcome, reward, [sample], trainable)


def test_advantages_are_relative_to_the_scored_trainable_rollouts_of_the_group() -> None:
    """A failure in the baseline would punish or reward the policy for an outage."""
    rollouts = [rollout(1.0), rollout(0.0), rollout(None, trainable=False), rollout(1.0, trainable=False)]
    other_group = [rollout(1.0, group="1"), rollout(1.0, group="1")]
    advantages = [sequence.advantage for sequence in with_advantages([*rollouts, *other_group])]

    assert advantages == pytest.approx([1.0, -1.0, 0.0, 0.0], abs=1e-3)


def sampled_by(model: TinyTransformer, each: Rollout) -> Rollout:
    """Return the rollout with the log-probs of this model, as if it had sampled the tokens."""
    (sample,) = each.samples
    with torch.no_grad():
        logprobs = token_logprobs(model, [sample])[0].tolist()
    masked = [value if mask else 0.0 for value, mask in zip(logprobs, sample.loss_mask, strict=True)]
    return replace(each, samples=[replace(sample, logprobs=masked)])


def test_an_update_makes_rewarded_tokens_likelier_and_others_less_likely() -> None:
    """The sign of the loss."""
    torch.manual_seed(0)
    model = TinyTransformer()
    good = sampled_by(model, rollout(1.0, tokens=[2, 6, 3, 11]))
    bad = sampled_by(model, rollout(0.0, tokens=[2, 6, 3, 12]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    samples = [good.samples[0], bad.samples[0]]
    before = token_logprobs(model, samples)[:, 3].tolist()
    result = update_policy(model, optimizer, with_advantages([good, bad]), epochs=3)
    after = token_logprobs(model, samples)[:, 3].tolist()

    assert after[0] > before[0]
    assert after[1] < before[1]
    assert result.tokens == 4


def test_tokens_with_mask_zero_have_no_gradient_and_a_far_ratio_is_clipped() -> None:
    """Tokens of tools are not the policy's, and a sample of old weights must not move the policy far."""
    torch.manual_seed(0)
    model = TinyTransformer()
    (sample,) = sampled_by(model, rollout(1.0)).samples
    far = replace(sample, logprobs=[0.0, 0.0, *[value - 5.0 for value in sample.logprobs[2:]]])
    sequences = [replace(with_advantages([rollout(1.0), rollout(0.0)])[0], sample=far)]
    loss, clipped = policy_loss(model, sequences, clip=0.2)
    loss.backward()

    assert clipped == 1.0
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in model.parameters())
    unmasked = replace(far, loss_mask=[0, 0, 0, 0])
    assert float(policy_loss(model, [replace(sequences[0], sample=unmasked)], clip=0.2)[0].detach()) == 0.0


def test_groups_with_equal_rewards_change_nothing() -> None:
    """Otherwise the optimizer's momentum would move the weights without any signal."""
    model = TinyTransformer()
    before = [parameter.clone() for parameter in model.parameters()]
    update_policy(model, torch.optim.AdamW(model.parameters()), with_advantages([rollout(1.0), rollout(1.0)]))

    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
