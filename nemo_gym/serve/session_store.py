"""A bounded store of per-session values: sessions that are no longer used are dropped."""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

ValueT = TypeVar("ValueT")


class SessionStore(Generic[ValueT]):
    """Keep one value per session id.

    Drops a session that was not used for `idle_seconds` and, beyond `most` sessions, the least recently used one: an
    agent that dies between two calls must not cost memory until the server stops.
    """

    def __init__(
        self, *, most: int = 10_000, idle_seconds: float = 3600.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._idle_seconds, self._clock = most, idle_seconds, clock
        self._entries: OrderedDict[str, tuple[ValueT, float]] = OrderedDict()  # least recently used first

    def put(self, session_id: str, value: ValueT) -> None:
        """Store `value` in place of the session's old value."""
        self._entries[session_id] = (value, self._clock())
        self._entries.move_to_end(session_id)
        self._drop_unused()

    def get(self, session_id: str) -> ValueT | None:
        """Return the session's value and mark the session as used; None if it has no value or was dropped."""
        self._drop_unused()
        entry = self._entries.get(session_id)
        if entry is None:
            return None
        self._entries[session_id] = (entry[0], self._clock())
        self._entries.move_to_end(session_id)
        return entry[0]

    def pop(self, session_id: str) -> ValueT | None:
        """Remove the session and return its value."""
        entry = self._entries.pop(session_id, None)
        self._drop_unused()
        return entry[0] if entry else None

    def __len__(self) -> int:
        return len(self._entries)

    def _drop_unused(self) -> None:
        oldest_allowed = self._clock() - self._idle_seconds
        while self._entries:
            first = next(iter(self._entries))
            if len(self._entries) <= self._most and self._entries[first][1] >= oldest_allowed:
                return
            del self._entries[first]
