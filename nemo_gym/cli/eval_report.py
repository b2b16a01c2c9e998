"""What `gym eval run` says at the end: how it went, the scores, the files, and what to type next."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.cli import output
from nemo_gym.cli.live import short_number, short_time
from nemo_gym.cli.progress import Progress
from nemo_gym.config.secrets import MASK, is_secret_name
from nemo_gym.metrics.intervals import ClusteredMean, Mean
from nemo_gym.rollouts.outcome import REWARD_KEY
from nemo_gym.rollouts.paths import aggregate_metrics_path_for, failures_path_for, materialized_path_for, run_path_for
from nemo_gym.rollouts.planned import Planned
from nemo_gym.rollouts.store import RolloutStore

COMPLETE, INCOMPLETE, INTERRUPTED = 0, 1, 130
"""Exit statuses of a collection that took place."""
RESUME_FLAGS = frozenset({"--resume", "--overwrite"})
TOTAL = "total"
LIMIT_FLAGS = {"steps": "--max-steps", "tokens": "--max-rollout-tokens", TOTAL: "--max-total-tokens"}


@dataclass(frozen=True)
class Report:
    """Everything there is to say about a collection that has ended."""

    target: Path
    progress: Progress
    words: Sequence[str]
    """The command as it was typed."""
    commands: frozenset[str]
    """The commands there are, as `group command`."""
    seconds: float
    max_attempts: int = 3
    """How often a rollout is tried before it is given up."""
    limits: Mapping[str, int | None] = field(default_factory=dict)
    """What was allowed: steps and tokens of one rollout, and tokens in total."""
    interrupted: bool = False
    stopped: str | None = None
    """Why no more rollouts were taken, if that was decided by a limit."""
    entries: list[dict[str, Any]] = field(default_factory=list)
    """The metrics file."""
    pages: Mapping[str, str] = field(default_factory=dict)
    """Where trackers show the run."""

    def with_pages(self, pages: Mapping[str, str]) -> "Report":
        return replace(self, pages=pages)

    @property
    def planned(self) -> Planned:
        tally = self.progress.tally
        return self.progress.planned or Planned(total=tally.total, to_run=tally.total)

    @property
    def missing(self) -> int:
        """Rollouts of the whole run that have no score."""
        return self.planned.total - self.planned.finished - self.progress.tally.scored

    @property
    def not_run(self) -> int:
        """Rollouts that were to be run and were never sent."""
        return max(0, self.planned.to_run - self.progress.tally.total)

    @property
    def status(self) -> int:
        if self.interrupted:
            return INTERRUPTED
        return INCOMPLETE if self.missing else COMPLETE

    def mean(self) -> Mean | None:
        """The mean reward of the whole run; what an earlier part scored is read from the output."""
        if not self.planned.finished:
            return self.progress.rewards.mean()
        rewards = ClusteredMean()
        for record in RolloutStore(self.target).records():
            rewards.add(record.get("_ng_task_index"), float(record[REWARD_KEY]))
        return rewards.mean()

    def files(self) -> dict[str, str]:
        """What was written, by what it is; a failures file without failures is not worth naming."""
        failures = failures_path_for(self.target)
        paths = {
            "rollouts": self.target,
            "failures": failures if failures.exists() and failures.stat().st_size else None,
            "metrics": aggregate_metrics_path_for(self.target) if self.entries else None,
            "inputs": materialized_path_for(self.target),
            "run": run_path_for(self.target),
            "earlier": self.planned.kept,
        }
        return {name: str(path) for name, path in paths.items() if path is not None and path.exists()}

    def next_commands(self) -> dict[str, str]:
        """What can be typed now, by what it does; only commands that exist."""
        commands: dict[str, str] = {}
        used = self.progress.attempts
        worn_out = self.planned.given_up + sum(used[count] for count in used if count >= self.max_attempts)
        if self.interrupted or self.stopped:
            spent = self.stopped is not None and "max_total_tokens" in self.stopped
            commands["continue"] = self._with_more(TOTAL) if spent else resumed(self.words)
        elif any(count < self.max_attempts for count in used):
            commands["retry the failed"] = resumed(self.words)
        elif worn_out:
            more = ("--max-attempts", str(self.max_attempts + 1))
            commands["try once more"] = resumed(self.words, *more, without="--max-attempts")
        for which, _ in self.progress.tally.limits.most_common(1):
            if which in LIMIT_FLAGS:
                commands["allow more"] = self._with_more(which)
        rollouts, inputs = shlex.quote(str(self.target)), shlex.quote(str(materialized_path_for(self.target)))
        if "eval profile" in self.commands and self.target.exists():
            partial = " +allow_partial_rollouts=true" if self.missing else ""
            commands["profile"] = f"gym eval profile --inputs {inputs} --rollouts {rollouts}{partial}"
        if "view" in self.commands:
            commands["view"] = f"gym view {rollouts}"
        return commands

    def _with_more(self, which: str) -> str:
        """The same command with twice the limit: one that would end at the same place again helps nobody."""
        flag, limit = LIMIT_FLAGS[which], self.limits.get(which)
        return resumed(self.words, *((flag, str(2 * limit)) if limit else ()), without=flag)


def as_json(report: Report) -> dict[str, Any]:
    """The report as one object."""
    tally, mean = report.progress.tally, report.mean()
    return {
        "exit_status": report.status,
        "total": report.planned.total,
        "finished_before": report.planned.finished,
        "scored": tally.scored,
        "failed": {str(kind): count for kind, count in tally.failed.items()},
        "limits": {str(which): count for which, count in tally.limits.items()},
        "cancelled": tally.cancelled,
        "not_run": report.not_run,
        "missing": report.missing,
        "stopped": report.stopped,
        "interrupted": report.interrupted,
        "mean_reward": mean.value if mean else None,
        "half_width_95": mean.half_width if mean else None,
        "tokens": report.progress.tokens,
        "seconds": round(report.seconds, 3),
        "seconds_per_rollout": {name: round(value, 6) for name, value in report.progress.spent.means().items()},
        "rollouts": str(report.target),
        "files": report.files(),
        "metrics": {entry["agent_ref"]["name"]: entry["key_metrics"] for entry in report.entries},
        "intervals_95": {entry["agent_ref"]["name"]: intervals(entry) for entry in report.entries},
        "next": report.next_commands(),
        "pages": dict(report.pages),
    }


def as_text(report: Report) -> None:
    """The report for people."""
    tally, mean = report.progress.tally, report.mean()
    output.data("")
    for kind, failure in report.progress.first_failures.items():
        output.data(f"{kind}: {failure.whom}: {one_line(failure.message)}")
    left = f" · {report.not_run} not run" if report.not_run else ""
    earlier = f" · {report.planned.finished} scored before" if report.planned.finished else ""
    output.data(f"{tally}{left}{earlier} · {_speed(report)}")
    output.data(f"mean reward  {mean or 'none: nothing was scored'}")
    if spent := time_line(report.progress.spent.means()):
        output.data(spent)
    for entry in report.entries:
        rows = metric_rows(entry)
        if rows:
            output.data(f"\n{entry['agent_ref']['name']}")
            output.table(rows)
    output.data("")
    output.table([(name, path) for name, path in {**report.files(), **report.pages}.items()])
    if report.stopped:
        output.data(f"\nstopped early: {report.stopped}")
    commands = report.next_commands()
    if commands:
        output.data("")
        output.table(list(commands.items()))


def time_line(means: Mapping[str, float]) -> str:
    """`per rollout  4.1 s: model 3.2 s, tools 0.71 s`, the longest first, without what took next to no time."""
    if not means:
        return ""
    whole = means["whole"]
    phases = sorted(((value, name) for name, value in means.items() if name != "whole"), reverse=True)
    told = ", ".join(f"{name} {short_span(value)}" for value, name in phases if value >= 0.01 * whole)
    return f"per rollout  {short_span(whole)}" + (f": {told}" if told else "")


def short_span(seconds: float) -> str:
    """`3.2 s`, `71 ms`, `0.3 ms`."""
    if seconds >= 0.1:
        return f"{seconds:.2g} s" if seconds < 100 else f"{seconds:.0f} s"
    return f"{1000 * seconds:.2g} ms"


def metric_rows(entry: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Key metrics with the intervals that are known for them."""
    known = intervals(entry)
    return [
        (f"  {name}", f"{value:.4g}", "[{:.4g}, {:.4g}]".format(*known[name]) if name in known else "")
        for name, value in entry["key_metrics"].items()
        if _is_number(value)
    ]


