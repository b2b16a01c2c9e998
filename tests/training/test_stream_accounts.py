"""Streams and groups end, and account for every rollout, whenever a trainer closes, cancels or needs fewer."""

import asyncio
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from nemo_gym.rollouts.outcome import CancelledRollout, ScoredRollout
from nemo_gym.training.policy import Policy
from nemo_gym.training.sessions import Gym

AGENT = {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py", "host": "127.0.0.1", "port": 1}}}
TOKENS = 3


class ManualGym(Gym):
    """A session without servers: a rollout ends, with `TOKENS` generated tokens, when the test says so."""

    def __init__(self, **options):
        client = SimpleNamespace(global_config_dict=OmegaConf.create({"agent": AGENT}), head_server_config=None)
        super().__init__(client, **options)
        self.ends = {}
        self.constrained = False

    async def _attempt(self, launch):
        self.ends[launch.rollout_id] = asyncio.get_running_loop().create_future()
        try:
            await self.ends[launch.rollout_id]
        except asyncio.CancelledError:
            asyncio.current_task().uncancel()
            return CancelledRollout(launch.job)
        item = {
            "type": "message",
            "prompt_token_ids": [1],
            "generation_token_ids": [2] * TOKENS,
            "generation_log_probs": [-0.5] * TOKENS,
            "constrained": self.constrained,
        }
        return ScoredRollout(launch.job, launch.job.with_key({"reward": 1.0, "response": {"output": [item]}}))

    async def _ask_to_cancel(self, launch, seconds):
        return False

    async def wait_for_starts(self, count):
        """Let the tasks run until `count` rollouts were started."""
        async with asyncio.timeout(10):
            while len(self.ends) < count:  # noqa: ASYNC110
                await asyncio.sleep(0)

    async def end(self, *rollouts):
        """End rollouts at the same moment, and let the tasks run until they are sorted into groups."""
        for rollout in rollouts:
            self.ends[rollout].set_result(None)
        async with asyncio.timeout(10):
            while set(rollouts) & set(self.in_flight):  # noqa: ASYNC110
                await asyncio.sleep(0)
        for _ in range(10):  # turns of the event loop, in which nothing else is ready
            await asyncio.sleep(0)


async def test_a_group_that_has_enough_ends_although_no_more_may_be_started():
    """The trainer updates the weights after the group; if the group waits for the update, neither goes on."""
    gym = ManualGym(batch_size=3, max_staleness=0)
    async with gym.groups([{}], 4, need=3) as groups:
        await gym.wait_for_starts(3)
        await gym.end("0-0", "0-1", "0-2")
        async with asyncio.timeout(10):
            group = await anext(groups)

    assert (len(group.usable), group.left_out) == (3, {"not started": 1})


@pytest.mark.parametrize(("batch_size", "need", "group_size"), [(5, 3, 3), (5, 3, 4), (4, 3, 3), (7, 2, 4)])
async def test_a_batch_that_ends_within_a_group_gets_the_whole_group(batch_size, need, group_size):
    """The trainer updates after `batch_size` rollouts; a group that waits for that update would never end."""
    gym = ManualGym(batch_size=batch_size, max_staleness=0)

    async def end_all():
        for count in range(1, 1000):
            await gym.wait_for_starts(count)
            rollout = list(gym.ends)[count - 1]
            if not gym.ends[rollout].done():
                await gym.end(rollout)

    async with gym.groups(({} for _ in range(100)), group_size, need=need) as groups:
        ending = asyncio.create_task(end_all())
        async with asyncio.timeout(10):
            for version in range(1, 4):
                batch = 0
                while batch < batch_size:
                    batch += len((await anext(groups)).usable)
                async with gym.weights(version):
                    pass
        ending.cancel()
        await asyncio.wait({ending})


class CountingPolicy(Policy):
    """An engine that reports how many tokens it has generated."""

    generated = 100

    async def tokens_generated(self):
        return self.generated


async def test_tokens_of_a_cancelled_call_are_counted_by_the_engine():
    """No answer reports them, but a trainer pays for them: the law has no exception for calls in flight."""
    policy = CountingPolicy("http://127.0.0.1:1/v1", "m")
    gym = ManualGym(policy=policy, tokens_before=100)
    stream = gym.stream([{}, {}])
    await gym.wait_for_starts(2)
    await gym.end("0-0")
    policy.generated += TOKENS + 40  # one rollout is complete, the other is in the middle of a call
    assert (await gym.token_account()).left_out == {
        "not delivered yet, or in calls that were cancelled or failed": TOKENS + 40
    }
    await anext(stream)
    await gym.cancel("1-0")
    cancelled = await anext(stream)
    await stream.aclose()

    assert cancelled.outcome == "cancelled"
    account = await gym.token_account()
    assert (account.generated, account.delivered) == (TOKENS + 40, TOKENS)
    assert account.left_out == {"in calls that were cancelled or failed": 40}


async def test_an_engine_without_a_counter_says_so():
    """A zero would claim that nothing was lost."""
    gym = ManualGym(policy=Policy("http://127.0.0.1:1/v1", "m"))
    assert (await gym.token_account()).generated is None


async def test_a_group_that_can_never_be_complete_is_refused():
    """It would wait for an update that the trainer makes only with the group."""
    gym = ManualGym(batch_size=3, max_staleness=1)
    with pytest.raises(ValueError, match="permit only 6 rollouts"):
        gym.groups([], 8, need=7)
    await gym.groups([], 8, need=6).aclose()
    await gym.groups([], 8, need=7, max_staleness=2).aclose()


async def test_usable_rollouts_beyond_need_leave_their_places():
    """They are not trained on; if they kept their places, each group would start fewer until none is complete."""
    gym = ManualGym(batch_size=4, max_staleness=0)
    async with gym.groups([{}], 4, need=2) as groups:
        await gym.wait_for_starts(4)
        await gym.end("0-0", "0-1", "0-2", "0-3")
        group = await anext(groups)

        assert (len(group.usable), group.left_out) == (2, {"its group had enough rollouts": 2})
        assert gym.capacity == 2


async def test_rollouts_of_a_closed_stream_leave_their_places():
    """A trainer that closes a stream and opens another one must get as many rollouts as before."""
    gym = ManualGym(batch_size=2, max_staleness=0)
    stream = gym.stream([{}, {}])
    await gym.wait_for_starts(2)
    await gym.end("0-0")
    await stream.aclose()

    assert (gym.capacity, gym.left_out) == (2, {"the stream was closed": TOKENS})


@pytest.mark.parametrize("closed", ["groups", "session"])
async def test_groups_that_were_not_returned_are_counted(closed):
    """Every generated token is delivered or counted, also in groups that are complete or partly done at the end."""
    gym = ManualGym(batch_size=4, max_staleness=0)
    groups = gym.groups([{}, {}], 2)
    await gym.wait_for_starts(4)
    await gym.end("0-0", "0-1", "1-0")
    await (groups.aclose() if closed == "groups" else gym.close())

    assert (gym.capacity, gym.left_out) == (4, {"the stream was closed": 3 * TOKENS})
    with pytest.raises(StopAsyncIteration):
        await anext(groups)


class SlowPolicy(Policy):
    """An engine that pauses at once, but whose answer to that fails or never arrives."""

    def __init__(self, error=None):
        super().__init__("http://127.0.0.1:9/v1", "m")
        self.error = error
        self.is_paused = False
        self.was_asked = asyncio.Event()

    async def pause(self):
        self.is_paused = True
        self.was_asked.set()
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()

    async def resume(self):
        self.is_paused = False


async def update(gym):
    async with gym.weights(1):
        raise AssertionError("the engine did not say that it is paused")


async def test_an_engine_whose_pause_fails_is_resumed():
    """The engine may have paused although its answer was lost; then it would stay paused."""
    policy = SlowPolicy(ConnectionError("no answer"))
    gym = ManualGym(policy=policy)
    with pytest.raises(ConnectionError, match="no answer"):
        await update(gym)

    assert (policy.is_paused, gym.version) == (False, 0)


async def test_an_engine_whose_pause_is_cancelled_is_resumed():
    """A trainer that gives up an update goes on with the old weights, and so must the engine."""
    policy = SlowPolicy()
    gym = ManualGym(policy=policy)
    updating = asyncio.create_task(update(gym))
    await policy.was_asked.wait()
    updating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await updating

    assert (policy.is_paused, gym.version) == (False, 0)


async def test_a_rollout_cancelled_before_it_began_is_returned():
    """A trainer that waits for what it cancelled, or for its group, would never go on, and its place would be lost."""
    gym = ManualGym(batch_size=2, max_staleness=0)

    async def rows():
        yield {}
        await gym.cancel("0-0", keep_prefix=False)  # its task exists, but has not run

    async with gym.groups(rows(), 1) as groups:
        rollouts = [rollout async for group in groups for rollout in group.rollouts]

    assert gym.ends == {}
    assert [(rollout.rollout_id, rollout.outcome) for rollout in rollouts] == [("0-0", "cancelled")]
    assert rollouts[0].why_not == "cancelled: by the trainer; nothing generated was returned"
    assert gym.capacity == 2


async def test_constrained_tokens_that_are_not_delivered_are_counted_once():
    """The sum of delivered and counted tokens is compared with what the engine generated."""
    gym = ManualGym()
    gym.constrained = True
    stream = gym.stream([{}])
    await gym.wait_for_starts(1)
    await gym.end("0-0")
    await stream.aclose()

    assert gym.left_out == {"the stream was closed": TOKENS}


async def test_a_blocking_call_on_the_loop_of_the_session_is_refused():
    """The loop would wait for itself, without end and without a message."""
    gym = ManualGym()

    with pytest.raises(RuntimeError, match="await the methods of Gym"):
        gym.sync.cancel("0-0")
