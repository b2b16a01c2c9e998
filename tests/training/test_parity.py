"""Comparing the engine's log-probs with the trainer's."""

import math

import pytest

from nemo_gym.training import ParityError, Rollout, Sample, Span, check_parity


def sample(rollout_id: str = "0-0") -> Sample:
    return Sample(
        [1, 2, 3, 4, 5], [0, 1, 0, 1, 1], [0.0, -0.5, 0.0, -1.0, -2.0], 1, [Span(1, 2, 0), Span(3, 5, 1)], rollout_id
    )


def test_equal_log_probs_hold() -> None:
    """Tokens with mask 0 are not compared: the trainer has a log-prob for them, the engine none."""
    parity = check_parity([sample()], lambda sample: [-9.0, -0.5, -9.0, -1.0, -2.0 + 5e-5])

    assert parity.holds
    assert parity.tokens == 3
    assert parity.max_gap == pytest.approx(5e-5)
    parity.require()


def test_the_first_gap_is_named() -> None:
    """The gate stops a training run; the message must lead to the token."""
    rollout = Rollout("7-2", 7, "7", 0, None, "scored", 1.0, [sample("7-2")], trainable=True)

    parity = check_parity([rollout], lambda sample: [0.0, -0.5, 0.0, -1.5, -4.0])

    assert (parity.beyond, parity.max_gap, parity.holds) == (2, 2.0, False)
    with pytest.raises(ParityError, match=r"rollout 7-2, turn 1, token 3 \(id 4\).*2 of 3 log-probs differ"):
        parity.require()


def test_nan_of_the_trainer_is_a_gap() -> None:
    """A NaN compares false with everything, so a careless comparison would pass."""
    assert check_parity([sample()], lambda sample: [math.nan] * 5).beyond == 3


def test_nothing_compared_is_not_a_pass() -> None:
    """A gate without tokens proves nothing."""
    parity = check_parity([], lambda sample: [])

    assert not parity.holds
    with pytest.raises(ParityError, match="no token to compare"):
        parity.require()


def test_a_wrong_number_of_log_probs_is_an_error() -> None:
    """A shifted list would compare each token with its neighbour."""
    with pytest.raises(ParityError, match="returned 4 values for 5 tokens"):
        check_parity([sample()], lambda sample: [0.0] * 4)
