"""The gates of a training step fail for each thing that would train on other tokens than the policy generated."""

from dataclasses import replace

import pytest

from nemo_gym.training import ParityError
from nemo_gym.training.gates import GateFailed, StepCheck, check_step
from nemo_gym.training.types import Rollout, Sample, Span

SAMPLE = Sample([1, 2, 3], [0, 1, 1], [0.0, -0.5, -0.25], 1, [Span(1, 3, 0, weight_version=(4, 4))])
ROLLOUT = Rollout("0-0", 0, "0", 0, None, "scored", 1.0, [SAMPLE], trainable=True)


def check(rollout: Rollout = ROLLOUT, *, version: int = 4, gap: float = 0.0, generated: int | None = 2) -> StepCheck:
    return check_step(
        [rollout],
        lambda sample: [value + gap for value in sample.logprobs],
        version=version,
        tokens_generated=generated,
    )


def test_a_step_that_trains_on_what_was_generated_passes() -> None:
    """An engine that does not count its tokens passes too."""
    check().require("step 4")
    check(generated=None).require("step 4")


def test_each_gate_can_fail() -> None:
    """A gate that cannot fail proves nothing."""
    with pytest.raises(ParityError, match="2 of 2 log-probs differ"):
        check(gap=0.001).require("step 4")
    with pytest.raises(GateFailed, match="1 prompts do not continue"):
        check(replace(ROLLOUT, breaks=1)).require("step 4")
    with pytest.raises(GateFailed, match="1 model calls do not have the weight version"):
        check(version=5).require("step 5")
    with pytest.raises(GateFailed, match="sampled 3 tokens, but the samples have 2"):
        check(generated=3).require("step 4")


def test_tokens_that_were_left_out_with_a_reason_are_accounted_for() -> None:
    """Constrained tokens are not trained on, and are not lost either."""
    check(replace(ROLLOUT, left_out={"generated under a grammar": 1}), generated=3).require("step 4")
