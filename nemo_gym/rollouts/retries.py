"""Retry policy: which failed rollouts are retried within a run, how often and after which delay."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from nemo_gym.rollouts.outcome import FailedRollout, FailureKind

LONGEST_PAUSE = 60.0

MAX_TRIES_PER_RUN = 2
"""Each call below was already repeated where that is safe, so a run tries the whole rollout at most twice; a third
attempt belongs to a resumed run, after a repair."""
RETRIED_KINDS = frozenset(FailureKind) - {FailureKind.INVALID_REWARD, FailureKind.INTERNAL}
"""Kinds that an agent defines are not retried within a run either."""

ROLLOUT_DEADLINE = "rollout"


@dataclass(frozen=True, kw_only=True)
class RolloutRetryPolicy:
    """When a failed rollout is retried in the same run."""

    max_attempts: int = 1
    """Attempts per rollout, including those of earlier runs."""
    pause_seconds: float = 2.0
    uniform: Callable[[float, float], float] = random.uniform

    def pause_after(self, outcome: FailedRollout, tries: int) -> float | None:
        """Return the seconds until the next try, or None for no retry. This run has made `tries` so far."""
        failure = outcome.failure
        if not failure.retryable or outcome.job.key.attempt + 1 >= self.max_attempts:
            return None
        if failure.which == ROLLOUT_DEADLINE:  # it had all the time there is; another try would hold up the end
            return None
        if failure.kind not in RETRIED_KINDS or tries >= MAX_TRIES_PER_RUN:
            return None
        longest = min(LONGEST_PAUSE, self.pause_seconds * 2 ** (tries - 1))
        return self.uniform(longest / 2, longest)


NO_RETRIES = RolloutRetryPolicy()
