"""The files of a run: what is kept where, and what a resumed run does again."""

import subprocess
import sys
from collections import Counter

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nemo_gym.rollouts.job import Job
from nemo_gym.rollouts.jsonl import StoreError, read_rows
from nemo_gym.rollouts.outcome import Cancelled, Failed, Failure, Limit, Scored
from nemo_gym.rollouts.store import RolloutStore


def job(task, rollout=0):
    return Job.of({"_ng_task_index": task, "_ng_rollout_index": rollout, "agent_ref": {"name": "a"}, "q": task})


def failed(of, *, retryable=True):
    return Failed(of, Failure("timeout", "model", "late", "m", retryable=retryable))


def keys(jobs):
    return [str(job.key) for job in jobs]


def test_scored_and_failed_go_to_their_own_files_and_cancelled_to_none(tmp_path):
    store = RolloutStore(tmp_path / "x.jsonl")

    with store:
        store.write(Scored(job(0), {"reward": 1.0}))
        store.write(failed(job(1)))
        store.write(Limit(job(2), "tokens"))
        store.write(Cancelled(job(3)))

    assert [row["_ng_task_index"] for row in store.records()] == [0]
    assert [row["_ng_failure_class"] for row in read_rows(store.failures)] == ["timeout", "limit"]
    assert not [row for row in read_rows(store.failures) if "reward" in row]


def test_the_failures_file_is_there_even_when_nothing_failed(tmp_path):
    store = RolloutStore(tmp_path / "deep" / "x.jsonl")

    with store:
        pass

    assert store.failures.read_bytes() == b""


def test_starting_over_removes_what_an_earlier_run_left(tmp_path):
    """A failures file that survives would count old attempts against new rollouts."""
    store = RolloutStore(tmp_path / "x.jsonl")
    store.begin([job(0)])
    with store:
        store.write(Scored(job(0), {"reward": 1.0}))
        store.write(failed(job(1)))
    store.aggregate_metrics.write_text("[]")

    assert store.begin([job(5), job(6)]) == 2

    assert sorted(path.name for path in tmp_path.iterdir()) == ["x_materialized_inputs.jsonl"]
    assert keys(store.jobs()) == ["5-0", "6-0"]
    assert not store.can_resume()


def test_nothing_is_removed_when_the_new_rows_are_bad(tmp_path):
    """A typing mistake must not cost a night's rollouts."""
    store = RolloutStore(tmp_path / "x.jsonl")
    store.begin([job(0)])
    with store:
        store.write(Scored(job(0), {"reward": 1.0}))

    def bad():
        yield job(9)
        raise ValueError("line 2")

    with pytest.raises(ValueError, match="line 2"):
        store.begin(bad())

    assert [row["reward"] for row in store.records()] == [1.0]
    assert keys(store.jobs()) == ["0-0"]


def test_a_resumed_run_does_what_is_missing_and_counts_attempts(tmp_path):
    store = RolloutStore(tmp_path / "x.jsonl")
    store.begin([job(task) for task in range(6)])
    with store:
        store.write(Scored(job(0), {"reward": 1.0}))
        store.write(failed(job(1)))
        for _ in range(3):
            store.write(failed(job(2)))
        store.write(failed(job(3), retryable=False))
        store.write(failed(job(4)))
        store.write(Scored(job(4), {"reward": 0.0}))

    history = store.history()

    assert store.can_resume()
    assert keys(store.unfinished(history, max_attempts=3)) == ["1-0-a1", "5-0"]
    assert (store.planned(), len(history.finished), history.given_up(3)) == (6, 2, 2)


@given(
    steps=st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["scored", "failed", "cancelled"])), max_size=12),
    cut=st.integers(0, 3000),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_was_cut_every_rollout_ends_stored_exactly_once(tmp_path, steps, cut):
    """Run, lose the end of the output, resume: each (task, rollout) once, none doubled, none missing."""
    store = RolloutStore(tmp_path / "x.jsonl")
    store.begin([job(task) for task in range(5)])
    done: set[int] = set()
    with store:
        for task, what in steps:
            if task in done:
                continue  # a run never sends a finished job again
            if what == "scored":
                done.add(task)
                store.write(Scored(job(task), {"reward": 1.0}))
            elif what == "failed":
                store.write(failed(job(task)))
    content = store.output.read_bytes()
    store.output.write_bytes(content[:cut])

    with store:
        for waiting in store.unfinished(store.history(), max_attempts=100):
            store.write(Scored(waiting, {"reward": 0.0}))

    assert Counter(row["_ng_task_index"] for row in store.records()) == dict.fromkeys(range(5), 1)


def test_a_stored_record_without_a_key_is_refused(tmp_path):
    """An output that is not ours must not be extended."""
    store = RolloutStore(tmp_path / "x.jsonl")
    store.output.write_bytes(orjson.dumps({"reward": 1}) + b"\n")

    with pytest.raises(StoreError, match=r"record 1.*_ng_task_index"):
        store.history()


def test_a_closed_store_takes_nothing(tmp_path):
    with pytest.raises(RuntimeError, match="not open"):
        RolloutStore(tmp_path / "x.jsonl").write(Scored(job(0), {"reward": 1.0}))


COLLECTOR = """
import asyncio, sys
from nemo_gym.rollouts.collect import collect
from nemo_gym.rollouts.store import RolloutStore

store = RolloutStore(sys.argv[1])

async def send(job):
    await asyncio.sleep(0)
    if job.key.task % 5 == 0 and not job.key.attempt:
        raise ConnectionError("first attempt")
    return {"reward": float(job.key.task), "text": "x" * 20_000}

def tell(outcome):
    sys.stdout.write(".")
    sys.stdout.flush()

with store:
    asyncio.run(collect(store.unfinished(store.history(), 3), send, [store.write, tell], at_once=7))
"""


def test_a_collector_that_is_killed_again_and_again_loses_and_doubles_nothing(tmp_path):
    """`kill -9` at whatever moment; after the last resume the output equals that of an undisturbed run."""
    store = RolloutStore(tmp_path / "x.jsonl")
    store.begin([job(task, rollout) for task in range(40) for rollout in range(2)])
    store.output.touch()

    for after in (1, 13, 29, None, None):  # None: to the end; twice, because failed ones are tried on resume
        child = subprocess.Popen([sys.executable, "-c", COLLECTOR, str(store.output)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.read(after)
        if after is not None:
            child.kill()
        child.stdout.close()
        child.wait()

    assert Counter((row["_ng_task_index"], row["_ng_rollout_index"]) for row in store.records()) == {
        (task, rollout): 1 for task in range(40) for rollout in range(2)
    }
    assert all(row["reward"] == row["_ng_task_index"] for row in store.records())
    assert {row.get("_ng_attempt_index") for row in store.records() if row["_ng_task_index"] % 5 == 0} == {1}
