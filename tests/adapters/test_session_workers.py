"""The process of a session starts, keeps state, and ends with its session and with its parent."""

import asyncio
import os
import threading

import pytest

from nemo_gym.errors import DeadlineExceeded, EnvFailed, SessionLost
from nemo_gym.processes import child_pids
from nemo_gym.workers.sessions import SessionLimits, SessionWorkers
from tests.processes import eventually, wait_until

FUNCTION = "tests.adapters.counting:count"


@pytest.fixture
def workers():
    made = SessionWorkers(FUNCTION, SessionLimits(seconds=2.0, max_sessions=3))
    yield made
    made.close()


async def test_each_session_has_state_of_its_own_in_a_process_of_its_own(workers):
    """Global state of a package, such as a seeded generator, must not leak into another episode."""
    first = await workers.start("a", {"add": 1})
    other = await workers.start("b", {"add": 10})
    again = await workers.call("a", {"add": 1})

    assert (first["sum"], other["sum"], again["sum"]) == (1, 10, 2)
    assert len({first["pid"], other["pid"], os.getpid()}) == 3
    assert again["pid"] == first["pid"]


async def test_an_ended_session_leaves_no_process_and_refuses_calls(workers):
    """Thousands of episodes would otherwise leave thousands of processes."""
    pid = (await workers.start("a", {"add": 1}))["pid"]
    await workers.end("a")

    assert await asyncio.to_thread(eventually, lambda: not _is_running(pid))
    with pytest.raises(SessionLost):
        await workers.call("a", {"add": 1})


async def test_a_call_that_takes_too_long_ends_its_process_only(workers):
    """A thread cannot be ended; a process can, and the other sessions go on."""
    await workers.start("b", {"add": 5})
    pid = (await workers.start("a", {"add": 1}))["pid"]
    with pytest.raises(DeadlineExceeded, match="did not answer within 2 s"):
        await workers.call("a", {"sleep": 600})

    assert await asyncio.to_thread(eventually, lambda: not _is_running(pid))
    assert (await workers.call("b", {"add": 1}))["sum"] == 6


async def test_a_cancelled_call_ends_its_process(workers, tmp_path):
    """The rollout is over, so nothing may go on computing for it."""
    pid = (await workers.start("a", {"add": 1}))["pid"]
    mark = tmp_path / "called"
    call = asyncio.create_task(workers.call("a", {"sleep": 600, "mark": str(mark)}))
    await wait_until(mark.exists)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    assert await asyncio.to_thread(eventually, lambda: not _is_running(pid))


async def test_a_session_that_is_cancelled_before_its_process_starts_gets_none(workers, monkeypatch):
    """A thread cannot be cancelled: it would start a process that no session ends, and take a place for good."""
    begun, released, ended, start_worker = *(threading.Event() for _ in range(3)), workers._start_worker

    def start_late(*arguments):
        begun.set()
        released.wait(20)
        try:
            return start_worker(*arguments)
        finally:
            ended.set()

    monkeypatch.setattr(workers, "_start_worker", start_late)
    start = asyncio.create_task(workers.start("a", {"add": 1}))
    await asyncio.to_thread(begun.wait, 20)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    released.set()

    assert await asyncio.to_thread(ended.wait, 20)
    assert len(workers) == 0


async def test_what_a_package_prints_does_not_fill_the_disk(workers):
    """Packages warn at every step, and the file for errors of the host would grow as long as the server runs."""
    await workers.start("a", {"add": 1, "print": "a warning\n"})

    assert os.fstat(workers._host._errors.fileno()).st_size == 0


async def test_more_sessions_than_allowed_are_refused_with_advice(workers):
    """An unlimited number of processes takes the machine down, and every rollout with it."""
    for name in "abc":
        await workers.start(name, {"add": 1})

    with pytest.raises(EnvFailed, match="3 sessions are open already") as error:
        await workers.start("d", {"add": 1})
    assert "--concurrency" in error.value.fix


async def test_close_ends_host_and_sessions(workers):
    """Nothing is left after the server has stopped."""
    before = set(child_pids(os.getpid()))
    await workers.start("a", {"add": 1})
    hosts = set(child_pids(os.getpid())) - before
    workers.close()

    assert hosts
    assert not hosts & set(child_pids(os.getpid()))


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
