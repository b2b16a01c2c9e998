"""Worker processes with hard limits on time and memory."""

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
from nemo_gym.workers import pool as pool_module
from nemo_gym.workers.pool import WorkerFailure, WorkerPool, WorkerResult
from tests.processes import PATIENCE, eventually, is_gone


def test_the_same_result_from_a_thread_an_event_loop_and_under_load(work: str) -> None:
    """Servers call from an event loop, trainers from threads: the result must not depend on the caller."""
    with WorkerPool(f"{work}:double", size=2) as pool:
        from_main = pool.run(21)
        from_loop = asyncio.run(pool.run_async(21))
        from_thread: list[object] = []
        thread = threading.Thread(target=lambda: from_thread.append(pool.run(21)))
        thread.start()
        thread.join(PATIENCE)

        async def many_calls() -> list[object]:
            return list(await asyncio.gather(*(pool.run_async(n) for n in range(500))))

        from_many = asyncio.run(many_calls())

    assert from_main == from_loop == WorkerResult(42)
    assert from_thread == [WorkerResult(42)]
    assert from_many == [WorkerResult(2 * n) for n in range(500)]


def test_work_that_spins_is_ended_by_its_cpu_limit_and_the_pool_goes_on(work: str) -> None:
    """The kernel ends it: work in C code never runs a Python signal handler."""
    with WorkerPool(f"{work}:act", size=1, cpu_seconds=0.3) as pool:
        spun = pool.run("spin")
        after = pool.run("still here")

    assert isinstance(spun, WorkerFailure)
    assert spun.kind == "time"
    assert "CPU" in spun.reason
    assert after == WorkerResult("still here")


def test_work_that_sleeps_is_ended_by_the_wall_clock(work: str) -> None:
    """It uses no CPU time, and must not occupy its worker forever."""
    with WorkerPool(f"{work}:act", size=1, wall_seconds=0.5) as pool:
        slept = pool.run("sleep")
        after = pool.run("still here")

    assert isinstance(slept, WorkerFailure)
    assert slept.kind == "time"
    assert after == WorkerResult("still here")


def test_time_in_the_queue_does_not_count(work: str) -> None:
    """A burst must not cause false timeouts: together these calls take longer than the limit of one."""
    with WorkerPool(f"{work}:act", size=1, wall_seconds=3.0) as pool:
        futures = [pool.submit(0.4) for _ in range(9)]
        results = [future.result(PATIENCE) for future in futures]

    assert results == [WorkerResult(0.4)] * 9


def test_memory_and_errors_are_distinguished(work: str) -> None:
    """An answer that needs too much memory is undecided; a crash is a failure of the environment."""
    with WorkerPool(f"{work}:act", size=1) as pool:
        ate, failed, died = pool.run("eat"), pool.run("fail"), pool.run("die")
        after = pool.run(1)

    assert isinstance(ate, WorkerFailure)
    assert ate.kind == "memory"
    assert failed == WorkerFailure("crash", "ValueError: on purpose")
    assert died == WorkerFailure("crash", "the worker ended with status 3")
    assert after == WorkerResult(1)


@pytest.mark.parametrize("what", ["write", "run", "shell", "connect", "remove", "fork"])
def test_a_worker_can_only_compute(work: str, what: str) -> None:
    """A second fence behind code that should evaluate nothing of the model's text."""
    with WorkerPool(f"{work}:trespass", size=1) as pool:
        assert pool.run(what) == WorkerResult("PermissionError")


