"""What we know about endpoints that failed lately: breaker state and a log that does not repeat itself."""

import logging
import time
from collections.abc import Callable

from nemo_gym.net.breaker import Breaker

logger = logging.getLogger("nemo_gym.net")

SUMMARY_SECONDS = 30.0
"""While an endpoint keeps failing, say so this often."""


class EndpointHealth:
    """The recent failures of one endpoint: its first is logged, the rest are counted and summed up."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.breaker = Breaker(clock)
        self._clock = clock
        self._failures = 0
        self._last_error = ""
        self._last_logged = 0.0
        self._closed_since: float | None = None

    def failed(self, callee: str, error: BaseException, *, connected: bool = True) -> None:
        """Note a call that got no answer, or was not even `connected`."""
        self.breaker.failed()
        if not connected and self._closed_since is None:
            self._closed_since = self._clock()
        self.note(callee, describe(error))

    def answered(self) -> None:
        """It is there, whatever it says."""
        self.breaker.succeeded()
        self._closed_since = None

    def closed_seconds(self) -> float:
        """For how long it has taken no connection, whoever called; 0 when it takes them, or nobody tried."""
        return 0.0 if self._closed_since is None else self._clock() - self._closed_since

    def note(self, callee: str, problem: str) -> None:
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

    def recovered(self, callee: str) -> None:
        """Sum up on the first answer after failures."""
        self.answered()
        if self._failures:
            logger.info(
                "%s answers again after %d failed attempt(s), last: %s", callee, self._failures, self._last_error
            )
            self._failures = 0


class HealthBook:
    """Health by endpoint (`host:port`). Holds only endpoints that failed since their last answer."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._entries: dict[str, EndpointHealth] = {}
        self.met: set[str] = set()
        """Model endpoints that have answered at least once."""

    def __len__(self) -> int:
        return len(self._entries)

    def known(self, endpoint: str) -> EndpointHealth | None:
        return self._entries.get(endpoint)

    def entry(self, endpoint: str) -> EndpointHealth:
        return self._entries.setdefault(endpoint, EndpointHealth(self._clock))

    def answered(self, endpoint: str, callee: str) -> None:
        health = self._entries.pop(endpoint, None)
        if health is not None:
            health.recovered(callee)

    def clear(self) -> None:
        self._entries.clear()
        self.met.clear()


def describe(error: BaseException) -> str:
    """One line about an exception, also when its own text is empty."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
