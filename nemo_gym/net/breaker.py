"""A circuit breaker per endpoint: stop calling who does not answer, ask again now and then.

closed ──`threshold` failures in a row──► open ──rest over──► half-open: one probe at a time
   ▲                                        ▲                     │
   └───────────── probe answered ───────────┼─────────────────────┤
                                            └── probe failed: rest twice as long
"""

from collections.abc import Callable
from typing import Literal

State = Literal["closed", "open", "half-open"]


class Breaker:
    """Counts failures to reach one endpoint. Every answer counts as success, whatever its status.

    `clock` is any monotonic clock in seconds; there is no timer and no task, so the same calls at the same times
    always give the same states.
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
        self._probing = False

    @property
    def state(self) -> State:
        if self._opened_at is None:
            return "closed"
        rested = self._clock() - self._opened_at >= self._rest
        return "half-open" if self._probing or rested else "open"

    def admit(self) -> float:
        """0.0: go ahead (and report back). Otherwise: seconds to wait before asking again."""
        if self._opened_at is None:
            return 0.0
        left = self._opened_at + self._rest - self._clock()
        if left > 0:
            return left
        if self._probing:
            return self._rest
        self._probing = True
        return 0.0

    def succeeded(self) -> None:
        self._failures = 0
        self._opened_at = None
        self._probing = False
        self._rest = self._first_rest

    def failed(self) -> None:
        self._failures += 1
        if self._probing:
            self._probing = False
            self._rest = min(self._longest_rest, self._rest * 2)
            self._opened_at = self._clock()
        elif self._opened_at is None and self._failures >= self._threshold:
            self._opened_at = self._clock()

    def abandoned(self) -> None:
        """The admitted call ended without telling anything about the endpoint (cancelled): let another probe."""
        self._probing = False
