"""The live page: counts and time left from the collector's file, rewards and cost from the rollouts."""

import asyncio
import json
import os
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.cli.shared.live_file import LiveFile, live_file
from nemo_gym.cli.terminal.progress import Progress, TimedInFlight
from nemo_gym.rollouts.outcome import Job, ScoredRollout
from nemo_gym.rollouts.plan import PlanSummary
from nemo_gym.rollouts.run_files import live_path_for, lock_path_for, run_path_for
from nemo_gym.view.database import RunDatabase
from nemo_gym.view.live_state import live_state
from nemo_gym.view.summary import rollout_context
from tests.view.records import record

Make = Callable[..., RunDatabase]
PLAN = {"planned": {"count": 20}, "limits": {"max_total_cost": 5.0}}


def state_of(run: RunDatabase) -> dict[str, Any]:
    return live_state(run, rollout_context(run), [])


def start(run: RunDatabase, **live: Any) -> None:
    """Let the run look like one that this process collects."""
    run_path_for(run.run.output).write_text(json.dumps(PLAN))
    lock_path_for(run.run.output).write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
    live_path_for(run.run.output).write_text(json.dumps(live))


@pytest.fixture
def run(index_of: Make) -> RunDatabase:
    return index_of(*[record(task, 0, float(task % 2)) for task in range(6)])


def test_the_file_of_the_collector_says_what_runs(run: RunDatabase) -> None:
    """The output has only what ended; users ask what is slow."""
    now = datetime.now(UTC).isoformat()
    oldest = [{"task": 9, "rollout": 0, "agent": "a", "seconds": 61.0, "waits_for": "policy_model /v1/responses"}]
    start(
        run, updated_at=now, started_at=now, planned=20, done=6, running=3, queued=11, oldest=oldest,
        left={"seconds": 60.0, "low": 50.0, "high": 90.0}, minutes=[{"minute": 0, "done": 6}],
        waiting={"policy_model /v1/responses": 1, "judge /v1/responses": 1, "math /verify": 1, "x": "many"},
    )  # fmt: skip

    state = state_of(run)

    assert (state["state"], state["planned"], state["done"], state["running"], state["queued"]) == (
        "running", 20, 6, 3, 11,
    )  # fmt: skip
    assert state["oldest"] == [{**oldest[0], "phase": "model"}]
    assert state["phases"] == {"model": 2, "verify": 1}
    assert state["left"]["high"] == 90.0 and state["minutes"][0]["done"] == 6
    assert [row["task"] for row in state["latest"]][:2] == [5, 4]
    assert state["reward_so_far"][-1]["done"] == 6 and state["reward_so_far"][-1]["mean"] == 0.5


@pytest.mark.parametrize(
    "live",
    [
        {},
        {"updated_at": (datetime.now(UTC) - timedelta(hours=1)).isoformat(), "running": 5},
        {"updated_at": 3, "running": 5},
        {"updated_at": "x", "running": 5},
        {"updated_at": datetime.now(UTC).isoformat(), "running": "many", "oldest": 3, "minutes": [1], "left": "soon"},
    ],
)
def test_an_old_or_damaged_live_file_is_not_believed(run: RunDatabase, live: dict[str, Any]) -> None:
    """A killed collector leaves its last file; another program may write anything."""
    start(run, **live)

    state = state_of(run)

    assert not {"running", "oldest", "left", "minutes"} & set(state)
    assert (state["planned"], state["done"], state["queued"]) == (20, 6, 14)


def test_a_run_that_ended_shows_no_live_facts(run: RunDatabase) -> None:
    """Its live file may be left over from a crash."""
    start(run, updated_at=datetime.now(UTC).isoformat(), running=3, oldest=[])
    lock_path_for(run.run.output).unlink()

    state = state_of(run)

    assert state["state"] == "interrupted" and "oldest" not in state


