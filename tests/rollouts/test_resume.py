"""From what was asked for to the jobs to run."""

import asyncio
import contextlib
import os
import shutil
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.journal import StoreError
from nemo_gym.rollouts.outcome import FailedRollout, Failure, ScoredRollout
from nemo_gym.rollouts.plan import PlanOptions
from nemo_gym.rollouts.resume import CollectionRequest, ResumeRefused, check_request, prepare_run, prepare_run_in_thread
from nemo_gym.rollouts.row_selection import RowSelection
from nemo_gym.rollouts.run_identity import Identity, check_planned_rows
from nemo_gym.rollouts.store import RolloutStore


@pytest.fixture
def store(tmp_path):
    return RolloutStore(tmp_path / "x.jsonl")


@pytest.fixture
def request_of(tmp_path):
    """A request for three rows, changed as told."""
    source = tmp_path / "in.jsonl"
    rows = [{"responses_create_params": {"input": str(n)}, "agent_ref": {"name": "a"}} for n in range(3)]
    source.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))

    def make_request(*, repeats=1, code="1", **changes):
        return CollectionRequest(
            source=source,
            source_name="in.jsonl",
            selection=RowSelection(),
            options=PlanOptions(repeats=repeats),
            identity=Identity(rows="", plan={"limit": None}, repeats=repeats, servers={}, code={"nemo-gym": code}),
            **changes,
        )

    return make_request


def keys(jobs):
    return [str(job.key) for job in jobs]


def test_a_new_run_has_all_jobs(store, request_of):
    """Without an earlier run nothing may be skipped."""
    with store:
        prepared = prepare_run(store, request_of(repeats=2))

        assert keys(prepared.jobs) == ["0-0", "0-1", "1-0", "1-1", "2-0", "2-1"]
    assert (prepared.summary.total, prepared.summary.to_run, prepared.summary.notes) == (6, 6, [])
    assert store.can_resume()


def test_a_resumed_run_has_the_remaining_jobs_and_the_used_tokens(store, request_of):
    """Finished rollouts cost money only once."""
    with store:
        jobs = list(prepare_run(store, request_of()).jobs)
        store.write(ScoredRollout(jobs[0], {"reward": 1.0, "response": {"usage": {"total_tokens": 9}}}))
        store.write(FailedRollout(jobs[1], Failure("timeout", "model", "", "m")))

    with store:
        prepared = prepare_run(store, request_of(resume=True))

        assert keys(prepared.jobs) == ["2-0", "1-0-a1"]
    assert (prepared.summary.finished, prepared.summary.to_run, prepared.tokens) == (1, 2, 9)


