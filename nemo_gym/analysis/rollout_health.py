"""Check stored rollouts: which are healthy, which have faults, and which lack the evidence to tell.

`run_health_checks` reads results files only; the evidence is the trajectory in each row (`observability_enabled`). It
writes `quality_summary.json` and `rollout_verdicts.jsonl`. Rewards are not read, and nothing is changed in the results.
"""

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_gym.analysis.health_checks import (
    CHECK_EXECUTION_ERROR,
    CHECK_IDS,
    DUPLICATE_IDENTITY,
    ENDED_ON_FAILED_CALL,
    RECORD_UNREADABLE,
    ROW_CHECKS,
    task_flags,
)
from nemo_gym.analysis.rollout_evidence import MissingEvidenceError, RolloutEvidence, failure_of
from nemo_gym.errors import ConfigError
from nemo_gym.journal import parse_line, scan_lines, write_lines
from nemo_gym.keys import ROLLOUT_ID_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME, VERDICTS_ENDING
from nemo_gym.wire.call_reply import encode_json

PathLike = str | os.PathLike[str]
SUMMARY_NAME, VERDICTS_NAME = "quality_summary.json", VERDICTS_ENDING
HEALTHY, UNHEALTHY, UNOBSERVED = "healthy", "unhealthy", "unobserved"


class HealthOptionsError(ConfigError, ValueError):
    """Run health has no file to read, or is asked to ignore an unknown check."""


@dataclass(frozen=True)
class HealthCheckResult:
    """The summary, the verdict of each rollout in the order of the files, and where both are stored."""

    summary: dict[str, Any]
    rollouts: list[dict[str, Any]]
    summary_path: Path
    verdicts_path: Path


@dataclass
class _RunTotals:
    """Counts over all rows."""

    captures: int = 0
    evaluated: Counter[str] = field(default_factory=Counter)
    unobserved: Counter[str] = field(default_factory=Counter)
    errors_by_status: Counter[str] = field(default_factory=Counter)
    rollouts_with_errors: int = 0
    replayed_calls: int = 0
    rollouts_with_replays: int = 0
    tokens: Counter[str] = field(default_factory=Counter)
    successes: dict[int | None, list[bool | None]] = field(default_factory=lambda: defaultdict(list))
    """By task: whether a model call of each repeat succeeded; None if its calls are unknown."""


