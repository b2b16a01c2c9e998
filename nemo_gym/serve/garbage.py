"""When Python looks for garbage that only its cyclic collector finds: seldom, and never because many are at work.

A rollout makes thousands of short-lived objects and hardly a cycle; the default rounds cost a sixth of its time. The
collector begins a round when there are so many more objects than at the last. A thousand rollouts that begin together
are such a moment, and nothing of theirs is garbage: the round looks at all they hold, in vain, and stops the loop for
tenths of a second. So the number that brings a round about grows with the calls that are under way.
"""

import asyncio
import gc

from nemo_gym.net.alarms import calls_under_way

NEW_OBJECTS = 200_000
"""More than at the last round: then there is one."""

OBJECTS_OF_A_CALL = 300
"""What a call that waits for a model holds, its rollout's share included; two calls of a rollout wait at a time."""

LATER_ROUNDS = (50, 50)
"""So many rounds before older objects are looked at once: a cycle that outlives its first round may stay a while."""

LOOK_SECONDS = 0.05


def settle() -> None:
    """Leave what is loaded by now out of the rounds, and make them rarer."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, *LATER_ROUNDS)


class Rounds:
    """Keeps the rounds of a process in step with what its loop has under way."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look now and every little while."""
        wanted = NEW_OBJECTS + OBJECTS_OF_A_CALL * calls_under_way(self._loop)
        now = gc.get_threshold()[0]
        if wanted > now or wanted < now // 2:  # not at every change
            gc.set_threshold(wanted, *LATER_ROUNDS)
        self._timer = self._loop.call_later(LOOK_SECONDS, self.start)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        gc.set_threshold(NEW_OBJECTS, *LATER_ROUNDS)
