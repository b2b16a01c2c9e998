"""Worker processes under a hard clock."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import warnings
from concurrent.futures import CancelledError

import pytest

from nemo_gym.errors import EnvFailed
from nemo_gym.workers import dispatcher
from nemo_gym.workers.jobs import Finished, Lost
from nemo_gym.workers.pool import WorkerPool
from tests.processes import PATIENCE, eventually, is_gone


def test_the_same_answer_from_a_thread_an_event_loop_and_a_crowd(work: str) -> None:
    """Where the caller stands must not matter."""
    with WorkerPool(f"{work}:double", size=2) as pool:
        from_main = pool.run(21)
        from_loop = asyncio.run(pool.run_async(21))
        from_thread: list[object] = []
        thread = threading.Thread(target=lambda: from_thread.append(pool.run(21)))
        thread.start()
        thread.join(PATIENCE)

        async def crowd() -> list[object]:
            return list(await asyncio.gather(*(pool.run_async(n) for n in range(500))))

        from_crowd = asyncio.run(crowd())

    assert from_main == from_loop == Finished(42)
    assert from_thread == [Finished(42)]
    assert from_crowd == [Finished(2 * n) for n in range(500)]


def test_work_that_spins_is_ended_by_its_cpu_clock_and_the_pool_goes_on(work: str) -> None:
    """The kernel ends it: no signal handler, no cooperation."""
    with WorkerPool(f"{work}:act", size=1, cpu_seconds=0.3) as pool:
        spun = pool.run("spin")
        after = pool.run("still here")

    assert isinstance(spun, Lost)
    assert spun.kind == "time"
    assert "CPU" in spun.reason
    assert after == Finished("still here")


def test_work_that_sleeps_is_ended_by_the_wall_clock(work: str) -> None:
    """It uses no CPU time, and must not hold its worker for good."""
    with WorkerPool(f"{work}:act", size=1, wall_seconds=0.5) as pool:
        slept = pool.run("sleep")
        after = pool.run("still here")

    assert isinstance(slept, Lost)
    assert slept.kind == "time"
    assert after == Finished("still here")


def test_time_in_the_queue_does_not_count(work: str) -> None:
    """A burst must not turn into false timeouts: together these take longer than the wall clock of one."""
    with WorkerPool(f"{work}:act", size=1, wall_seconds=3.0) as pool:
        futures = [pool.submit(0.4) for _ in range(9)]
        results = [future.result(PATIENCE) for future in futures]

    assert results == [Finished(0.4)] * 9


def test_memory_and_errors_are_told_apart(work: str) -> None:
    """Each is a different thing to tell the user."""
    with WorkerPool(f"{work}:act", size=1) as pool:
        ate, failed, died = pool.run("eat"), pool.run("fail"), pool.run("die")
        after = pool.run(1)

    assert isinstance(ate, Lost)
    assert ate.kind == "memory"
    assert failed == Lost("crash", "ValueError: on purpose")
    assert died == Lost("crash", "the worker ended with status 3")
    assert after == Finished(1)


@pytest.mark.parametrize("what", ["write", "run", "shell", "connect", "remove", "fork"])
def test_a_worker_does_nothing_but_compute(work: str, what: str) -> None:
    """Behind code that evaluates nothing stands a second fence."""
    with WorkerPool(f"{work}:trespass", size=1) as pool:
        assert pool.run(what) == Finished("PermissionError")


def test_a_worker_has_no_environment(work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys live in the environment."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-you")
    with WorkerPool(f"{work}:act", size=1) as pool:
        found = pool.run("environment")

    assert found == Finished({})


def test_a_worker_somebody_killed_is_replaced_and_the_job_done_again(work: str) -> None:
    """The machine ran out of memory for reasons of its own: not the answer's fault."""
    with WorkerPool(f"{work}:act", size=1) as pool:
        who = pool.run("who")
        assert isinstance(who, Finished)
        future = pool.submit(1.5)
        os.kill(who.value[0], signal.SIGKILL)

        assert future.result(PATIENCE) == Finished(1.5)


