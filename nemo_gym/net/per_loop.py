"""What exists once for each event loop."""

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, ref

Thing = TypeVar("Thing")


class PerLoop(Generic[Thing]):
    """`of(loop)`: the loop's own thing, made when it is first asked for and forgotten with the loop.

    A process asks for that of one loop again and again, so the last one is found without a look at the others.
    """

    def __init__(self, make: Callable[[asyncio.AbstractEventLoop], Thing]) -> None:
        self._make = make
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Thing] = WeakKeyDictionary()
        self._last: tuple[Callable[[], Any], Thing] | None = None

    def of(self, loop: asyncio.AbstractEventLoop) -> Thing:
        last = self._last
        if last is not None and last[0]() is loop:
            return last[1]
        thing = self._by_loop.get(loop)
        if thing is None:
            thing = self._by_loop[loop] = self._make(loop)
        self._last = (ref(loop), thing)
        return thing
