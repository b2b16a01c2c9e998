"""The files of a run: what is kept where, and what a resumed run does again."""

import os
import subprocess
import sys
from collections import Counter

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nemo_gym.journal import StoreError, read_rows
from nemo_gym.rollouts.outcome import CancelledRollout, FailedRollout, Failure, Job, LimitedRollout, ScoredRollout
from nemo_gym.rollouts.store import RolloutStore


def job(task, rollout=0):
    return Job.of({"_ng_task_index": task, "_ng_rollout_index": rollout, "agent_ref": {"name": "a"}, "q": task})


def failed_rollout(of, *, retryable=True):
    return FailedRollout(of, Failure("timeout", "model", "late", "m", retryable=retryable))


def keys(jobs):
    return [str(job.key) for job in jobs]


def test_scored_and_failed_go_to_their_own_files_and_cancelled_to_none(tmp_path):
    """Readers of the output must never meet a failure."""
    store = RolloutStore(tmp_path / "x.jsonl")

    with store:
        store.write(ScoredRollout(job(0), {"reward": 1.0}))
        store.write(failed_rollout(job(1)))
        store.write(LimitedRollout(job(2), "tokens"))
        store.write(CancelledRollout(job(3)))

    assert [row["_ng_task_index"] for row in store.records()] == [0]
    assert [row["_ng_failure_class"] for row in read_rows(store.failures)] == ["timeout", "limit"]
    assert not [row for row in read_rows(store.failures) if "reward" in row]


def test_integers_beyond_64_bits_are_stored(tmp_path):
    """A verifier may compare numbers of any size; its record must not be lost."""
    with RolloutStore(tmp_path / "x.jsonl") as store:
        store.write(ScoredRollout(job(0), {"reward": 1.0, "n": 2**70}))

    assert str(2**70) in store.output.read_text()


def test_the_failures_file_exists_even_without_failures(tmp_path):
    """Its absence would mean that the run never started."""
    store = RolloutStore(tmp_path / "deep" / "x.jsonl")

    with store:
        store.open()

    assert store.failures.read_bytes() == b""
    assert store.output.read_bytes() == b""


def test_starting_over_keeps_what_an_earlier_run_left_aside(tmp_path):
    """A mistyped command must not cost a night's rollouts; an old failures file must not count against new ones."""
    store = RolloutStore(tmp_path / "x.jsonl")
    with store:
        store.begin([job(0)])
        store.write(ScoredRollout(job(0), {"reward": 1.0}))
        store.write(failed_rollout(job(1)))
    store.aggregate_metrics.write_text("[]")

    with store:
        kept = store.begin([job(5), job(6)])

    assert sorted(path.name for path in tmp_path.iterdir()) == ["x_index", "x_materialized_inputs.jsonl", "x_previous"]
    assert keys(store.jobs()) == ["5-0", "6-0"]
    assert not store.can_resume()
    assert kept == tmp_path / "x_previous"
    before = RolloutStore(kept / "x.jsonl")
    assert [row["reward"] for row in before.records()] == [1.0]
    assert before.can_resume(), "what is kept is a complete run"


def test_overwriting_keeps_nothing(tmp_path):
    """The user asked for it, and disk space may be short."""
    store = RolloutStore(tmp_path / "x.jsonl")
    with store:
        store.begin([job(0)])
        store.write(ScoredRollout(job(0), {"reward": 1.0}))

    with store:
        assert store.begin([job(5)], keep=False) is None

    assert sorted(path.name for path in tmp_path.iterdir()) == ["x_index", "x_materialized_inputs.jsonl"]


def test_nothing_is_removed_when_the_new_rows_are_bad(tmp_path):
    """A typing mistake must not cost a night's rollouts."""
    store = RolloutStore(tmp_path / "x.jsonl")
    with store:
        store.begin([job(0)])
        store.write(ScoredRollout(job(0), {"reward": 1.0}))

    def bad():
        yield job(9)
        raise ValueError("line 2")

    with store, pytest.raises(ValueError, match="line 2"):
        store.begin(bad())

    assert [row["reward"] for row in store.records()] == [1.0]
    assert keys(store.jobs()) == ["0-0"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "x.jsonl",
        "x_failures.jsonl",
        "x_index",
        "x_materialized_inputs.jsonl",
    ]


