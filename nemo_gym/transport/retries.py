"""Retry policy (backoff with jitter), circuit breaker, and endpoint health for outgoing HTTP calls."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Literal

logger = logging.getLogger("nemo_gym.transport")

Uniform = Callable[[float, float], float]
"""`random.uniform` or a replacement in tests."""

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
OVERLOAD_STATUSES = frozenset({429, 503, 529})
"""Statuses with which a server rejects a request without executing it."""

SUMMARY_SECONDS = 30.0
"""Minimum interval between log lines about a failing endpoint."""


@dataclass(frozen=True)
class RetryPolicy:
    """Which failures of a call are retried, how often, for how long, and with which pauses (exponential backoff)."""

    attempts: int = 6
    """Maximum number of requests sent, including the first."""
    budget_seconds: float = 60.0
    """Seconds after the first attempt in which further attempts may start."""
    first_pause: float = 0.25
    max_pause: float = 10.0
    statuses: frozenset[int] = frozenset()
    """Statuses that are retried with or without `Retry-After`."""
    few_attempts_statuses: frozenset[int] = frozenset()
    """Statuses that get only `few_attempts` attempts, because they are often permanent."""
    few_attempts: int = 3
    retry_after_statuses: frozenset[int] = OVERLOAD_STATUSES
    """Statuses that are retried only with `Retry-After`, which shows a deliberate rejection."""
    has_unreachable_timeout: bool = False
    """Fail all calls to an endpoint that accepted no connection for `unreachable_timeout_seconds`."""

    def with_attempts(self, attempts: int | None) -> "RetryPolicy":
        """Return the policy with this number of attempts for every failure; the same policy for None."""
        return self if attempts is None else replace(self, attempts=attempts, few_attempts=attempts)

    def retries_status(self, status: int, failures: int, retry_after: float | None) -> bool:
        """Return True if an answer with this status is retried after `failures` failed attempts."""
        if status in self.statuses:
            return True
        if status in self.few_attempts_statuses:
            return failures < self.few_attempts
        return status in self.retry_after_statuses and retry_after is not None


ONCE = RetryPolicy(attempts=1)
SERVER_CALL = RetryPolicy()
"""Calls between our servers: retried during a restart, and after 429 or 503 with `Retry-After`."""
MODEL_CALL = RetryPolicy(
    attempts=40,
    budget_seconds=900.0,
    first_pause=0.5,
    max_pause=30.0,
    statuses=frozenset({429, 502, 503, 504, 520, 529}),
    few_attempts_statuses=frozenset({500}),
    has_unreachable_timeout=True,
)
"""Calls to model endpoints: rate limits are retried for 15 minutes, a closed port for less."""


def jittered_pause(policy: RetryPolicy, failures: int, uniform: Uniform) -> float:
    """Return a random pause from 0 to `first_pause * 2^(failures-1)`, at most `max_pause`."""
    ceiling = min(policy.max_pause, policy.first_pause * 2.0 ** min(failures - 1, 60))  # 2^1024 would overflow
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
    """Return the seconds to wait before the next attempt; None if the call must not be retried.

    `spent` is the time since the first attempt and `left` the time until the deadline, in seconds. The result is None
    if the attempts are used up, or if the pause would end after the budget or the deadline.
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


