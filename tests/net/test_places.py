"""Places that processes share. Two objects over the same descriptors are two processes as far as the kernel cares."""

import asyncio
import contextlib
import time
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.net import places
from nemo_gym.net.limits import AdaptiveLimit, PacedOpenAI
from nemo_gym.net.places import SharedPlaces


@contextlib.contextmanager
def shared(most: int, holders: int = 2) -> Iterator[list[SharedPlaces]]:
    made = SharedPlaces.create(most, holders)
    try:
        yield [SharedPlaces(made.counter, made.ledger, number) for number in range(holders)]
    finally:
        made.close()


async def test_together_they_never_have_more_than_were_made() -> None:
    with shared(2) as (one, two):
        taken = [one.take_at_once(), two.take_at_once(), one.take_at_once(), two.take_at_once()]

    assert taken == [True, True, False, False]


async def test_a_place_given_back_by_one_wakes_who_waits_in_the_other() -> None:
    """Waiting costs no polling: the counter itself tells."""
    with shared(1) as (one, two):
        await one.take()
        waiting = asyncio.create_task(two.take())
        await asyncio.sleep(0)
        assert not waiting.done()

        one.give()
        async with asyncio.timeout(10):
            await waiting


async def test_within_a_process_the_first_who_waits_is_the_first_served() -> None:
    order: list[int] = []

    async def call(number: int) -> None:
        await two.take()
        order.append(number)
        two.give()

    with shared(1) as (one, two):
        await one.take()
        calls = [asyncio.create_task(call(number)) for number in range(5)]
        await asyncio.sleep(0)
        one.give()
        async with asyncio.timeout(10):
            await asyncio.gather(*calls)

    assert order == [0, 1, 2, 3, 4]


async def test_who_gives_up_waiting_takes_no_place_along() -> None:
    with shared(1) as (one, two):
        await one.take()
        waiting = asyncio.create_task(two.take())
        await asyncio.sleep(0)
        waiting.cancel()
        one.give()
        await asyncio.sleep(0)
        await asyncio.gather(waiting, return_exceptions=True)

        async with asyncio.timeout(10):
            await one.take()


async def test_the_places_of_a_process_that_died_come_back() -> None:
    """Otherwise every crash would make the run slower until nothing moves."""
    with shared(3) as (one, two):
        for _ in range(3):
            await one.take()

        assert two.returned(0) == 3
        assert two.returned(0) == 0
        assert [two.take_at_once() for _ in range(4)] == [True, True, True, False]


async def test_when_one_is_told_to_wait_all_wait() -> None:
    """`Retry-After` is for whoever uses that endpoint with that key, not for the process that happened to ask."""
    now = [time.monotonic()]
    with shared(4) as lots:
        one, two = (AdaptiveLimit(4, clock=lambda: now[0], shared=lot) for lot in lots)
        ticket = await one.enter()
        one.refused(ticket, retry_after=5.0)
        one.leave()

        assert two.enter_at_once() is None
        now[0] += 6.0
        assert two.enter_at_once() is not None


async def test_the_limit_counts_the_calls_of_others() -> None:
    with shared(2) as lots:
        one, two = (AdaptiveLimit(2, shared=lot) for lot in lots)
        await one.enter()
        await one.enter()
        waiting = asyncio.create_task(two.enter())
        await asyncio.sleep(0)
        assert two.enter_at_once() is None and not waiting.done()

        one.leave()
        async with asyncio.timeout(10):
            await waiting
        two.leave()
        one.leave()

        assert [lot.take_at_once() for lot in lots] == [True, True]


async def test_a_client_takes_what_its_server_was_given_once() -> None:
    """One lot per endpoint, in the order of the clients; a client beyond them has a limit of its own."""
    with shared(2) as (one, _):
        places.adopt("policy_model", [one])
        clients = [
            PacedOpenAI(name="policy_model", base_url="http://x/v1", api_key="k", max_concurrent_requests=2)
            for _ in range(2)
        ]

        assert [client.limit._shared for client in clients] == [one, None]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["take", "give", "die"]), st.integers(0, 2)), max_size=60), st.integers(1, 5))
def test_no_order_of_events_loses_or_invents_a_place(events: list[tuple[str, int]], most: int) -> None:
    """Held plus free is always what was made."""
    held = [0, 0, 0]
    with shared(most, 3) as lots:
        for event, number in events:
            if event == "take":
                held[number] += lots[number].take_at_once()
            elif event == "give" and held[number]:
                lots[number].give()
                held[number] -= 1
            elif event == "die":
                assert lots[0].returned(number) == held[number]
                held[number] = 0
            assert sum(held) <= most

        free = sum(lots[0].take_at_once() for _ in range(most + 1))

    assert free == most - sum(held)