def test_a_resumed_run_does_what_is_missing_and_counts_attempts(tmp_path):
    """A rollout that fails every time must be given up at some point."""
    store = RolloutStore(tmp_path / "x.jsonl")
    with store:
        store.begin([job(task) for task in range(6)])
        store.write(ScoredRollout(job(0), {"reward": 1.0, "response": {"usage": {"total_tokens": 5}}}))
        store.write(failed_rollout(job(1)))
        for _ in range(3):
            store.write(failed_rollout(job(2)))
        store.write(failed_rollout(job(3), retryable=False))
        store.write(failed_rollout(job(4)))
        store.write(ScoredRollout(job(4), {"reward": 0.0}))

    with store:
        history = store.history()

    assert store.can_resume()
    assert keys(store.unfinished_jobs(history, max_attempts=3)) == ["5-0", "1-0-a1"]
    assert (store.planned_count(), len(history.finished), history.count_given_up(3)) == (6, 2, 2)
    assert history.tokens == 5
    with store:
        history = store.history(retry_terminal=True)
    # The report suggests `--max-attempts 4 --resume` for given-up rollouts; once that ran nothing.
    assert keys(store.unfinished_jobs(history, max_attempts=4)) == ["5-0", "1-0-a1", "3-0-a1", "2-0-a3"]


def test_added_rows_come_after_the_others_and_only_once(tmp_path):
    """More repeats: a crash between adding rows and writing that down must not add them twice."""
    store = RolloutStore(tmp_path / "x.jsonl")
    with store:
        store.begin([job(0), job(1)])

        assert store.extend([job(0, 1), job(1, 1), job(1)]) == 2
        assert store.extend([job(0, 1), job(1, 1)]) == 0

    assert keys(store.jobs()) == ["0-0", "1-0", "0-1", "1-1"]
    assert store.planned_count() == 4


OUTCOMES = st.tuples(
    st.integers(0, 4), st.integers(0, 1), st.sampled_from(["scored", "failed", "terminal", "cancelled"])
)


def play(store, steps, done):
    """Carry out steps as a collector would: a finished job is never sent again."""
    for task, rollout, what in steps:
        of = job(task, rollout)
        if of.key.rollout_id in done:
            continue
        if what == "scored":
            done.add(of.key.rollout_id)
            store.write(ScoredRollout(of, {"reward": 1.0, "text": "\n" * task}))
        elif what != "cancelled":
            store.write(failed_rollout(of, retryable=what == "failed"))


def damage(path, cut, noise):
    """What a crash, a full disk or a curious person may do to a file."""
    if path.exists():
        path.write_bytes(path.read_bytes()[:cut] + noise)


