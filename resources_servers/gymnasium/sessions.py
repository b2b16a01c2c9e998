"""What sessions keep, bounded: those nobody asks for any more are forgotten."""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

KeptT = TypeVar("KeptT")


class Sessions(Generic[KeptT]):
    """One value for each session id.

    A session that is left alone for `idle_seconds` is dropped, and so is the one left alone longest when there are
    more than `most`: an agent that died between two calls must not cost memory for ever.
    """

    def __init__(
        self, *, most: int = 10_000, idle_seconds: float = 3600.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._idle_seconds, self._clock = most, idle_seconds, clock
        self._kept: OrderedDict[str, tuple[KeptT, float]] = OrderedDict()  # the one left alone longest comes first

    def put(self, session_id: str, value: KeptT) -> None:
        """Keep `value`, in place of what the session had."""
        self._kept[session_id] = (value, self._clock())
        self._kept.move_to_end(session_id)
        self._drop_abandoned()

    def get(self, session_id: str) -> KeptT | None:
        """What the session keeps, which thereby is in use; None when it keeps nothing, or nothing any more."""
        self._drop_abandoned()
        found = self._kept.get(session_id)
        if found is None:
            return None
        self._kept[session_id] = (found[0], self._clock())
        self._kept.move_to_end(session_id)
        return found[0]

    def pop(self, session_id: str) -> KeptT | None:
        """What the session kept; it is over."""
        found = self._kept.pop(session_id, None)
        self._drop_abandoned()
        return found[0] if found else None

    def __len__(self) -> int:
        return len(self._kept)

    def _drop_abandoned(self) -> None:
        oldest_allowed = self._clock() - self._idle_seconds
        while self._kept:
            first = next(iter(self._kept))
            if len(self._kept) <= self._most and self._kept[first][1] >= oldest_allowed:
                return
            del self._kept[first]