def test_a_host_somebody_killed_is_replaced_and_the_job_done_again(work: str) -> None:
    """Its workers die with it."""
    with WorkerPool(f"{work}:act", size=1) as pool:
        who = pool.run("who")
        assert isinstance(who, Finished)
        future = pool.submit(1.5)
        os.kill(who.value[1], signal.SIGKILL)

        assert future.result(PATIENCE) == Finished(1.5)
        assert eventually(lambda: is_gone(who.value[0]))


def test_the_queue_is_bounded(work: str) -> None:
    """Too much work is an error for the caller, not memory for ever."""
    with WorkerPool(f"{work}:act", size=1, most_waiting=2) as pool:
        pool.run(0)
        with pytest.raises(EnvFailed, match="2 jobs are waiting already"):
            for _ in range(10):
                pool.submit("sleep")


def test_closing_ends_the_processes_and_fails_what_is_left(work: str) -> None:
    """Nobody waits for ever for a closed pool."""
    pool = WorkerPool(f"{work}:act", size=1)
    who = pool.run("who")
    futures = [pool.submit("sleep") for _ in range(3)]
    pool.close()

    assert isinstance(who, Finished)
    assert all(is_gone(pid) for pid in who.value[1:])
    assert eventually(lambda: is_gone(who.value[0]))
    for future in futures:
        with pytest.raises(EnvFailed, match="closed"):
            future.result(PATIENCE)
    with pytest.raises(EnvFailed, match="closed"):
        pool.run(1)


def test_a_pool_nobody_holds_ends_its_processes(work: str) -> None:
    """A server that is dropped without being closed must not leave anything running."""
    pool = WorkerPool(f"{work}:act", size=1)
    who = pool.run("who")
    del pool
    gc.collect()

    assert isinstance(who, Finished)
    assert eventually(lambda: all(is_gone(pid) for pid in who.value))


def test_a_cancelled_job_is_not_done(work: str) -> None:
    """The caller's deadline ran out while it waited."""
    with WorkerPool(f"{work}:act", size=1) as pool:
        first = pool.submit(0.5)
        second = pool.submit("spin")

        assert second.cancel()
        assert first.result(PATIENCE) == Finished(0.5)
        assert pool.run(1) == Finished(1)
        with pytest.raises(CancelledError):
            second.result(PATIENCE)


def test_work_that_cannot_be_imported_is_one_clear_error() -> None:
    """With the reason, and not again and again."""
    with (
        WorkerPool("no_such_module_of_ours:work", size=1) as pool,
        pytest.raises(EnvFailed, match="no_such_module_of_ours"),
    ):
        pool.run(1)


def test_workers_are_renewed(work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a library remembers is forgotten after a while."""
    monkeypatch.setattr(dispatcher, "JOBS_PER_WORKER", 3)
    with WorkerPool(f"{work}:act", size=1) as pool:
        pids = {result.value[0] for result in (pool.run("who") for _ in range(9)) if isinstance(result, Finished)}

    assert len(pids) == 3


def test_a_forked_child_has_a_pool_of_its_own(work: str) -> None:
    """Servers are forked from a parent that may have graded something already."""
    with WorkerPool(f"{work}:act", size=1) as pool:
        mine = pool.run("who")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forking beside a thread is what is tested
            child = os.fork()
        if child == 0:
            theirs = pool.run("who")
            right = isinstance(theirs, Finished) and isinstance(mine, Finished) and theirs.value[1] != mine.value[1]
            pool.close()
            os._exit(0 if right else 1)
        _, status = os.waitpid(child, 0)
        again = pool.run("who")

    assert os.waitstatus_to_exitcode(status) == 0
    assert again == mine


ORPHAN = """
import sys
sys.path[:0] = {path!r}
from nemo_gym.workers.pool import WorkerPool
pool = WorkerPool("work_for_workers:act", size=2)
print(*pool.run("who").value, flush=True)
pool.submit("spin")
pool.submit("sleep").result()
"""


def test_workers_die_with_their_parent(work: str) -> None:
    """Also when it is killed and can say nothing, and they are busy."""
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHAN.format(path=sys.path)], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    with parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()

    assert len(pids) == 2
    assert eventually(lambda: all(is_gone(pid) for pid in pids))
