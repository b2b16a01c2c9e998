"""Which failures are worth another try within the same run, how often, and after what pause."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nemo_gym.rollouts.outcome import Failed, FailureKind, Outcome

LONGEST_PAUSE = 60.0

TRIES_IN_ONE_RUN: Mapping[str, int] = {
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
"""Every call below was already repeated where that is safe, so a second try of the whole rollout is the last of one
run; the third is for a resumed one, when somebody may have mended what was broken. A reward that makes no sense, a bug
of ours and what an agent calls by a word of its own is not tried twice in a row."""

ROLLOUT_DEADLINE = "rollout"


@dataclass(frozen=True, kw_only=True)
class Retries:
    """When a failed rollout is tried again in the same run."""

    max_attempts: int = 1
    """Of one rollout, those of earlier runs included."""
    pause_seconds: float = 2.0
    uniform: Callable[[float, float], float] = random.uniform

    def pause_after(self, outcome: Outcome, tries: int) -> float | None:
        """Seconds until the next try, or None when there is none. `tries` were made in this run."""
        if not isinstance(outcome, Failed) or not outcome.failure.retryable:
            return None
        if outcome.job.key.attempt + 1 >= self.max_attempts:
            return None
        if outcome.failure.which == ROLLOUT_DEADLINE:  # it had all the time there is; another try would hold up the end
            return None
        if tries >= TRIES_IN_ONE_RUN.get(outcome.failure.kind, 1):
            return None
        longest = min(LONGEST_PAUSE, self.pause_seconds * 2 ** (tries - 1))
        return self.uniform(longest / 2, longest)


ONE_TRY = Retries()
