"""A trainer gets rollouts as they end, whole groups, cancelled prefixes and weight versions from a session."""

import asyncio
import time

import pytest

from nemo_gym import training
from nemo_gym.errors import ConfigError
from nemo_gym.training.policy import Policy
from tests.training.session_world import HangingEngine, row, servers


@pytest.fixture(scope="module")
def engine():
    with HangingEngine() as hanging:
        yield hanging


@pytest.fixture(scope="module")
def head(engine):
    """Start the servers once, in two cells, for all tests of this module; each test connects."""
    with training.sync_session(servers(engine.url, num_cells=2)) as gym:
        yield f"{gym.head.host}:{gym.head.port}"


async def wait_for(semaphore):
    assert await asyncio.to_thread(semaphore.acquire, timeout=10)


async def wait_until(condition):
    """Wait for a state that the session does not signal."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class RecordingPolicy(Policy):
    """A policy that notes what the session asks of it."""

    def __init__(self):
        super().__init__("http://127.0.0.1:9/v1", "m")
        self.calls = []

    async def pause(self):
        self.calls.append("pause")

    async def resume(self):
        self.calls.append("resume")

    async def set_version(self, version):
        self.calls.append(version)


async def test_a_stream_returns_rollouts_as_they_end_with_their_tokens(head):
    """A trainer that waits for the slowest rollout wastes the engine; ids must not depend on the order of ends."""
    rows = [row(seconds=0.5), row(tool=True), row(answer=3)]
    async with training.session(head=head) as gym:
        rollouts = [rollout async for rollout in gym.stream(rows)]

    assert [rollout.rollout_id for rollout in rollouts][-1] == "0-0"
    assert {rollout.rollout_id for rollout in rollouts} == {"0-0", "1-0", "2-0"}
    by_id = {rollout.rollout_id: rollout for rollout in rollouts}
    assert all(rollout.trainable and rollout.reward == 1.0 for rollout in rollouts)
    assert len(by_id["1-0"].samples) == 1  # the second prompt continues the first
    assert [span.turn for span in by_id["1-0"].samples[0].spans] == [0, 1]


async def test_a_row_that_fails_is_a_rollout_and_not_an_exception(head):
    """One bad row among thousands must not end the training."""
    rows = [
        row(agent="nobody"),
        "not a row",
        row("sums_agent", answer=1),
        row(fault=True),
        row("sums_agent", expected=1),
    ]
    async with training.session(head=head) as gym:
        rollouts = {rollout.task: rollout async for rollout in gym.stream(rows)}

    assert [rollouts[task].outcome for task in range(5)] == ["failed", "failed", "failed", "failed", "scored"]
    assert all(rollouts[task].reward is None and not rollouts[task].trainable for task in range(4))
    assert "weather_agent" in rollouts[0].result["_ng_failure"]["message"]
    assert rollouts[2].result["_ng_failure"]["phase"] == "verify"  # the row has no expected_answer


async def test_an_error_of_the_rows_reaches_the_trainer(head):
    """A dataset that breaks must not look like one that ends."""

    def rows():
        yield row()
        raise OSError("the disk is gone")

    async with training.session(head=head) as gym:
        with pytest.raises(OSError, match="the disk is gone"):
            async for _ in gym.stream(rows()):
                pass
        with pytest.raises(OSError, match="the disk is gone"):
            async for _ in gym.groups(rows(), 2):
                pass


async def test_rows_are_read_only_as_rollouts_are_delivered(head):
    """A dataset may be endless; memory is bounded by the rollouts in flight."""
    read = 0

    def rows():
        nonlocal read
        while True:
            read += 1
            yield row()

    async with training.session(head=head) as gym, gym.stream(rows(), at_once=4) as stream:
        for _ in range(3):
            await anext(stream)
        await wait_until(lambda: not gym.in_flight)  # all that may be started have ended

        assert read <= 3 + 2 * 4 + 1


@pytest.mark.parametrize("mode", ["connected", "own"])
async def test_cancelling_returns_the_prefix_within_a_second(head, engine, mode):
    """What a straggler generated was paid for; a trainer may learn from it or resume it."""
    options = {"head": head} if mode == "connected" else {"config": servers(engine.url, num_cells=2)}
    async with training.session(**options) as gym, gym.stream([row(tool=True, seconds=60)] * 3) as stream:
        await wait_until(lambda: len(gym.in_flight) == 3)
        await asyncio.sleep(0.5)  # the first turn, which calls the tool, has ended by then
        start = time.monotonic()
        assert await gym.cancel("1-0")
        seconds = time.monotonic() - start
        rollout = await anext(stream)

        assert seconds < 1.0
        assert (rollout.rollout_id, rollout.outcome, rollout.reward) == ("1-0", "cancelled", None)
        assert rollout.why_not == "cancelled: by the trainer"
        assert rollout.samples[0].trainable_tokens > 0
        assert [item["type"] for item in rollout.result["response"]["output"]] == ["function_call"]
        assert not await gym.cancel("1-0")
        assert len(gym.in_flight) == 2


async def test_cancelling_reaches_the_engine(head, engine):
    """A cancelled rollout that still generates takes the engine from the others."""
    async with training.session(head=head) as gym, gym.stream([row("engine_agent")]) as stream:
        await wait_for(engine.arrived)
        assert await gym.cancel("0-0", keep_prefix=False)
        rollout = await anext(stream)

        assert rollout.outcome == "cancelled"
        await wait_for(engine.given_up)


async def test_closing_a_stream_cancels_at_the_engine_and_counts_the_tokens(head, engine):
    """Every generated token is delivered or counted with a reason, also if the trainer stops early."""
    async with training.session(head=head) as gym:
        stream = gym.stream([row("engine_agent"), row(tool=True, seconds=60)])
        await wait_for(engine.arrived)
        await asyncio.sleep(0.5)  # the first turn of the second rollout has ended by then
        await stream.aclose()

        await wait_for(engine.given_up)
        assert gym.left_out["the stream was closed"] > 0
        assert gym.in_flight == []
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_a_group_takes_the_first_usable_rollouts_and_cancels_the_rest(head):
    """Over-launching hides stragglers only if they do not delay the group and never enter its baseline."""
    async with training.session(head=head) as gym:
        # The first row is slow in all its rollouts, so its group must not delay the second one.
        rows = [row("sums_agent", expected=1, answer=1, seconds=1.5), row("sums_agent", expected=1, answer=1)]
        groups = [group async for group in gym.groups(rows, 4, need=2)]

    assert [group.task for group in groups] == [1, 0]
    for group in groups:
        assert (len(group.usable), group.baseline, group.is_complete) == (2, 1.0, True)
        assert sum(group.left_out.values()) == 2
        assert all("its group had enough rollouts" in reason for reason in group.left_out)


async def test_a_group_without_enough_usable_rollouts_is_returned_and_says_so(head):
    """A trainer must see that a prompt fails, and must not wait for it."""
    async with training.session(head=head) as gym:
        groups = [group async for group in gym.groups([row(fault=True)], 3, need=2)]

    assert (groups[0].usable, groups[0].baseline, groups[0].advantages) == ([], None, [])
    assert not groups[0].is_complete
    assert sum(groups[0].left_out.values()) == 3
    assert len(groups[0].rollouts) == 3


async def test_weights_pause_stamp_and_resume(head):
    """A rollout must carry the version of the weights that generated it, whichever engine serves them."""
    policy = RecordingPolicy()
    async with training.session(head=head, policy=policy) as gym:
        async with gym.weights(5):
            policy.calls.append("update")
            stream = gym.stream([row()])
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(stream), 0.3)  # nothing is started while the weights change
            await stream.aclose()
        rollouts = [rollout async for rollout in gym.stream([row()])]
        async with gym.weights(6, mode="in_flight"):
            policy.calls.append("update")

    assert policy.calls == ["pause", "update", 5, "resume", "update", 6]
    assert rollouts[0].weight_version == (5, 5)


async def test_a_rollout_in_flight_during_an_update_has_both_versions(head):
    """In-flight updates are only safe if the trainer sees which tokens may be off-policy."""
    async with training.session(head=head) as gym, gym.stream([row(seconds=0.7)]) as stream:
        await wait_until(lambda: gym.in_flight)
        async with gym.weights(1, mode="in_flight"):
            pass
        assert (await anext(stream)).weight_version == (0, 1)


async def test_a_failed_update_keeps_the_version_and_resumes(head):
    """A crashed weight push must not leave the engine paused, or tokens stamped with weights it never had."""
    policy = RecordingPolicy()
    async with training.session(head=head, policy=policy) as gym:
        with pytest.raises(ConnectionError):
            async with gym.weights(1):
                raise ConnectionError("no trainer")

        assert (gym.version, policy.calls) == (0, ["pause", "resume"])
        assert [rollout.outcome async for rollout in gym.stream([row()])] == ["scored"]
        with pytest.raises(ValueError, match="not newer"):
            async with gym.weights(0):
                pass


async def test_staleness_limits_what_is_started_and_cancels_what_is_too_old(head):
    """Off-policy data beyond the bound harms; it must neither pile up nor be delivered as trainable."""
    async with training.session(head=head, batch_size=2, max_staleness=1) as gym:
        assert gym.capacity == 4
        async with gym.stream(row(seconds=60) for _ in range(100)) as stream:
            await wait_until(lambda: not gym.capacity)
            await asyncio.sleep(0.1)
            assert len(gym.in_flight) == 4
            for version in (1, 2):
                async with gym.weights(version):
                    pass
            rollout = await anext(stream)

            assert rollout.outcome == "cancelled"
            assert rollout.why_not is not None and rollout.why_not.startswith("cancelled: stale")


async def test_a_rollout_that_grew_stale_in_the_queue_is_not_trainable(head):
    """The trainer may take long; what it takes then must be judged by the version at that time."""
    async with training.session(head=head) as gym, gym.stream([row(seconds=0.3)], max_staleness=1) as stream:
        await wait_until(lambda: gym.in_flight)
        await wait_until(lambda: not gym.in_flight)
        for version in (1, 2):
            async with gym.weights(version):
                pass
        rollout = await anext(stream)

        assert (rollout.trainable, rollout.reward) == (False, 1.0)
        assert rollout.why_not == "stale: version 0 at version 2, more than 1 behind"


def test_a_synchronous_trainer_has_the_same_calls(head):
    """Most trainers have no event loop."""
    with training.sync_session(head=head) as gym:
        assert [rollout.outcome for rollout in gym.stream([row()], group_size=2)] == ["scored", "scored"]
        groups = list(gym.groups([row("sums_agent", expected=1, answer=1)], 2))
        with gym.weights(1):
            pass
        stream = gym.stream([row(seconds=60)])
        while not gym.in_flight:  # the stream starts it on another thread
            time.sleep(0.01)
        assert gym.cancel(gym.in_flight[0])
        assert next(stream).outcome == "cancelled"
        with pytest.raises(ValueError, match="group_size must be at least 1"):
            gym.stream([row()], group_size=0)

        assert (groups[0].baseline, gym.version, gym.left_out) == (1.0, 1, {})


async def test_other_threads_can_use_a_session(head):
    """A trainer that runs its step in a thread must not need a second session."""
    async with training.session(head=head) as gym:
        view = gym.sync
        outcomes = await asyncio.to_thread(lambda: [rollout.outcome for rollout in view.stream([row()])])

    assert outcomes == ["scored"]


@pytest.mark.parametrize("arguments", [{}, {"config": {}, "head": "127.0.0.1:1"}, {"head": "nowhere"}])
async def test_a_session_needs_servers(arguments):
    """A typo must give one clear error, not a default that trains on something else."""
    with pytest.raises(ConfigError):
        async with training.session(**arguments):
            pass


@pytest.mark.parametrize("counts", [{"group_size": 0}, {"group_size": 2, "need": 3}, {"group_size": 2, "at_once": 0}])
async def test_impossible_counts_are_refused(head, counts):
    """A group that needs more than it starts would never be complete."""
    async with training.session(head=head) as gym:
        with pytest.raises(ValueError):
            gym.groups([], **counts)