@given(
    first=st.lists(OUTCOMES, max_size=12),
    second=st.lists(OUTCOMES, max_size=6),
    cuts=st.tuples(st.integers(0, 2000), st.integers(0, 2000), st.integers(0, 600), st.integers(0, 600)),
    noise=st.tuples(*[st.sampled_from([b"", b"{", b'{"_ng_task_index": 1', b"\0" * 32, b"\xff" * 45])] * 4),
)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_was_cut_every_rollout_ends_stored_exactly_once(tmp_path, monkeypatch, first, second, cuts, noise):
    """Run, lose any end of any file and of any index, resume, again: each (task, rollout) once, none doubled."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # a power cut is not what is played here
    store = RolloutStore(tmp_path / "x.jsonl")
    everything = {(task, rollout) for task in range(5) for rollout in range(2)}
    with store:
        store.begin([job(*place) for place in sorted(everything)], keep=False)
        play(store, first, set())
    damage(store.output, cuts[0], noise[0] if noise[0][:1] == b"{" else b"")
    damage(store.failures, cuts[1], noise[1] if noise[1][:1] == b"{" else b"")
    damage(tmp_path / "x_index" / "scored", cuts[2], noise[2])
    damage(tmp_path / "x_index" / "failed", cuts[3], noise[3])

    with store:
        play(store, second, {divmod(packed, 2**32) for packed in store.history().finished})
    with store:
        for waiting in store.unfinished_jobs(store.history(), max_attempts=100):
            store.write(ScoredRollout(waiting, {"reward": 0.0}))
        history = store.history()
    places = Counter((row["_ng_task_index"], row["_ng_rollout_index"]) for row in store.records())
    given_up = {divmod(packed, 2**32) for packed in history.terminal}

    assert set(places.values()) <= {1}
    assert set(places) | given_up == everything
    assert {divmod(packed, 2**32) for packed in history.finished} == set(places)


def test_a_stored_record_without_a_key_is_refused(tmp_path):
    """An output that is not ours must not be extended."""
    store = RolloutStore(tmp_path / "x.jsonl")
    store.output.write_bytes(orjson.dumps({"reward": 1}) + b"\n")

    with store, pytest.raises(StoreError, match=r"has no rollout key.*_ng_task_index"):
        store.history()


def test_a_closed_store_takes_nothing(tmp_path):
    """Writing without the lock could mix two runs."""
    with pytest.raises(RuntimeError, match="not open"):
        RolloutStore(tmp_path / "x.jsonl").write(ScoredRollout(job(0), {"reward": 1.0}))


def test_a_second_collector_is_refused_and_sees_the_holder(tmp_path):
    """The user must know which process to stop."""
    with RolloutStore(tmp_path / "x.jsonl"), pytest.raises(StoreError, match=f"process {os.getpid()}"):
        RolloutStore(tmp_path / "x.jsonl").__enter__()

    with RolloutStore(tmp_path / "x.jsonl") as again:
        again.write(ScoredRollout(job(0), {"reward": 1.0}))


def test_a_resumed_run_reads_its_index_and_not_its_payloads(tmp_path):
    """Starting again must not take longer the longer the conversations are: here they could not even be read."""
    store = RolloutStore(tmp_path / "x.jsonl")
    with store:
        store.begin([job(task) for task in range(500)])
        for task in range(400):
            store.write(ScoredRollout(job(task), {"reward": 1.0, "text": "x" * 50}))
    for path in (store.output, store.materialized):
        with path.open("r+b") as file:
            content = file.read()
            lines = content.splitlines(keepends=True)
            file.seek(len(b"".join(lines[:7])))
            file.write(b"?" * (len(lines[7]) - 1))  # neither the first, the last nor one that is looked at

    with store:
        history = store.history()

        assert keys(store.unfinished_jobs(history, 3)) == [f"{task}-0" for task in range(400, 500)]


def test_an_output_that_cannot_be_written_stops_before_anything_is_lost(tmp_path):
    """A read-only folder is said at once, with the earlier results untouched."""
    store = RolloutStore(tmp_path / "blocked" / "x.jsonl")
    (tmp_path / "blocked").write_text("a file where a folder is wanted")

    with pytest.raises(StoreError, match="cannot write"):
        store.__enter__()


COLLECTOR = """
import asyncio, sys
from nemo_gym.rollouts.collect import RolloutRetryPolicy
from nemo_gym.rollouts.collect import collect
from nemo_gym.rollouts.store import RolloutStore

store = RolloutStore(sys.argv[1])

async def send(job):
    await asyncio.sleep(0)
    if job.key.task % 5 == 0 and not job.key.attempt:
        raise ConnectionError("first attempt")
    return {"reward": float(job.key.task), "text": "x" * 20_000, "response": {"usage": {"total_tokens": 1}}}

def report(outcome):
    sys.stdout.write(".")
    sys.stdout.flush()

with store:
    jobs = store.unfinished_jobs(store.history(), 99)
    retries = RolloutRetryPolicy(max_attempts=99, pause_seconds=0)
    asyncio.run(collect(jobs, send, [report], store=store.write, retries=retries, concurrency=7))
"""


def test_a_collector_that_is_killed_again_and_again_loses_and_doubles_nothing(tmp_path):
    """`kill -9` at whatever moment; after the last resume the output equals that of an undisturbed run."""
    store = RolloutStore(tmp_path / "x.jsonl")
    with store:
        store.begin([job(task, rollout) for task in range(40) for rollout in range(2)])
        store.open()

    for after in (1, 29, None):  # None: to the end
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
    again = {row.get("_ng_attempt_index") for row in store.records() if row["_ng_task_index"] % 5 == 0}
    assert None not in again, "the first attempt of these fails"


def test_a_disk_that_fills_up_stops_the_run_and_corrupts_nothing(tmp_path):
    """After making room the run is resumed as if nothing had happened."""
    store = RolloutStore(tmp_path / "x.jsonl")
    with store:
        store.begin([job(task) for task in range(40)])
        store.open()
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))\n" + COLLECTOR

    child = subprocess.run([sys.executable, "-c", full, str(store.output)], capture_output=True, text=True, check=False)

    assert child.returncode == 1
    assert "StoreError" in child.stderr
    assert "free disk space" in child.stderr
    kept = [row["_ng_task_index"] for row in store.records()]
    assert 0 < len(kept) < 40
    assert not (tmp_path / "x.lock").exists()
    done = subprocess.run([sys.executable, "-c", COLLECTOR, str(store.output)], capture_output=True, check=False)
    assert done.returncode == 0
    assert Counter(row["_ng_task_index"] for row in store.records()) == dict.fromkeys(range(40), 1)
    assert [row["_ng_task_index"] for row in store.records()][: len(kept)] == kept