def test_rows_added_before_a_crash_are_not_added_again(store, request_of, monkeypatch):
    """The rows are on disk, but the crash came before the new number of repeats was written down."""
    with store:
        prepare_run(store, request_of())

    def crash(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, store:
        patched.setattr("nemo_gym.rollouts.resume.write_identity", crash)
        with pytest.raises(KeyboardInterrupt):
            prepare_run(store, request_of(resume=True, repeats=2))
    assert store.planned_count() == 6

    with store:
        prepared = prepare_run(store, request_of(resume=True, repeats=2))

        assert keys(prepared.jobs) == ["0-0", "1-0", "2-0", "0-1", "1-1", "2-1"]
    with store:
        assert prepare_run(store, request_of(resume=True, repeats=2)).summary.notes == []


def test_changed_code_is_refused_without_force(store, request_of):
    """Half a run with another verifier is not one result."""
    with store:
        prepare_run(store, request_of())
        with pytest.raises(ResumeRefused, match='code: nemo-gym: "1" -> "2"'):
            prepare_run(store, request_of(resume=True, code="2"))
        with pytest.raises(ResumeRefused):
            check_request(store, request_of(resume=True, code="2"))

        prepared = prepare_run(store, request_of(resume=True, force=True, code="2"))
        assert "by force" in prepared.summary.notes[0]
        assert prepare_run(store, request_of(resume=True, code="2")).summary.notes == [], "it is that run now"


def test_by_force_the_rows_stay_those_that_were_planned(store, request_of):
    """Fewer repeats by force do not take rollouts away that may be finished already."""
    with store:
        prepare_run(store, request_of(repeats=2))

        assert prepare_run(store, request_of(resume=True, force=True, repeats=1)).summary.total == 6


def test_checking_changes_nothing(store, request_of, tmp_path):
    """The check runs before the user can still say no."""
    with store:
        check_request(store, request_of())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl"]

    with store, pytest.raises(ConfigError, match="input file not found"):
        check_request(store, replace(request_of(), source=tmp_path / "none.jsonl"))


def test_a_long_list_of_differences_is_cut(store, request_of):
    """The first lines must stay on the screen."""
    many = request_of()
    with store:
        prepare_run(store, many)
        changed = replace(
            many, resume=True, identity=many.identity.with_values(servers={f"s{n:03}": n for n in range(100)})
        )

        with pytest.raises(ResumeRefused) as caught:
            prepare_run(store, changed)

    assert "and 80 more" in str(caught.value)
    assert str(caught.value).count("\n") < 30


class Crash(BaseException):
    """The process is gone at this very moment."""


def crashing(monkeypatch, after):
    """Let `after` changes of the file system happen, and crash at the next."""
    left = [after]

    def guard(real):
        def change(*args, **kwargs):
            if left[0] == 0:
                raise Crash
            left[0] -= 1
            return real(*args, **kwargs)

        return change

    for owner, name in ((Path, "replace"), (Path, "unlink"), (Path, "mkdir"), (Path, "open"), (shutil, "rmtree")):
        monkeypatch.setattr(owner, name, guard(getattr(owner, name)))


def finish(store, request):
    with store:
        for job in prepare_run(store, request).jobs:
            store.write(ScoredRollout(job, {"reward": 1.0, "new": True}))


@pytest.mark.parametrize("after", range(0, 45, 2))
@pytest.mark.parametrize("change", ["start over", "more repeats"])
def test_a_crash_at_any_change_of_the_files_loses_and_doubles_nothing(store, request_of, monkeypatch, after, change):
    """Between any two renames: the run can be finished, and what was there before is still somewhere."""
    finish(store, request_of())
    old = store.output.read_bytes()
    request = request_of(repeats=2, resume=change == "more repeats")

    with monkeypatch.context() as patched, contextlib.suppress(Crash):
        crashing(patched, after)
        finish(store, request)
    finish(store, replace(request, resume=True))

    places = Counter((row["_ng_task_index"], row["_ng_rollout_index"]) for row in store.records())
    if change == "more repeats":
        assert places == {(task, rollout): 1 for task in range(3) for rollout in range(2)}
        assert store.output.read_bytes().startswith(old)
    else:
        kept = store.output.parent / "x_previous" / "x.jsonl"
        before = [path.read_bytes() for path in (kept, store.output) if path.exists()]
        assert any(content.startswith(old) for content in before), "the earlier results are still there"
        assert set(places.values()) == {1}
        assert len(places) == 6


@pytest.fixture
def many(tmp_path, request_of):
    """A request for more rows than are read between two looks."""
    source = tmp_path / "in.jsonl"
    rows = [{"responses_create_params": {"input": str(n)}, "agent_ref": {"name": "a"}} for n in range(5000)]
    source.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return request_of


@pytest.mark.parametrize("work", [check_request, lambda store, request: prepare_run(store, request).summary])
def test_whoever_waits_is_told_how_far_it_is(store, many, work):
    """A million rows take a while; a screen on which nothing moves looks like a program that hangs."""
    seen = []
    with store:
        work(store, many(on_read=lambda rows, read: seen.append((rows, read))))

    assert [rows for rows, _ in seen] == [2048, 4096]
    assert 0 < seen[0][1] < seen[1][1] < (store.output.parent / "in.jsonl").stat().st_size


async def test_an_interrupt_ends_the_planning_and_changes_nothing(store, many):
    """Ctrl-C is heard while rows are read, and the results that are there stay where they are."""
    with store:
        prepare_run(store, many())
    store.output.write_bytes(b'{"_ng_task_index":0,"_ng_rollout_index":0,"reward":1}\n')
    before = {path.name: path.read_bytes() for path in store.output.parent.iterdir() if path.is_file()}
    reading, go = threading.Event(), threading.Event()

    def watch(rows, read):
        reading.set()
        go.wait(30)

    with store:
        working = asyncio.create_task(prepare_run_in_thread(store, many(on_read=watch)))
        await asyncio.to_thread(reading.wait, 30)  # the loop is free meanwhile
        working.cancel()
        go.set()
        await asyncio.wait({working})

    assert working.cancelled()
    assert {path.name: path.read_bytes() for path in store.output.parent.iterdir() if path.is_file()} == before


async def test_planning_apart_is_planning(store, many):
    """The same jobs, and what goes wrong is raised."""
    with store:
        prepared = await prepare_run_in_thread(store, many())
        assert prepared.summary.total == len(list(prepared.jobs)) == 5000

        with pytest.raises(ResumeRefused):
            await prepare_run_in_thread(store, many(code="2", resume=True))


def cut_rows(path):
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))