def parse_retry_after(value: str | None, now: datetime) -> float | None:
    """Return the seconds in a `Retry-After` header (a number or an HTTP date); None if it is absent or malformed."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return float(text) if len(text) <= 8 else float("inf")  # more than 8 digits is more than a year
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - now).total_seconds())


class CircuitBreaker:
    """Stop calls to an endpoint after `threshold` consecutive failures, then probe it periodically.

    closed ──`threshold` failures──► open ──`open_seconds` over──► half-open: one probe at a time
       ▲                               ▲                              │
       └──────── probe answered ───────┼──────────────────────────────┤
                                       └── probe failed: open for twice as long

    An answer of any status counts as success. The state depends only on the calls and on `clock`, a monotonic clock in
    seconds; there is no timer or task.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        threshold: int = 16,
        first_open_seconds: float = 0.5,
        max_open_seconds: float = 15.0,
    ) -> None:
        self._clock = clock
        self._threshold = threshold
        self._first_open_seconds = first_open_seconds
        self._max_open_seconds = max_open_seconds
        self._open_seconds = first_open_seconds
        self._failures = 0
        self._opened_at: float | None = None
        self._is_probing = False

    @property
    def state(self) -> Literal["closed", "open", "half-open"]:
        if self._opened_at is None:
            return "closed"
        may_probe = self._clock() - self._opened_at >= self._open_seconds
        return "half-open" if self._is_probing or may_probe else "open"

    def admit(self) -> float:
        """Return 0.0 if the call may be sent, else the seconds to wait before the next `admit`.

        An admitted call must report its result with `report_success`, `report_failure` or `report_abandoned`.
        """
        if self._opened_at is None:
            return 0.0
        left = self._opened_at + self._open_seconds - self._clock()
        if left > 0:
            return left
        if self._is_probing:
            return self._open_seconds
        self._is_probing = True
        return 0.0

    def report_success(self) -> None:
        """Close the circuit, which means that calls are sent again."""
        self._failures = 0
        self._opened_at = None
        self._is_probing = False
        self._open_seconds = self._first_open_seconds

    def report_failure(self) -> None:
        """Count a failure; open the circuit at the threshold, and for twice as long after a failed probe."""
        self._failures += 1
        if self._is_probing:
            self._is_probing = False
            self._open_seconds = min(self._max_open_seconds, self._open_seconds * 2)
            self._opened_at = self._clock()
        elif self._opened_at is None and self._failures >= self._threshold:
            self._opened_at = self._clock()

    def report_abandoned(self) -> None:
        """Admit another probe: the call was cancelled and gives no information about the endpoint's health."""
        self._is_probing = False


class EndpointHealth:
    """Recent failures of one endpoint. The first failure is logged; later failures are counted and summarised."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.breaker = CircuitBreaker(clock)
        self._clock = clock
        self._failures = 0
        self._last_error = ""
        self._last_logged = 0.0
        self._unreachable_since: float | None = None

    def record_no_answer(self, callee: str, error: BaseException, *, connected: bool = True) -> None:
        """Record a call without an answer; `connected` is False if the connection failed."""
        self.breaker.report_failure()
        if not connected and self._unreachable_since is None:
            self._unreachable_since = self._clock()
        self.log_failure(callee, describe_error(error))

    def record_answer(self) -> None:
        """Record an answer of any status, which shows that the endpoint is reachable."""
        self.breaker.report_success()
        self._unreachable_since = None

    def unreachable_seconds(self) -> float:
        """Return the seconds since the first failed connection; 0 if the endpoint answered after that."""
        return 0.0 if self._unreachable_since is None else self._clock() - self._unreachable_since

    def log_failure(self, callee: str, problem: str) -> None:
        """Count a failure; log the first, then one summary every `SUMMARY_SECONDS`."""
        self._failures += 1
        self._last_error = problem
        now = self._clock()
        if self._failures == 1:
            self._last_logged = now
            logger.warning("call to %s failed: %s (will try again within its budget)", callee, problem)
        elif now - self._last_logged >= SUMMARY_SECONDS:
            self._last_logged = now
            logger.warning("calls to %s failed %d times, last: %s", callee, self._failures, problem)

    def record_recovery(self, callee: str) -> None:
        """Record a success; log the number of failures before it."""
        self.record_answer()
        if self._failures:
            logger.info(
                "%s answers again after %d failed attempt(s), last: %s", callee, self._failures, self._last_error
            )
            self._failures = 0


class HealthRegistry:
    """Maps endpoints (`host:port`) that failed since their last success to their health."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.failing: dict[str, EndpointHealth] = {}
        self.answered_before: set[str] = set()
        """Model endpoints that answered at least once without an error."""

    def get(self, endpoint: str) -> EndpointHealth | None:
        return self.failing.get(endpoint)

    def entry(self, endpoint: str) -> EndpointHealth:
        return self.failing.setdefault(endpoint, EndpointHealth(self._clock))

    def record_success(self, endpoint: str, callee: str) -> None:
        health = self.failing.pop(endpoint, None)
        if health is not None:
            health.record_recovery(callee)

    def clear(self) -> None:
        self.failing.clear()
        self.answered_before.clear()


def describe_error(error: BaseException) -> str:
    """Return `Type: message` in one line; only `Type` if the message is empty."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