def run_health_checks(
    paths: PathLike | Iterable[PathLike],
    *,
    output_dir: PathLike | None = None,
    workers: int | None = None,  # noqa: ARG001 - one process reads the files; the argument is that of NeMo Gym 0.7
    ignored_checks: str | Iterable[str] = (),
) -> HealthCheckResult:
    """Check the rollouts of results files and write summary and verdicts, beside the first file or in `output_dir`.

    A rollout is unhealthy with any finding, else unobserved if a check lacked evidence, else healthy.

    Raises:
        HealthOptionsError: an ignored check has an unknown name, or no file is named.
        OSError: a file cannot be read or written.
    """
    files = [Path(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    if not files:
        raise HealthOptionsError("no results file to check", fix="pass at least one path")
    ignored = frozenset(normalize_ignored_checks(ignored_checks))
    totals = _RunTotals()
    rollouts = [_check_line(line, ignored, totals) for path in files for _, line in scan_lines(path)]
    if DUPLICATE_IDENTITY not in ignored:
        _mark_duplicates(rollouts)
    summary = _summary(rollouts, totals, ignored)
    folder = files[0].parent if output_dir is None else Path(output_dir)
    write_lines(folder / VERDICTS_NAME, (encode_json(verdict) + b"\n" for verdict in rollouts))
    write_lines(folder / SUMMARY_NAME, [json.dumps(summary, indent=2).encode() + b"\n"])
    return HealthCheckResult(summary, rollouts, folder / SUMMARY_NAME, folder / VERDICTS_NAME)


def health_check_run_dir(run_dir: PathLike, rollout_file: str = "rollouts.jsonl", **options: Any) -> HealthCheckResult:
    """Check the results file of a run's folder; the options are those of `run_health_checks`."""
    return run_health_checks(Path(run_dir) / rollout_file, **options)


def normalize_ignored_checks(names: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return names of checks, given as a list or as text with commas, sorted and without duplicates.

    Raises:
        HealthOptionsError: a name is unknown.
    """
    listed = names.split(",") if isinstance(names, str) else names or ()
    stripped = {name.strip() for name in listed} - {""}
    if unknown := sorted(stripped - set(CHECK_IDS)):
        raise HealthOptionsError(f"unknown health check: {', '.join(unknown)}", fix=f"one of {', '.join(CHECK_IDS)}")
    return tuple(sorted(stripped))


def format_health_report(result: HealthCheckResult) -> str:
    """Return the verdicts and the findings of each check as text."""
    run = result.summary["run"]
    counts = ", ".join(f"{run['verdicts'][name]} {name}" for name in (HEALTHY, UNHEALTHY, UNOBSERVED))
    lines = [f"{run['artifacts']['records']} rollouts: {counts}"]
    lines += [f"  {check}: {number}" for check, number in sorted(run["issues"].items())]
    return "\n".join([*lines, f"verdicts: {result.verdicts_path}"])


def _check_line(line: bytes, ignored: frozenset[str], totals: _RunTotals) -> dict[str, Any]:
    """Return the verdict of a line, and count it."""
    row = parse_line(line)
    evidence = RolloutEvidence(row or {})
    problem = "the line is not a JSON object" if row is None else evidence.trajectory_problem()
    findings: list[dict[str, Any]] = []
    unobserved: list[str] = []
    if RECORD_UNREADABLE not in ignored:
        totals.evaluated[RECORD_UNREADABLE] += 1
        findings += [_finding(RECORD_UNREADABLE, problem)] if problem else []
    for check in ROW_CHECKS:
        if check in ignored:
            continue
        try:
            if problem:
                raise MissingEvidenceError(RECORD_UNREADABLE)
            for fault in ROW_CHECKS[check](evidence):  # a check may lack evidence after its first findings
                findings.append(_finding(check, fault.detail, fault.locator))
            totals.evaluated[check] += 1
        except MissingEvidenceError:
            unobserved.append(check)
            totals.unobserved[check] += 1
        except Exception as error:  # a fault of a check must not hide the findings of the others
            if CHECK_EXECUTION_ERROR not in ignored:
                findings.append(
                    {"check": CHECK_EXECUTION_ERROR, "detail": {"failed_check": check, "error": repr(error)}}
                )
    _count_calls(evidence, None if problem else row, totals)
    verdict = {
        TASK_INDEX_KEY_NAME: evidence.row.get(TASK_INDEX_KEY_NAME),
        ROLLOUT_INDEX_KEY_NAME: evidence.row.get(ROLLOUT_INDEX_KEY_NAME),
        "rollout_id": _rollout_id(evidence.row),
        "verdict": UNHEALTHY if findings else UNOBSERVED if unobserved else HEALTHY,
        "findings": findings,
        "unobserved": unobserved,
    }
    return verdict | {key: evidence.row[key] for key in ("stage_index",) if key in evidence.row}


def _finding(check: str, detail: Any, locator: str | None = None) -> dict[str, Any]:
    return {"check": check, "detail": detail} | ({} if locator is None else {"locator": locator})


def _rollout_id(row: Mapping[str, Any]) -> str | None:
    if ROLLOUT_ID_KEY_NAME in row:
        return str(row[ROLLOUT_ID_KEY_NAME])
    indices = [row.get(name) for name in (TASK_INDEX_KEY_NAME, ROLLOUT_INDEX_KEY_NAME)]
    return None if None in indices else f"{indices[0]}-{indices[1]}"


def _count_calls(evidence: RolloutEvidence, row: Mapping[str, Any] | None, totals: _RunTotals) -> None:
    """Add the tokens, errors and repeated answers of a row; of an unreadable row nothing is known."""
    if row is None:
        totals.successes[_task_of(evidence.row)].append(None)
        return
    for name, count in zip(("prompt", "completion"), _known_usage(evidence), strict=True):
        totals.tokens[name] += count
    try:
        calls = evidence.calls()
    except MissingEvidenceError:
        totals.successes[_task_of(row)].append(None)
        return
    totals.captures += len(calls)
    failed = [call for call in calls if failure_of(call)]
    totals.successes[_task_of(row)].append(len(failed) < len(calls))
    totals.rollouts_with_errors += bool(failed)
    for call in calls:
        metadata = call.response_metadata
        if failure_of(call) and metadata is not None:
            totals.errors_by_status[str(metadata.status_code or metadata.error_category or "unknown")] += 1
        if call.token_stats is not None:
            totals.tokens["capture_prompt"] += call.token_stats.prompt_tokens or 0
            totals.tokens["capture_completion"] += call.token_stats.completion_tokens or 0
    answers = Counter(call.response_metadata.response_id for call in calls if call.response_metadata is not None)
    replayed = sum(times - 1 for response_id, times in answers.items() if response_id is not None)
    totals.replayed_calls += replayed
    totals.rollouts_with_replays += bool(replayed)


def _known_usage(evidence: RolloutEvidence) -> tuple[int, int]:
    try:
        return evidence.usage()
    except MissingEvidenceError:
        return 0, 0


def _mark_duplicates(rollouts: Sequence[dict[str, Any]]) -> None:
    """Add a finding to each rollout whose stage, task and repeat occur more than once."""
    identities = [_identity(verdict) for verdict in rollouts]
    times = Counter(identity for identity in identities if identity is not None)
    for verdict, identity in zip(rollouts, identities, strict=True):
        if identity is not None and times[identity] > 1:
            verdict["findings"].append(_finding(DUPLICATE_IDENTITY, f"occurs {times[identity]} times"))
            verdict["verdict"] = UNHEALTHY


def _task_of(row: Mapping[str, Any]) -> int | None:
    """Return the task index; None if it is missing or no number."""
    index = row.get(TASK_INDEX_KEY_NAME)
    return index if isinstance(index, int) else None


def _identity(verdict: Mapping[str, Any]) -> str | None:
    indices = [verdict.get(name) for name in ("stage_index", TASK_INDEX_KEY_NAME, ROLLOUT_INDEX_KEY_NAME)]
    return None if None in indices[1:] else json.dumps(indices)


def _summary(rollouts: Sequence[Mapping[str, Any]], totals: _RunTotals, ignored: frozenset[str]) -> dict[str, Any]:
    tasks = _tasks(rollouts, totals, ignored)
    issues = Counter(finding["check"] for verdict in rollouts for finding in verdict["findings"])
    issues.update(flag for task in tasks.values() for flag in task["flags"])
    verdicts = Counter(verdict["verdict"] for verdict in rollouts)
    return {
        "run": {
            "ignored_checks": sorted(ignored),
            "artifacts": {
                "records": len(rollouts),
                "captures": totals.captures,
                "coverage": dict(_coverage(rollouts, totals, ignored)),
            },
            "verdicts": {name: verdicts[name] for name in (HEALTHY, UNHEALTHY, UNOBSERVED)},
            "issues": dict(issues),
            "stats": {
                "model_call_errors": {
                    "total": totals.errors_by_status.total(),
                    "by_status": dict(totals.errors_by_status),
                    "rollouts_affected": totals.rollouts_with_errors,
                    "ended_on_error": sum(
                        any(finding["check"] == ENDED_ON_FAILED_CALL for finding in verdict["findings"])
                        for verdict in rollouts
                    ),
                },
                "duplicated_calls": {"replayed": totals.replayed_calls, "rollouts": totals.rollouts_with_replays},
                "tokens": {
                    name: totals.tokens[name]
                    for name in ("prompt", "completion", "capture_prompt", "capture_completion")
                },
            },
        },
        "tasks": tasks,
    }


def _coverage(
    rollouts: Sequence[Mapping[str, Any]], totals: _RunTotals, ignored: frozenset[str]
) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield how many rollouts each check has evaluated, could not evaluate, and was not applied to."""
    for check in CHECK_IDS:
        if check in ignored:
            yield check, {"evaluated": 0, "unobserved": 0, "ignored": len(rollouts)}
        elif check in ROW_CHECKS or check == RECORD_UNREADABLE:
            counts = {"evaluated": totals.evaluated[check], "unobserved": totals.unobserved[check]}
            yield check, {**counts, "ignored": 0}
        else:
            yield check, {"evaluated": len(rollouts), "unobserved": 0, "ignored": 0}


def _tasks(
    rollouts: Sequence[Mapping[str, Any]], totals: _RunTotals, ignored: frozenset[str]
) -> dict[str, dict[str, Any]]:
    """Return the counts and flags of each task whose index is known."""
    verdicts_by_task: dict[int, list[str]] = defaultdict(list)
    for verdict in rollouts:
        if (task := _task_of(verdict)) is not None:
            verdicts_by_task[task].append(verdict["verdict"])
    tasks = {}
    for task, verdicts in sorted(verdicts_by_task.items()):
        counts = Counter(verdicts)
        flags = [flag for flag in task_flags(verdicts, totals.successes.get(task, ())) if flag not in ignored]
        names = (HEALTHY, UNHEALTHY, UNOBSERVED)
        tasks[str(task)] = {"repeats": len(verdicts), **{name: counts[name] for name in names}, "flags": flags}
    return tasks