def cut_in_a_line(path):
    path.write_bytes(path.read_bytes()[:-7])


def change_a_row(path):
    path.write_bytes(path.read_bytes().replace(b'"input":"1"', b'"input":"7"'))


def add_copy(**changes):
    """Return a function that adds a copy of the first row with other fields."""

    def add_row(path):
        row = orjson.loads(path.read_bytes().splitlines()[0])
        path.write_bytes(path.read_bytes() + orjson.dumps({**row, **changes}) + b"\n")

    return add_row


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (add_copy(), "line 4 is no further repeat"),
        (add_copy(_ng_task_index=1), "line 4 is no further repeat"),
        (add_copy(_ng_task_index=3), "line 4 is no further repeat"),
        (add_copy(_ng_rollout_index=2), "line 4 is no further repeat"),
        (add_copy(_ng_task_index=None), "line 4 is no further repeat"),
        (cut_rows, "2 of 3 rows are left"),
        (cut_in_a_line, "2 of 3 rows are left"),
        (lambda path: path.write_bytes(b""), "0 of 3 rows are left"),
        (change_a_row, "the planned rows were changed"),
    ],
)
@pytest.mark.parametrize("work", [prepare_run, check_request])
@pytest.mark.parametrize("force", [True, False])
def test_planned_rows_that_were_damaged_are_not_resumed(store, request_of, damage, problem, work, force):
    """A run of two of three rows would end with status 0 and a wrong score."""
    finish(store, request_of())
    damage(store.materialized)

    with store, pytest.raises(StoreError, match=problem) as caught:
        work(store, request_of(resume=True, force=force))

    assert caught.value.where == str(store.materialized)


def test_planned_rows_that_were_copied_or_extended_are_resumed(store, request_of):
    """A copy on another machine has another time; a run killed while adding repeats has not recorded them."""
    finish(store, request_of())
    os.utime(store.materialized, (1, 1))
    finish(store, request_of(resume=True))
    recorded = store.run.read_bytes()
    finish(store, request_of(repeats=2, resume=True))
    store.run.write_bytes(recorded)

    with store:
        assert prepare_run(store, request_of(repeats=2, resume=True)).summary.to_run == 0
    cut_rows(store.materialized)
    with store, pytest.raises(StoreError, match="2 of 6 rows are left"):
        prepare_run(store, request_of(repeats=2, resume=True))


def test_planned_rows_of_an_earlier_version_are_not_checked(store, request_of):
    """Its run file does not describe them."""
    finish(store, request_of())
    content = orjson.loads(store.run.read_bytes())
    assert content.pop("planned")["count"] == 3
    store.run.write_bytes(orjson.dumps(content))
    os.utime(store.materialized, (1, 1))

    finish(store, request_of(resume=True))


def test_a_run_file_of_another_tool_is_ignored(store):
    """Aggregate and profile read it only to check the planned rows."""
    store.materialized.write_bytes(b"{}\n")
    for content in (b"[]", b"{", b'{"planned": 1}'):
        store.run.write_bytes(content)
        check_planned_rows(store.materialized)


@pytest.mark.parametrize("has_run_file", [True, False])
def test_a_rollout_that_is_planned_twice_is_reported_before_anything_runs(store, request_of, has_run_file):
    """Files joined by hand, without the hash of the rows: two rollouts would have the same key."""
    with store:
        prepare_run(store, request_of())
    lines = store.materialized.read_bytes().splitlines(keepends=True)
    store.materialized.write_bytes(b"".join([*lines, lines[1]]))
    content = orjson.loads(store.run.read_bytes())
    store.run.write_bytes(orjson.dumps({**content, "planned": {}}))
    if not has_run_file:
        store.run.unlink()

    for work in (check_request, prepare_run):
        with store, pytest.raises(StoreError, match="the rollout 1-0 is planned twice"):
            work(store, request_of(resume=True))
