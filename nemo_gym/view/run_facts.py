"""Facts of a run from the files next to its output: name, plan, state, sampling, versions, tokens and cost."""

import json
import os
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.errors import ConfigError
from nemo_gym.metrics.prices import PriceTable
from nemo_gym.rollouts.run_files import RunFiles, lock_path_for
from nemo_gym.rollouts.run_folders import RunLabels, run_content

MAX_SIDE_FILE_BYTES = 4_000_000
"""Side files (metrics, identity) that are larger are not shown on the page."""
RUNNING, FINISHED, INTERRUPTED, UNKNOWN = "running", "finished", "interrupted", "unknown"
ACTIVE_SECONDS = 600.0
"""A run whose lock another machine holds is running if its output changed within this time."""
_LONGEST_SAMPLING = 20
OWN_PACKAGE = "nemo-gym"
"""The version of a run that stands first: those of other packages follow in their order."""


def read_side_file(path: Path) -> Any:
    """Return the content of a JSON file; None if it is missing, too large or not JSON."""
    try:
        return orjson.loads(path.read_bytes()) if path.stat().st_size <= MAX_SIDE_FILE_BYTES else None
    except (OSError, orjson.JSONDecodeError):
        return None


def run_content_of(run: RunFiles) -> dict[str, Any]:
    """Return the content of the identity file; empty if it is missing, too large or damaged."""
    try:
        is_small = run.identity.stat().st_size <= MAX_SIDE_FILE_BYTES
    except OSError:
        return {}
    return run_content(run) if is_small else {}


def planned_count(content: Mapping[str, Any]) -> int | None:
    """Return the number of planned rollouts that the identity file of a run states; None without one."""
    planned = content.get("planned")
    count = planned.get("count") if isinstance(planned, dict) else None
    return count if isinstance(count, int) else None


def run_state(run: RunFiles, planned: int | None, ended: int) -> str:
    """Return whether a collector writes this run now and, if not, whether all planned rollouts ended."""
    if _has_collector(run):
        return RUNNING
    if planned is None:
        return UNKNOWN
    return FINISHED if ended >= planned else INTERRUPTED


def start_and_end(run: RunFiles, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return when the run started, when its files changed last, and the seconds between; empty if unknown."""
    changes = [path.stat().st_mtime for path in (run.output, run.failures) if path.exists()]
    ended = datetime.fromtimestamp(max(changes), UTC) if changes else None
    facts: dict[str, Any] = {} if ended is None else {"ended_at": ended.isoformat(timespec="seconds")}
    try:
        started = datetime.fromisoformat(str(content.get("started_at")))
    except ValueError:
        return facts
    facts["started_at"] = started.isoformat(timespec="seconds")
    if ended is not None and started.tzinfo is not None:
        facts["seconds"] = max(0.0, (ended - started).total_seconds())
    return facts


def data_facts(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hash of the input rows, by which runs of the same data are found; empty if unknown."""
    rows = content.get("rows")
    return {"data": rows} if isinstance(rows, str) and rows else {}


def run_titles(run: RunFiles, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return title, environment, model and tags of a run."""
    labels = RunLabels.read(run.output)
    folder = run.output.parent.name if run.output.stem == "rollouts" else run.output.stem
    title = labels.name or folder or run.name
    servers = content.get("servers")
    names = {str(name).split(".")[0] for name in servers} if isinstance(servers, dict) else set()
    environment = labels.environment or (next(iter(names)) if len(names) == 1 else "")
    return {"title": title, "environment": environment, "model": labels.model, "tags": labels.tags}


def run_cost(run: RunFiles, tokens_by_model: Mapping[str, Mapping[str, int]], rollouts: int) -> dict[str, Any] | None:
    """Return the cost of the tokens by the prices that the run was started with; None without prices."""
    try:
        prices = PriceTable(RunLabels.read(run.output).prices)
    except ConfigError:
        return None
    if not prices:
        return None
    dollars, unpriced = prices.total(tokens_by_model.items())
    return {"dollars": dollars, "per_rollout": dollars / max(rollouts, 1), "unpriced": unpriced}


def identity_strip(run: RunFiles, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the run was made with: sampling, limits, versions, data and command; unknown facts are absent."""
    plan = _mapping(content.get("plan"))
    sampling = {
        name: value
        for name, value in _mapping(plan.get("responses_create_params")).items()
        if isinstance(value, str | int | float | bool)
    }
    limits = {name: value for name, value in _mapping(content.get("limits")).items() if value is not None}
    code = {name: value for name, value in _mapping(content.get("code")).items() if isinstance(value, str)}
    versions = {name: code[name] for name in (OWN_PACKAGE, *code) if name in code}
    data = {"name": _mapping(content.get("input")).get("name"), "rows": content.get("rows")}
    command = RunLabels.read(run.output).command
    facts: dict[str, Any] = {
        "sampling": dict(list(sampling.items())[:_LONGEST_SAMPLING]),
        "limits": limits,
        "versions": versions,
        "data": {name: value for name, value in data.items() if isinstance(value, str)},
        "command": command,
        "resume_command": f"{command} --resume" if command else "",
    }
    return {name: value for name, value in facts.items() if value}


def _has_collector(run: RunFiles) -> bool:
    """Return whether the process that holds the lock of a run exists; the lock itself is never touched."""
    lock = lock_path_for(run.output)
    try:
        holder = json.loads(lock.read_bytes()[:4096])
        changed = max((path.stat().st_mtime for path in (lock, run.output, run.failures) if path.exists()), default=0.0)
    except (OSError, ValueError):
        return False
    if not isinstance(holder, dict):
        return False
    if holder.get("host") != socket.gethostname():
        return datetime.now(UTC).timestamp() - changed < ACTIVE_SECONDS
    pid = holder.get("pid")
    if not isinstance(pid, int) or not 0 < pid < 2**31:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # the process of another user
        return True
    return True


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
