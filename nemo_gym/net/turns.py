"""So many at a time: work that becomes possible all at once is begun over several rounds of the event loop.

When a thousand answers arrive together, a loop that lets all of them go on in one round does nothing else until the
last of them waits again: no timer fires, no other server of the cell answers. `Turns` lets a few go on in each round.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from weakref import ref

from nemo_gym.net.per_loop import PerLoop

AT_A_TIME = 24
"""A turn takes half a millisecond, on a busy machine two; a round then stays below a twentieth of a second.

What a round writes goes out together (`outbox`): more at a time wake the other end less often."""


class Turns:
    """Begins what it is given in the order it was given, at most `AT_A_TIME` in each round of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = ref(loop)
        self._begun = 0
        self._waiting: deque[Callable[[], object]] = deque()

    def take(self, begin: Callable[[], object]) -> None:
        """Call `begin`, which must only make work ready and not do it: now, or when it is its turn."""
        if self._waiting or self._begun >= AT_A_TIME:
            self._waiting.append(begin)
            return
        if not self._begun:
            self._again()
        self._begun += 1
        begin()

    def _next_round(self) -> None:
        self._begun = 0
        while self._waiting and self._begun < AT_A_TIME:
            self._begun += 1
            self._waiting.popleft()()
        if self._begun:
            self._again()

    def _again(self) -> None:
        loop = self._loop()
        if loop is not None:
            loop.call_soon(self._next_round)


_turns = PerLoop(Turns)


def current_turns() -> Turns:
    """The running loop's turns: all who share a loop share them."""
    return _turns.of(asyncio.get_running_loop())
