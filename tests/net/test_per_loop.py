"""What exists once for each event loop."""

import asyncio
import gc
import weakref

from nemo_gym.net.per_loop import PerLoop


class Thing:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = weakref.ref(loop)


def test_each_loop_gets_its_own_and_always_the_same():
    things = PerLoop(Thing)
    loops = [asyncio.new_event_loop() for _ in range(2)]

    found = [things.of(loop) for loop in (loops[0], loops[1], loops[0], loops[1], loops[1])]

    assert [thing.loop() for thing in found] == [loops[0], loops[1], loops[0], loops[1], loops[1]]
    assert len(set(map(id, found))) == 2
    for loop in loops:
        loop.close()


def test_a_loop_that_is_gone_takes_its_thing_with_it():
    """A trainer runs thousands of loops one after the other."""
    things = PerLoop(Thing)
    loop = asyncio.new_event_loop()
    thing = weakref.ref(things.of(loop))
    other = asyncio.new_event_loop()
    things.of(other)
    loop.close()

    del loop
    gc.collect()

    assert thing() is None
    other.close()
