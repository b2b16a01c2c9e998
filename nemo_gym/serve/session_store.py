"""A bounded store of values per session, which evicts idle sessions."""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

ValueT = TypeVar("ValueT")


class SessionStore(Generic[ValueT]):
    """Maps session ids to values.

    Evicts sessions that were not used for `idle_seconds` and, above `max_sessions`, the least recently used session, so
    that crashed agents do not leak memory.
    """

    def __init__(
        self, *, max_sessions: int = 10_000, idle_seconds: float = 3600.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_sessions, self._idle_seconds, self._clock = max_sessions, idle_seconds, clock
        self._entries: OrderedDict[str, tuple[ValueT, float]] = OrderedDict()  # least recently used first

    def put(self, session_id: str, value: ValueT) -> None:
        """Set the value of a session."""
        self._entries[session_id] = (value, self._clock())
        self._entries.move_to_end(session_id)
        self._evict()

    def get(self, session_id: str) -> ValueT | None:
        """Return the value of a session and mark the session as used; None if it has no value or was evicted."""
        self._evict()
        entry = self._entries.get(session_id)
        if entry is None:
            return None
        self._entries[session_id] = (entry[0], self._clock())
        self._entries.move_to_end(session_id)
        return entry[0]

    def pop(self, session_id: str) -> ValueT | None:
        """Remove a session and return its value; None if it has no value or was evicted."""
        self._evict()
        entry = self._entries.pop(session_id, None)
        return entry[0] if entry else None

    def __len__(self) -> int:
        return len(self._entries)

    def _evict(self) -> None:
        """Evict idle sessions and those above `max_sessions`, least recently used first."""
        oldest_allowed = self._clock() - self._idle_seconds
        while self._entries:
            oldest_id = next(iter(self._entries))
            if len(self._entries) <= self._max_sessions and self._entries[oldest_id][1] >= oldest_allowed:
                return
            del self._entries[oldest_id]
