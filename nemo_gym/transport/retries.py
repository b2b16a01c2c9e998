"""Retry policy, circuit breaker and endpoint health: when to try again, how long to wait, when to stop."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Literal

logger = logging.getLogger("nemo_gym.transport")

Uniform = Callable[[float, float], float]
"""`random.uniform`, or a stand-in."""

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})

SUMMARY_SECONDS = 30.0
"""Interval between log lines about an endpoint that keeps failing."""


@dataclass(frozen=True)
class RetryPolicy:
    """The budget of one call: a number of attempts and a time, with growing pauses in between."""

    attempts: int = 6
    """Requests sent, including the first."""
    budget_seconds: float = 60.0
    """No new attempt starts later than this after the first."""
    first_pause: float = 0.25
    longest_pause: float = 10.0
    statuses: frozenset[int] = frozenset()
    """Statuses that are retried even without `Retry-After`."""
    few_attempts_statuses: frozenset[int] = frozenset()
    """Statuses that get `few_attempts` in all, because they are often final."""
    few_attempts: int = 3
    retry_after_statuses: frozenset[int] = frozenset({429, 503})
    """Statuses that are retried only with `Retry-After`: the server refused before doing the work."""
    gives_up_unreachable: bool = False
    """All calls together give up an endpoint that accepts no connection (`unreachable_timeout_seconds`)."""


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
    gives_up_unreachable=True,
)
"""Model endpoints: wait out rate limits for a quarter of an hour, but not a closed port."""


def jittered_pause(policy: RetryPolicy, failures: int, uniform: Uniform) -> float:
    """Return an exponential pause with full jitter: between 0 and `first_pause * 2^(failures-1)`, capped."""
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
    """Return the seconds to wait before the next attempt, or None to give up.

    `spent` is the time since the first attempt and `left` the time until the deadline. A pause that would end after
    the budget or the deadline is not begun: the answer would come too late to be of use.
    """
    if failures >= policy.attempts:
        return None
    wait = jittered_pause(policy, failures, uniform)
    if retry_after is not None:
        wait = max(wait, retry_after)
    if spent + wait > policy.budget_seconds:
        return None
    if left is not None and wait >= left:
        return None
    return wait


def is_retryable_status(policy: RetryPolicy, status: int, failures: int, retry_after: float | None) -> bool:
    """Return whether an answer with this status, the `failures`-th failure in a row, deserves another attempt."""
    if status in policy.statuses:
        return True
    if status in policy.few_attempts_statuses:
        return failures < policy.few_attempts
    return status in policy.retry_after_statuses and retry_after is not None


def parse_retry_after(value: str | None, now: datetime) -> float | None:
    """Return the seconds of a `Retry-After` header (a number or an HTTP date); None when absent or unreadable."""
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


class CircuitBreaker:
    """Stop calls to an endpoint that failed `threshold` times in a row, then probe it periodically.

    closed ──`threshold` failures──► open ──rest over──► half-open: one probe at a time
       ▲                               ▲                     │
       └──────── probe answered ───────┼─────────────────────┤
                                       └── probe failed: rest twice as long

    Every answer counts as success, whatever its status. There is no timer and no task: the same calls at the same
    times of `clock`, a monotonic clock in seconds, always give the same states.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        threshold: int = 16,
        first_rest: float = 0.5,
        longest_rest: float = 15.0,
    ) -> None:
        self._clock = clock
        self._threshold = threshold
        self._first_rest = first_rest
        self._longest_rest = longest_rest
        self._rest = first_rest
        self._failures = 0
        self._opened_at: float | None = None
        self._is_probing = False

    @property
    def state(self) -> Literal["closed", "open", "half-open"]:
        if self._opened_at is None:
            return "closed"
        rest_is_over = self._clock() - self._opened_at >= self._rest
        return "half-open" if self._is_probing or rest_is_over else "open"

    def admit(self) -> float:
        """Return 0.0 to admit a call, which must report back, or the seconds to wait before asking again."""
        if self._opened_at is None:
            return 0.0
        left = self._opened_at + self._rest - self._clock()
        if left > 0:
            return left
        if self._is_probing:
            return self._rest
        self._is_probing = True
        return 0.0

    def report_success(self) -> None:
        self._failures = 0
        self._opened_at = None
        self._is_probing = False
        self._rest = self._first_rest

    def report_failure(self) -> None:
        self._failures += 1
        if self._is_probing:
            self._is_probing = False
            self._rest = min(self._longest_rest, self._rest * 2)
            self._opened_at = self._clock()
        elif self._opened_at is None and self._failures >= self._threshold:
            self._opened_at = self._clock()

    def report_abandoned(self) -> None:
        """Admit another probe: the admitted call was cancelled and says nothing about the endpoint."""
        self._is_probing = False


class EndpointHealth:
    """Recent failures of one endpoint: the first is logged, the rest are counted and summed up."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.breaker = CircuitBreaker(clock)
        self._clock = clock
        self._failures = 0
        self._last_error = ""
        self._last_logged = 0.0
        self._unreachable_since: float | None = None

    def record_no_answer(self, callee: str, error: BaseException, *, connected: bool = True) -> None:
        """Record a call without an answer; `connected` is False if not even a connection was made."""
        self.breaker.report_failure()
        if not connected and self._unreachable_since is None:
            self._unreachable_since = self._clock()
        self.log_failure(callee, describe_error(error))

    def record_answer(self) -> None:
        """Record an answer of any status: the endpoint is there."""
        self.breaker.report_success()
        self._unreachable_since = None

    def unreachable_seconds(self) -> float:
        """Return the seconds since the endpoint last accepted a connection; 0 if it does or was never tried."""
        return 0.0 if self._unreachable_since is None else self._clock() - self._unreachable_since

    def log_failure(self, callee: str, problem: str) -> None:
        """Count one failure, and log it if it is the first or the last summary is old."""
        self._failures += 1
        self._last_error = problem
        now = self._clock()
        if self._failures == 1:
            self._last_logged = now
            logger.warning("call to %s failed: %s (will try again within its budget)", callee, problem)
        elif now - self._last_logged >= SUMMARY_SECONDS:
            self._last_logged = now
            logger.warning("calls to %s failed %d times, last: %s", callee, self._failures, problem)

    def log_recovery(self, callee: str) -> None:
        """Sum up the failures at the first success after them."""
        self.record_answer()
        if self._failures:
            logger.info(
                "%s answers again after %d failed attempt(s), last: %s", callee, self._failures, self._last_error
            )
            self._failures = 0


class HealthRegistry:
    """Health by endpoint (`host:port`) of the endpoints that failed since their last success."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_endpoint: dict[str, EndpointHealth] = {}
        self.reached: set[str] = set()
        """Model endpoints that have answered at least once."""

    def __len__(self) -> int:
        return len(self._by_endpoint)

    def get(self, endpoint: str) -> EndpointHealth | None:
        return self._by_endpoint.get(endpoint)

    def entry(self, endpoint: str) -> EndpointHealth:
        return self._by_endpoint.setdefault(endpoint, EndpointHealth(self._clock))

    def record_success(self, endpoint: str, callee: str) -> None:
        health = self._by_endpoint.pop(endpoint, None)
        if health is not None:
            health.log_recovery(callee)

    def clear(self) -> None:
        self._by_endpoint.clear()
        self.reached.clear()


def describe_error(error: BaseException) -> str:
    """Describe an exception in one line, also when its own text is empty."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
