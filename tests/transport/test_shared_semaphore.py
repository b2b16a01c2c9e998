"""Places that processes share. Two objects over the same descriptors are two processes as far as the kernel cares."""

import asyncio
import contextlib
import time
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.transport import shared_semaphore
from nemo_gym.transport.adaptive_limit import AdaptiveLimit
from nemo_gym.transport.model_client import PacedOpenAI
from nemo_gym.transport.shared_semaphore import SharedSemaphore


@contextlib.contextmanager
def shared_semaphores(most: int, holders: int = 2) -> Iterator[list[SharedSemaphore]]:
    made = SharedSemaphore.create(most, holders)
    try:
        yield [SharedSemaphore(made.counter, made.ledger, number) for number in range(holders)]
    finally:
        made.close()


async def test_together_they_never_have_more_than_were_made() -> None:
    """Several processes together must respect the limit the user set for the endpoint."""
    with shared_semaphores(2) as (one, two):
        taken = [one.try_acquire(), two.try_acquire(), one.try_acquire(), two.try_acquire()]

    assert taken == [True, True, False, False]


async def test_a_place_given_back_by_one_wakes_who_waits_in_the_other() -> None:
    """Waiting costs no polling: the counter itself tells."""
    with shared_semaphores(1) as (one, two):
        await one.acquire()
        waiting = asyncio.create_task(two.acquire())
        await asyncio.sleep(0)
        assert not waiting.done()

        one.release()
        async with asyncio.timeout(10):
            await waiting


async def test_within_a_process_the_first_who_waits_is_the_first_served() -> None:
    """An unfair order would let single rollouts wait until their deadline."""
    order: list[int] = []

    async def call(number: int) -> None:
        await two.acquire()
        order.append(number)
        two.release()

    with shared_semaphores(1) as (one, two):
        await one.acquire()
        calls = [asyncio.create_task(call(number)) for number in range(5)]
        await asyncio.sleep(0)
        one.release()
        async with asyncio.timeout(10):
            await asyncio.gather(*calls)

    assert order == [0, 1, 2, 3, 4]


async def test_who_gives_up_waiting_takes_no_place_along() -> None:
    """A lost slot would slow the run down for good; losing all would stop it."""
    with shared_semaphores(1) as (one, two):
        await one.acquire()
        waiting = asyncio.create_task(two.acquire())
        await asyncio.sleep(0)
        waiting.cancel()
        one.release()
        await asyncio.sleep(0)
        await asyncio.gather(waiting, return_exceptions=True)

        async with asyncio.timeout(10):
            await one.acquire()


async def test_the_places_of_a_process_that_died_come_back() -> None:
    """Otherwise every crash would make the run slower until nothing moves."""
    with shared_semaphores(3) as (one, two):
        for _ in range(3):
            await one.acquire()

        assert two.release_holder(0) == 3
        assert two.release_holder(0) == 0
        assert [two.try_acquire() for _ in range(4)] == [True, True, True, False]


async def test_when_one_is_told_to_wait_all_wait() -> None:
    """`Retry-After` applies to every user of that endpoint and key, not only to the process that called."""
    now = [time.monotonic()]
    with shared_semaphores(4) as lots:
        one, two = (AdaptiveLimit(4, clock=lambda: now[0], shared=lot) for lot in lots)
        ticket = await one.enter()
        one.record_rejection(ticket, retry_after=5.0)
        one.leave()

        assert two.try_enter() is None
        now[0] += 6.0
        assert two.try_enter() is not None


async def test_the_limit_counts_the_calls_of_others() -> None:
    """The endpoint sees the sum over all processes, so the limit must be for the sum."""
    with shared_semaphores(2) as lots:
        one, two = (AdaptiveLimit(2, shared=lot) for lot in lots)
        await one.enter()
        await one.enter()
        waiting = asyncio.create_task(two.enter())
        await asyncio.sleep(0)
        assert two.try_enter() is None and not waiting.done()

        one.leave()
        async with asyncio.timeout(10):
            await waiting
        two.leave()
        one.leave()

        assert [lot.try_acquire() for lot in lots] == [True, True]


async def test_a_client_takes_what_its_server_was_given_once() -> None:
    """One lot per endpoint, in the order of the clients; a client beyond them has a separate limit."""
    with shared_semaphores(2) as (one, _):
        shared_semaphore.adopt_semaphores("policy_model", [one])
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
    with shared_semaphores(most, 3) as lots:
        for event, number in events:
            if event == "take":
                held[number] += lots[number].try_acquire()
            elif event == "give" and held[number]:
                lots[number].release()
                held[number] -= 1
            elif event == "die":
                assert lots[0].release_holder(number) == held[number]
                held[number] = 0
            assert sum(held) <= most

        free = sum(lots[0].try_acquire() for _ in range(most + 1))

    assert free == most - sum(held)
