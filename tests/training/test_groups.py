"""The baseline of a group sees scored, trainable rollouts only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.training import Group, Rollout


def rollout(outcome, reward, trainable):
    return Rollout("0-0", 0, "0", 0, "a", outcome, reward, [], trainable, None if trainable else "why")


rollouts = st.builds(
    rollout,
    st.sampled_from(["scored", "failed", "limit", "cancelled"]),
    st.floats(-10, 10) | st.none(),
    st.booleans(),
)


@given(st.lists(rollouts))
def test_only_scored_and_trainable_rollouts_count(all_rollouts):
    """A failure counted as zero, or a masked rollout, would teach the model to avoid what it did not do."""
    group = Group("0", 0, 1, all_rollouts)
    counted = [one for one in all_rollouts if one.outcome == "scored" and one.trainable and one.reward is not None]

    assert group.rewards == [one.reward for one in counted]
    assert (group.baseline is None) == (not counted)
    assert len(group.advantages) == len(counted)
    assert sum(group.advantages) == pytest.approx(0, abs=1e-6)


def test_a_group_says_how_many_were_left_out():
    """A log line must show a group that is thinner than it looks."""
    group = Group("7", 7, 2, [rollout("scored", 1.0, trainable=True)], {"failed: timeout": 3})

    assert str(group) == "group 7: 1 usable of 2, 3 left out (failed: timeout 3)"
    assert not group.is_complete
