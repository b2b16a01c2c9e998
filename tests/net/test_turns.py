"""Work that becomes possible all at once is begun over several rounds of the loop."""

import asyncio
import itertools

from nemo_gym.net.turns import AT_A_TIME, Turns, current_turns


async def test_a_burst_is_begun_in_order_a_few_in_each_round() -> None:
    """Timers and other servers get their turn in between: that is what keeps a loop from lagging."""
    turns = Turns(asyncio.get_running_loop())
    begun: list[int] = []

    for number in range(3 * AT_A_TIME + 1):
        turns.take(lambda number=number: begun.append(number))  # type: ignore[misc]
    sizes = [len(begun)]
    while sizes[-1] < 3 * AT_A_TIME + 1:
        await asyncio.sleep(0)
        sizes.append(len(begun))

    assert begun == sorted(begun)
    assert sizes[0] == AT_A_TIME
    assert max(later - earlier for earlier, later in itertools.pairwise(sizes)) <= AT_A_TIME


async def test_who_comes_alone_does_not_wait() -> None:
    """A single rollout must not be slower for it."""
    begun: list[int] = []

    current_turns().take(lambda: begun.append(1))

    assert begun == [1]


async def test_who_comes_later_does_not_overtake() -> None:
    turns = Turns(asyncio.get_running_loop())
    begun: list[str] = []
    for _ in range(AT_A_TIME + 1):
        turns.take(lambda: begun.append("first"))

    turns.take(lambda: begun.append("last"))
    for _ in range(3):
        await asyncio.sleep(0)

    assert begun == ["first"] * (AT_A_TIME + 1) + ["last"]


async def test_all_who_share_a_loop_share_its_turns() -> None:
    assert current_turns() is current_turns()
