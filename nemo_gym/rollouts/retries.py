"""Retry policy: which failed rollouts are retried within a run, how often and after which delay."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from nemo_gym.rollouts.outcome import FailedRollout, FailureKind

LONGEST_PAUSE = 60.0

MAX_ATTEMPTS_PER_RUN = 2
"""Single calls are already retried where that is safe, so a run attempts a rollout at most twice. A third attempt is
left for a resumed run, after the cause is fixed."""
RETRIED_KINDS = frozenset(FailureKind) - {FailureKind.INVALID_REWARD, FailureKind.INTERNAL}
"""Kinds that an agent defines are not retried within a run either."""

ROLLOUT_DEADLINE = "rollout"


@dataclass(frozen=True, kw_only=True)
class RolloutRetryPolicy:
    """Decides whether a failed rollout is retried in the same run, and after which pause."""

    max_attempts: int = 1
    """Maximum attempts per rollout, including those of earlier runs."""
    pause_seconds: float = 2.0
    uniform: Callable[[float, float], float] = random.uniform

    def pause_after(self, outcome: FailedRollout, attempts: int) -> float | None:
        """Return the seconds until the next attempt, or None for no retry, after `attempts` attempts in this run."""
        failure = outcome.failure
        if not failure.retryable or outcome.job.key.attempt + 1 >= self.max_attempts:
            return None
        if failure.deadline_name == ROLLOUT_DEADLINE:
            return None  # it used the whole rollout deadline; a retry would delay the end of the run
        if failure.kind not in RETRIED_KINDS or attempts >= MAX_ATTEMPTS_PER_RUN:
            return None
        longest = min(LONGEST_PAUSE, self.pause_seconds * 2 ** (attempts - 1))
        return self.uniform(longest / 2, longest)


NO_RETRIES = RolloutRetryPolicy()
