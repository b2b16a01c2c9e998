"""What the driver does with nodes that hang, fail or return. Ray itself is replaced; tests/cluster has it."""

import asyncio
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from nemo_gym.errors import ConfigError, GymError
from nemo_gym.launch.engines.base import Placement
from nemo_gym.launch.engines.ray import cluster_run, node_handle
from nemo_gym.launch.engines.ray.cluster_options import RayOptions
from nemo_gym.launch.engines.ray.cluster_run import MAX_FAILED_STARTS, ClusterRun, _Slot
from nemo_gym.launch.engines.ray.node_handle import NodeHandle
from nemo_gym.launch.engines.ray.node_run import NodeReport, NodeSpec

pytestmark = pytest.mark.asyncio
WORKLOAD = "module:function"


async def never():
    await asyncio.Event().wait()


class ActorMethod:
    """A method of an actor as Ray calls it."""

    def __init__(self, function):
        self.remote = function


class Actor:
    """The actor of a node, whose answers a test chooses."""

    def __init__(self, report=None, workload=None):
        self.report = ActorMethod(report or self._answer)
        self.open_workload = ActorMethod(workload or self._answer)

    async def _answer(self, *_):
        return NodeReport()


@pytest.fixture
def places(monkeypatch):
    """A function that returns a run whose places start these actors, one after the other, the last one repeatedly."""
    exceptions = SimpleNamespace(RayTaskError=LookupError, RayError=BufferError)
    monkeypatch.setattr(node_handle, "import_ray", lambda: SimpleNamespace(exceptions=exceptions))
    monkeypatch.setattr(cluster_run, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(cluster_run, "REFRESH_SECONDS", 0.001)
    ended = []

    async def end(handle, *_):
        ended.append(handle.name)

    monkeypatch.setattr(cluster_run, "end_node_run", end)

    def create(*actors, count=1):
        waiting = list(actors)
        lines = []
        run = ClusterRun(Placement(OmegaConf.create({}), [], notify=lines.append), RayOptions())
        run._spec = NodeSpec("", {}, "token", 1, {}, "digest")
        run._slots = [_Slot(number + 1, None) for number in range(count)]

        async def start(_place, _resources, spec, _seconds):
            actor = waiting.pop(0) if len(waiting) > 1 else waiting[0]
            if isinstance(actor, GymError):
                raise actor
            return NodeHandle(spec.name, actor)

        monkeypatch.setattr(cluster_run, "start_node_run", start)
        return run, lines, ended

    return create


async def keep_until(run, condition):
    """Keep the places of a run until a condition holds; fail after a while."""
    keeping = [asyncio.create_task(run._keep_slot(slot)) for slot in run._slots]
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - the state of the run has no event
            await asyncio.sleep(0.002)
    for task in keeping:
        task.cancel()
    await asyncio.gather(*keeping, return_exceptions=True)


async def test_a_node_that_hangs_is_started_again_when_its_leases_end(places):
    """Its report never comes: to wait for it would keep a run of one node waiting without an end."""
    has_asked = asyncio.Event()

    async def hang():
        has_asked.set()
        await asyncio.Event().wait()

    run, _, ended = places(Actor(report=hang), Actor())

    async def lose():
        await has_asked.wait()
        run.report_loss("node-1", "no answer within the time of its leases")

    losing = asyncio.create_task(lose())
    await keep_until(run, lambda: [one.name for one in run.handles] == ["node-1.2"])
    await losing

    assert ended == ["node-1"]


async def test_a_node_that_hangs_without_a_collection_is_started_again(places, monkeypatch):
    """`gym env start` has no leases that end."""
    monkeypatch.setattr(node_handle, "SILENT_SECONDS", 1)
    run, lines, _ = places(Actor(report=never), Actor())

    await keep_until(run, lambda: [one.name for one in run.handles] == ["node-1.2"])

    assert any("it does not answer for 1 s" in line for line in lines)


async def test_a_place_whose_workload_does_not_open_is_given_up(places):
    """Its servers would be started again and again, for the whole run."""

    async def refuse(*_):
        raise ConfigError("the folder is used by another run", where="token_id_capture.dir")

    run, lines, ended = places(Actor(workload=refuse))
    run._workload = (WORKLOAD, {}, lambda _: None)

    await keep_until(run, lambda: run.is_lost)

    assert len(ended) == MAX_FAILED_STARTS
    assert "used by another run" in lines[-1]


async def test_failures_of_a_node_that_ran_for_long_are_forgotten(places, monkeypatch):
    """In a run of days, three failures far apart must not cost a machine for good."""
    monkeypatch.setattr(cluster_run, "STABLE_SECONDS", 0.0)

    async def lost_servers():
        return NodeReport(is_lost=True, lost_processes=("cell 1",))

    run, _, ended = places(*[Actor(report=lost_servers) for _ in range(MAX_FAILED_STARTS + 2)], Actor())

    await keep_until(run, lambda: len(ended) == MAX_FAILED_STARTS + 2 and run.handles)

    assert not run.is_lost


async def test_a_node_that_is_lost_when_a_collection_opens_does_not_end_it(places):
    """A killed node costs the rollouts in flight there, at any moment."""

    async def die(*_):
        raise BufferError("the actor died")

    run, _, _ = places(Actor(), count=2)
    joined = []
    run._slots[0].handle = NodeHandle("node-1", Actor(workload=die))
    run._slots[1].handle = NodeHandle("node-2", Actor())

    await run.open_workload(WORKLOAD, {}, joined.append, lambda _: None)

    assert [one.name for one in joined] == ["node-2"]
    assert run._slots[0].lost.is_set()
    run._slots[1].handle = NodeHandle("node-2", Actor(workload=die))
    with pytest.raises(GymError, match="the actor died"):
        await run.open_workload(WORKLOAD, {}, joined.append, lambda _: None)
