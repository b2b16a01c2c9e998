"""The facade that agents import."""

from nemo_gym import rollout_correlation
from nemo_gym.serve import correlation


def test_the_facade_gives_the_same_objects():
    """Two copies of a context variable would each know half of the rollouts."""
    for name in ("RolloutContextMiddleware", "rollout_context", "current_rollout_id"):
        assert getattr(rollout_correlation, name) is getattr(correlation, name)
