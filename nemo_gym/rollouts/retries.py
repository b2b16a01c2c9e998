"""Retry policy: which failed rollouts are retried within a run, how often and after which delay."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nemo_gym.rollouts.outcome import FailedRollout, FailureKind

LONGEST_PAUSE = 60.0

MAX_ATTEMPTS_PER_RUN: Mapping[str, int] = {
    FailureKind.MODEL_UNREACHABLE: 2,
    FailureKind.MODEL_BAD_REPLY: 2,
    FailureKind.MODEL_REFUSED: 2,
    FailureKind.RATE_LIMITED: 2,
    FailureKind.AGENT_ERROR: 2,
    FailureKind.TOOL_ERROR: 2,
    FailureKind.VERIFIER_ERROR: 2,
    FailureKind.JUDGE_FAILED: 2,
    FailureKind.TIMEOUT: 2,
    FailureKind.SERVER_DIED: 2,
}
"""Maximum attempts within one run, by kind of failure; 1 for kinds that are not listed (invalid rewards, internal
errors, kinds that an agent defines). Single calls are retried as well, so two attempts per run are enough; further
attempts are left to a resumed run."""

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
        if attempts >= MAX_ATTEMPTS_PER_RUN.get(failure.kind, 1):
            return None
        longest = min(LONGEST_PAUSE, self.pause_seconds * 2 ** (attempts - 1))
        return self.uniform(longest / 2, longest)


NO_RETRIES = RolloutRetryPolicy()
