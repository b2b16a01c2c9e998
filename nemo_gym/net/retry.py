"""When to try again, how long to wait first, and when to stop. Pure: time and randomness are passed in."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

Uniform = Callable[[float, float], float]
"""`random.uniform`, or a stand-in."""

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})


@dataclass(frozen=True)
class RetryPolicy:
    """A budget for one call: so many attempts, so much time, with growing pauses in between."""

    attempts: int = 6
    """Requests actually sent, the first included."""
    budget_seconds: float = 60.0
    """No new attempt starts later than this after the first."""
    first_pause: float = 0.25
    longest_pause: float = 10.0
    statuses: frozenset[int] = frozenset()
    """Answers that are worth another attempt although the server said nothing about when."""
    few_attempts_statuses: frozenset[int] = frozenset()
    """Answers worth a few more attempts (`few_attempts` in all), because they are often final."""
    few_attempts: int = 3
    asked_to_wait: frozenset[int] = frozenset({429, 503})
    """Answers repeated only when they carry `Retry-After`: the server refused before doing the work."""
    leaves_the_closed: bool = False
    """An endpoint that takes no connection is given up by all calls together (`unreachable_timeout_seconds`)."""


ONCE = RetryPolicy(attempts=1)
SERVER_CALL = RetryPolicy()
"""Between our servers: outlast a restart, and never hide an answer from the caller."""
MODEL_CALL = RetryPolicy(
    attempts=40,
    budget_seconds=900.0,
    first_pause=0.5,
    longest_pause=30.0,
    statuses=frozenset({429, 502, 503, 504, 520}),
    few_attempts_statuses=frozenset({500}),
    leaves_the_closed=True,
)
"""Model endpoints: rate limits deserve patience, a quarter of an hour of it; a closed port does not."""


def pause(policy: RetryPolicy, failures: int, uniform: Uniform) -> float:
    """Exponential with full jitter: anywhere between nothing and `first_pause * 2^(failures-1)`, capped."""
    ceiling = min(policy.longest_pause, policy.first_pause * 2.0 ** min(failures - 1, 60))
    return uniform(0.0, ceiling)


def next_pause(
    policy: RetryPolicy,
    *,
    failures: int,
    spent: float,
    left: float | None,
    uniform: Uniform,
    retry_after: float | None = None,
) -> float | None:
    """Seconds to wait before the next attempt, or None to give up.

    `spent` is the time since the first attempt began and `left` what the deadline still allows. A pause that would
    end after the budget or the deadline is not begun: the answer would come too late to be of use.
    """
    if failures >= policy.attempts:
        return None
    wait = pause(policy, failures, uniform)
    if retry_after is not None:
        wait = max(wait, retry_after)
    if spent + wait > policy.budget_seconds:
        return None
    if left is not None and wait >= left:
        return None
    return wait


def worth_repeating(policy: RetryPolicy, status: int, failures: int, retry_after: float | None) -> bool:
    """Whether an answer with this status, the `failures`-th in a row, asks for another attempt."""
    if status in policy.statuses:
        return True
    if status in policy.few_attempts_statuses:
        return failures < policy.few_attempts
    return status in policy.asked_to_wait and retry_after is not None


def parse_retry_after(value: str | None, now: datetime) -> float | None:
    """Seconds asked for by a `Retry-After` header (a number or an HTTP date); None when absent or unreadable."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        # More digits than this is more than a year; also keeps int() away from absurd input.
        return float(text) if len(text) <= 8 else float("inf")
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - now).total_seconds())