def intervals(entry: Mapping[str, Any]) -> dict[str, list[float]]:
    """The 95 % interval of each key metric that has one: means of fields, and pass@k where it is of the reward."""
    scores = entry.get("scores") or {}
    found: dict[str, list[float]] = {}
    for name, value in entry["key_metrics"].items():
        score, scale = _score_of(name, scores)
        if score.get("ci95") and _is_number(value) and abs(scale * score["mean"] - value) <= 1e-6 * max(1, abs(value)):
            found[name] = [scale * bound for bound in score["ci95"]]
    return found


def _score_of(metric: str, scores: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
    kind, _, name = metric.partition("/")
    if kind == "mean":
        return scores.get(name) or {}, 1
    reward = scores.get(REWARD_KEY) or {}
    if kind.startswith("pass@1["):
        return reward, 100
    return ((reward.get("pass@k") or {}).get(kind.removeprefix("pass@")) or {}) if kind.startswith("pass@") else {}, 100


def read_entries(target: Path) -> list[dict[str, Any]]:
    """The metrics file of an output; nothing when there is none."""
    path = aggregate_metrics_path_for(target)
    entries: list[dict[str, Any]] = orjson.loads(path.read_bytes()) if path.exists() else []
    return entries


def resumed(words: Sequence[str], *more: str, without: str | None = None) -> str:
    """The same command, resuming, without a flag and its value; secrets are left for the reader to fill in."""
    kept: list[str] = []
    before = ""
    for word in words:
        name, equals, _ = word.partition("=")
        if before == "--model-api-key":
            kept.append(MASK)
        elif equals and is_secret_name(name.lstrip("+-~").rpartition(".")[2].replace("-", "_")):
            kept.append(f"{name}={MASK}")
        elif word not in RESUME_FLAGS and without not in (name, before):
            kept.append(word)
        before = "" if before in ("--model-api-key", without) else word
    return f"gym {shlex.join([*kept, *more])} --resume"


def _speed(report: Report) -> str:
    done, tokens = report.progress.tally.total, report.progress.tokens
    used = f" · {short_number(tokens)} tokens" if tokens else ""
    took = short_time(report.seconds) if report.seconds >= 10 else f"{report.seconds:.1f} s"
    return f"{took} ({done / max(report.seconds, 1e-9):.1f}/s){used}"


def one_line(text: str, longest: int = 300) -> str:
    """`text` without its line breaks, and no longer than can be read at a glance."""
    line = " ".join(text.split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
