"""The state of a run for its live page: counts, rate, time left, oldest rollouts, rewards so far and cost."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from nemo_gym.metrics.intervals import ClusteredMean
from nemo_gym.rollouts.run_files import live_path_for
from nemo_gym.view.database import RunDatabase
from nemo_gym.view.index import MEASURED
from nemo_gym.view.run_facts import RUNNING, read_side_file
from nemo_gym.view.statistics import interval_facts

FRESH_SECONDS = 30.0
"""A live file that is older is of a collector that ended without removing it."""
POINTS = 48
MAX_POINTS_ROLLOUTS = 100_000
"""With more scored rollouts, the rewards so far are not computed."""
LATEST = 8
_COUNTS = ("planned", "done", "running", "queued")


def live_state(run: RunDatabase, entry: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the state of a run; `entry` is its entry in the list of runs, `others` are the other entries."""
    done = entry["rollouts"]
    state: dict[str, Any] = {
        "state": entry["state"],
        "done": done,
        "outcomes": entry["outcome_counts"],
        "reward": entry["reward"],
        "latest": _latest_rows(run),
    }
    state |= {name: entry[name] for name in ("started_at", "seconds") if name in entry}
    if entry["planned"] is not None:
        state |= {"planned": entry["planned"], "queued": max(0, entry["planned"] - done)}
    if points := _rewards_so_far(run):
        state["reward_so_far"] = points
    live = _live_content(run) if entry["state"] == RUNNING else {}
    if live:
        state |= _live_facts(live)
    if "cost" in entry:
        state["cost"] = _cost(entry, state)
    earlier = _earlier_run(entry, others)
    return {**state, **({"earlier_run": earlier} if earlier else {})}


def _live_content(run: RunDatabase) -> dict[str, Any]:
    """Return the content of the live file; empty if it is missing or old."""
    content = read_side_file(live_path_for(run.run.output))
    try:
        updated = datetime.fromisoformat(content["updated_at"])
        is_fresh = (datetime.now(UTC) - updated).total_seconds() < FRESH_SECONDS
    except (TypeError, KeyError, ValueError):
        return {}
    return content if is_fresh and isinstance(content, dict) else {}


def _live_facts(live: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of the live file, except those of a wrong type: another program may have written it."""
    facts: dict[str, Any] = {name: live[name] for name in _COUNTS if isinstance(live.get(name), int)}
    facts |= {name: live[name] for name in ("updated_at", "started_at") if isinstance(live.get(name), str)}
    facts |= {"seconds": live["seconds"]} if isinstance(live.get("seconds"), int | float) else {}
    facts |= {name: live[name] for name in ("rate", "left") if isinstance(live.get(name), dict)}
    facts |= _minutes(live) | _phases(live.get("waiting"))
    if isinstance(live.get("rejections"), list):
        facts["rejections"] = [one for one in live["rejections"] if _is_rejection(one)]
    if isinstance(live.get("oldest"), list):
        facts["oldest"] = [_with_phase(one) for one in live["oldest"] if isinstance(one, dict)]
    return facts


def _minutes(live: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rollouts that ended per minute, with the time of each minute."""
    try:
        start = datetime.fromisoformat(live["started_at"])
        return {
            "minutes": [
                {
                    "at": (start + timedelta(minutes=one["minute"])).isoformat(timespec="seconds"),
                    "done": one["done"],
                    "rejected": one.get("rejected") is True,
                }
                for one in live["minutes"]
            ]
        }
    except (TypeError, KeyError, ValueError, OverflowError, AttributeError):
        return {}


def _is_rejection(entry: Any) -> bool:
    """Return whether an entry names a server, the status of its rejections and the number of waiting rollouts."""
    types = {"server": str, "status": int, "rollouts": int}
    return isinstance(entry, dict) and all(isinstance(entry.get(name), kind) for name, kind in types.items())


def _with_phase(rollout: dict[str, Any]) -> dict[str, Any]:
    """Return a running rollout with the phase of the call that it waits for."""
    return {**rollout, "phase": _phase_of(str(rollout.get("waits_for", "")))}


def _phase_of(call: str) -> str:
    """Return the phase of a call, such as `policy_model /v1/responses`."""
    path = call.rpartition(" ")[2]
    if "/v1/" in path:
        return "model"
    if path.endswith(("/verify", "/seed_session")):
        return path.rpartition("/")[2]
    return "agent" if call.startswith("agent ") or not call else "tools"


def _phases(waiting: Any) -> dict[str, dict[str, int]]:
    """Return the number of running rollouts in each phase, the largest first; empty if not recorded."""
    counts: Counter[str] = Counter()
    for call, count in waiting.items() if isinstance(waiting, dict) else ():
        if isinstance(count, int):
            counts[_phase_of(str(call))] += count
    return {"phases": dict(counts.most_common())} if counts else {}


def _latest_rows(run: RunDatabase) -> list[dict[str, Any]]:
    """Return the rollouts that ended last, the newest first."""
    query = "SELECT task, rollout FROM rollouts WHERE current ORDER BY id DESC LIMIT ?"
    with run.connection() as database:
        rollout_ids = database.execute(query, (LATEST,)).fetchall()
    return [run.row((task, rollout)) for task, rollout in rollout_ids]


def _rewards_so_far(run: RunDatabase) -> list[dict[str, Any]]:
    """Return the mean reward with its interval after growing numbers of rollouts; empty for very large runs."""
    query = f"SELECT count(*) FROM rollouts WHERE {MEASURED}"
    with run.connection() as database:
        total = database.execute(query).fetchone()[0]
        if not 1 < total <= MAX_POINTS_ROLLOUTS:
            return []
        query = f"SELECT task, reward FROM rollouts WHERE {MEASURED} ORDER BY id"
        rewards = database.execute(query).fetchall()
    marks = {round(total * (number + 1) / POINTS) for number in range(POINTS)} - {0}
    mean, points = ClusteredMean(), []
    for number, (task, reward) in enumerate(rewards, start=1):
        mean.add(task, reward)
        if number in marks:
            facts = interval_facts(mean)
            low, high = facts["interval_95"] or (None, None)
            points.append({"done": number, "mean": facts["mean"], "low": low, "high": high})
    return points


def _cost(entry: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
    dollars, done, planned = entry["cost"]["dollars"], state["done"], state.get("planned")
    cost = {"dollars": dollars}
    if done and planned:
        cost["expected"] = dollars * max(planned, done) / done
    limit = (entry.get("limits") or {}).get("max_total_cost")
    return {**cost, **({"limit": limit} if limit else {})}


def _earlier_run(entry: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the newest earlier run of the same environment and rows."""
    same = [
        other
        for other in others
        if entry["environment"]
        and other["number"] != entry["number"]
        and other["environment"] == entry["environment"]
        and other.get("data") == entry.get("data")
        and other.get("started_at", "") < entry.get("started_at", "")
        and other["reward"]["mean"] is not None
    ]
    newest = max(same, key=lambda other: other.get("started_at", ""), default=None)
    return None if newest is None else {"name": newest["title"], "mean": newest["reward"]["mean"]}