def test_a_worker_has_no_environment(work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """API keys are in the environment."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-you")
    with WorkerPool(f"{work}:act", size=1) as pool:
        environment = pool.run("environment")

    assert environment == WorkerResult({})


def test_the_call_of_a_killed_worker_is_repeated(work: str) -> None:
    """The machine may run out of memory for other reasons: the answer must still be graded."""
    with WorkerPool(f"{work}:act", size=1) as pool:
        who = pool.run("who")
        assert isinstance(who, WorkerResult)
        future = pool.submit(1.5)
        os.kill(who.value[0], signal.SIGKILL)

        assert future.result(PATIENCE) == WorkerResult(1.5)


def test_the_call_of_a_killed_host_is_repeated(work: str) -> None:
    """The host is a process like any other; its workers die with it and must not be left behind."""
    with WorkerPool(f"{work}:act", size=1) as pool:
        who = pool.run("who")
        assert isinstance(who, WorkerResult)
        future = pool.submit(1.5)
        os.kill(who.value[1], signal.SIGKILL)

        assert future.result(PATIENCE) == WorkerResult(1.5)
        assert eventually(lambda: is_gone(who.value[0]))


def test_the_queue_is_bounded(work: str) -> None:
    """Too much work is an error for the caller, not unbounded memory."""
    with WorkerPool(f"{work}:act", size=1, max_queued=2) as pool:
        pool.run(0)
        with pytest.raises(EnvFailed, match="2 calls are queued already"):
            for _ in range(10):
                pool.submit("sleep")


def test_closing_ends_the_processes_and_fails_unfinished_calls(work: str) -> None:
    """A caller must not wait forever for a closed pool."""
    pool = WorkerPool(f"{work}:act", size=1)
    who = pool.run("who")
    futures = [pool.submit("sleep") for _ in range(3)]
    pool.close()

    assert isinstance(who, WorkerResult)
    assert all(is_gone(pid) for pid in who.value[1:])
    assert eventually(lambda: is_gone(who.value[0]))
    for future in futures:
        with pytest.raises(EnvFailed, match="closed"):
            future.result(PATIENCE)
    with pytest.raises(EnvFailed, match="closed"):
        pool.run(1)


def test_a_pool_that_is_garbage_ends_its_processes(work: str) -> None:
    """A server that is dropped without being closed must not leave processes."""
    pool = WorkerPool(f"{work}:act", size=1)
    who = pool.run("who")
    del pool
    gc.collect()

    assert isinstance(who, WorkerResult)
    assert eventually(lambda: all(is_gone(pid) for pid in who.value))


def test_a_cancelled_call_is_not_run(work: str) -> None:
    """The deadline of its caller passed while it was queued: running it would waste a worker."""
    with WorkerPool(f"{work}:act", size=1) as pool:
        first = pool.submit(0.5)
        second = pool.submit("spin")

        assert second.cancel()
        assert first.result(PATIENCE) == WorkerResult(0.5)
        assert pool.run(1) == WorkerResult(1)
        with pytest.raises(CancelledError):
            second.result(PATIENCE)


def test_work_that_cannot_be_imported_is_one_clear_error() -> None:
    """The reason is named once instead of a restart loop."""
    with (
        WorkerPool("no_such_module_of_ours:work", size=1) as pool,
        pytest.raises(EnvFailed, match="no_such_module_of_ours"),
    ):
        pool.run(1)


def test_workers_are_replaced_after_some_calls(work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches of libraries would otherwise grow without bound."""
    monkeypatch.setattr(pool_module, "CALLS_PER_WORKER", 3)
    with WorkerPool(f"{work}:act", size=1) as pool:
        pids = {result.value[0] for result in (pool.run("who") for _ in range(9)) if isinstance(result, WorkerResult)}

    assert len(pids) == 3


def test_a_forked_child_uses_its_own_workers(work: str) -> None:
    """Servers are forked from a parent that may have graded something already."""
    with WorkerPool(f"{work}:act", size=1) as pool:
        mine = pool.run("who")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forking beside a thread is what is tested
            child = os.fork()
        if child == 0:
            theirs = pool.run("who")
            right = (
                isinstance(theirs, WorkerResult) and isinstance(mine, WorkerResult) and theirs.value[1] != mine.value[1]
            )
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
    """`kill -9` of a server must not leave busy workers, which cannot notice it themselves."""
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHAN.format(path=sys.path)], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    with parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()

    assert len(pids) == 2
    assert eventually(lambda: all(is_gone(pid) for pid in pids))


def test_idle_workers_that_are_killed_are_replaced(work: str) -> None:
    """A library pool broke for good when the machine killed all idle workers at once."""
    with WorkerPool(f"{work}:act", size=2) as pool:
        calls = [pool.submit(0.2) for _ in range(2)]
        assert [call.result(PATIENCE) for call in calls] == [WorkerResult(0.2)] * 2
        for reply in [pool.run("who"), pool.run("who")]:
            assert isinstance(reply, WorkerResult)
            os.kill(reply.value[0], signal.SIGKILL)

        assert pool.run("still here") == WorkerResult("still here")