def test_the_collector_writes_what_the_page_needs() -> None:
    """Counts, rate, a range for the time left, and the calls that the oldest rollouts wait for."""
    now = [0.0]
    in_flight = TimedInFlight(lambda: now[0])
    progress = Progress(in_flight, clock=lambda: now[0])
    jobs = [Job.of({"_ng_task_index": task, "_ng_rollout_index": 0, "agent_ref": {"name": "a"}}) for task in range(4)]
    progress.on_plan(PlanSummary(total=10, to_run=10))
    for job in jobs:
        in_flight.begin(job)
    now[0] = 6.0
    for job in jobs[:2]:
        in_flight.end(job)
        progress(ScoredRollout(job, {"reward": 1.0}))

    content = LiveFile(progress, live_path_for("x.jsonl")).content({(2, 0): "judge /v1/responses"})

    assert (content["planned"], content["done"], content["running"], content["queued"]) == (10, 2, 2, 6)
    assert [one["waits_for"] for one in content["oldest"]] == ["judge /v1/responses", "agent a"]
    assert content["waiting"] == {"judge /v1/responses": 1, "agent a": 1}
    assert [one["seconds"] for one in content["oldest"]] == [6.0, 6.0]
    assert content["left"]["low"] <= content["left"]["seconds"] <= content["left"]["high"]
    assert content["minutes"] == [{"minute": 0, "done": 2}]


def test_the_collector_names_the_endpoint_that_rejects_calls() -> None:
    """A run slowed down by a rate limit must not look like slow rollouts; the minutes in which it was are marked."""
    in_flight = TimedInFlight(lambda: 0.0)
    progress = Progress(in_flight, clock=lambda: 0.0)
    progress.on_plan(PlanSummary(total=10, to_run=10))
    for task in range(4):
        in_flight.begin(Job.of({"_ng_task_index": task, "_ng_rollout_index": 0, "agent_ref": {"name": "a"}}))
    call, writer = "policy_model /v1/responses", LiveFile(progress, live_path_for("x.jsonl"))
    calls = {
        (0, 0): f"{call}, rate limited (429), retry 2 after 8 s",
        (1, 0): f"{call}, rate limited (429), waits for a slot",
        (2, 0): f"{call}, waits for a slot",
        (3, 0): call,
    }

    content = writer.content(calls)
    later = writer.content({})

    assert content["rejections"] == [{"server": "policy_model", "status": 429, "rollouts": 2}]
    assert content["waiting"] == {call: 4}
    assert [(one["waits_for"], one.get("reason")) for one in content["oldest"]] == [
        (call, "rate limited (429), retry 2 after 8 s"),
        (call, "rate limited (429), waits for a slot"),
        (call, "waits for a slot"),
        (call, None),
    ]
    assert later["rejections"] == [] and later["minutes"] == [{"minute": 0, "done": 0, "rejected": True}]


def test_the_page_shows_rejections_of_the_right_form_only(run: RunDatabase) -> None:
    """Another program may write the file; one wrong entry must not break the page."""
    now = datetime.now(UTC).isoformat()
    right = {"server": "policy_model", "status": 429, "rollouts": 2}
    minutes = [{"minute": 0, "done": 6, "rejected": True}, {"minute": 1, "done": 0}]
    start(run, updated_at=now, started_at=now, minutes=minutes, rejections=[right, 3, {"server": 1}])

    state = state_of(run)

    assert state["rejections"] == [right]
    assert [minute["rejected"] for minute in state["minutes"]] == [True, False]


def test_runs_of_unknown_environments_are_not_earlier_runs_of_each_other(run: RunDatabase) -> None:
    """A mean of another benchmark as the one to beat would mislead."""
    entry = {**rollout_context(run), "environment": "", "started_at": "2026-11-16T22:04:00+00:00"}
    other = {**entry, "number": 1, "started_at": "2026-11-15T22:04:00+00:00"}

    assert "earlier_run" not in live_state(run, entry, [entry, other])
    math_entry, math_other = {**entry, "environment": "math"}, {**other, "environment": "math"}
    assert live_state(run, math_entry, [math_entry, math_other])["earlier_run"]["name"] == other["title"]


def test_a_late_write_leaves_no_live_file(tmp_path: Path) -> None:
    """A write on a thread goes on when the collection ends; a file left behind would show a run that is over."""
    path = tmp_path / "x_live.json"
    writer = LiveFile(Progress(TimedInFlight()), path)
    writer._write(b"{}")
    assert path.exists()

    writer.remove()
    writer._write(b"{}")

    assert list(tmp_path.iterdir()) == []


async def test_a_broken_display_does_not_fail_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The results are stored; only their display is missing, and the log says so."""
    has_begun = asyncio.Event()

    async def fail(self: LiveFile) -> None:
        has_begun.set()
        raise TypeError("not JSON")

    monkeypatch.setattr(LiveFile, "keep_writing", fail)
    async with live_file(Progress(TimedInFlight()), tmp_path / "x.jsonl"):
        await has_begun.wait()
