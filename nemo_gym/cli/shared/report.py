"""Report a finished evaluation: as text, as JSON, and to the trackers of the configuration."""

import asyncio
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from omegaconf import DictConfig

from nemo_gym.cli.shared.concurrency import run_in_thread
from nemo_gym.cli.shared.eval_request import EvalRequest
from nemo_gym.cli.shared.scoring import is_number
from nemo_gym.cli.terminal import output
from nemo_gym.cli.terminal.live import describe_node, format_number, format_time
from nemo_gym.cli.terminal.progress import Progress
from nemo_gym.config.overrides import mask_word
from nemo_gym.config.secret_text import MASK
from nemo_gym.errors import GymError
from nemo_gym.exporters import export_metrics, export_rollouts, setup_exporters, teardown_exporters
from nemo_gym.metrics.answer_totals import TOOL_ERRORS, describe_answers
from nemo_gym.metrics.intervals import ClusteredMean, MeanWithInterval, format_figure, format_interval
from nemo_gym.metrics.prices import PriceTable
from nemo_gym.rollouts.dispatch import NodeStatistics
from nemo_gym.rollouts.outcome import FailureKind
from nemo_gym.rollouts.plan import PlanSummary
from nemo_gym.rollouts.refusals import EndpointRefused
from nemo_gym.rollouts.run_files import (
    aggregate_metrics_path_for,
    failures_path_for,
    materialized_path_for,
    run_path_for,
)
from nemo_gym.rollouts.store import RolloutStore
from nemo_gym.wire.stored_rollout import REWARD_KEY

COMPLETE, INCOMPLETE, INTERRUPTED = 0, 1, 130
"""Exit statuses of a collection."""
RESUME_FLAGS = frozenset({"--resume", "--overwrite"})
"""Flags that the command to continue does not copy: it has its own --resume."""
TOTAL, COST = "total", "cost"
LIMIT_KEYS = {
    "steps": "max_steps_per_rollout",
    "tokens": "max_tokens_per_rollout",
    TOTAL: "max_total_tokens",
    COST: "max_total_cost",
}
LIMIT_FLAGS = {
    "steps": "--max-steps",
    "tokens": "--max-rollout-tokens",
    TOTAL: "--max-total-tokens",
    COST: "--max-cost",
}
VERIFICATION_FAILURES = (FailureKind.VERIFIER_ERROR, FailureKind.INVALID_REWARD, FailureKind.JUDGE_FAILED)
"""Failures after which the stored answer can be scored without another call of the model."""
CONFIGURATION_FLAGS = frozenset(
    {"--environment", "--resources-server", "--benchmark", "--config", "--search-dir"}
    | {"--model-type", "--model", "-m", "--model-url"}
)
"""Flags of `gym eval run` that `gym eval reverify` needs, too."""
SHOWN_TOOL_ERRORS = 5
OPEN_SECONDS = 5.0
"""Maximum wait at the end of a run for trackers that are still being opened."""


@dataclass(frozen=True)
class Report:
    """The results of a collection that has ended."""

    target: Path
    progress: Progress
    words: Sequence[str]
    """The arguments of the command as they were typed."""
    seconds: float
    max_attempts: int = 3
    """Maximum attempts per rollout."""
    limits: Mapping[str, float | None] = field(default_factory=dict)
    """The limits of the run: steps and tokens of one rollout, tokens and dollars in total."""
    interrupted: bool = False
    stopped: str | None = None
    """The limit that ended the run early, as text."""
    entries: list[dict[str, Any]] = field(default_factory=list)
    """The content of the metrics file."""
    pages: Mapping[str, str] = field(default_factory=dict)
    """Tracker -> address of its page of the run."""
    problem: GymError | None = None
    """The error that ended the collection early."""
    request: EvalRequest | None = None

    @property
    def prices(self) -> PriceTable:
        return PriceTable(self.request.collection.prices if self.request is not None else None)

    @property
    def plan(self) -> PlanSummary:
        tally = self.progress.tally
        return self.progress.plan or PlanSummary(total=tally.total, to_run=tally.total)

    @property
    def missing(self) -> int:
        """Number of rollouts of the whole run without a score."""
        return self.plan.total - self.plan.finished - self.progress.tally.scored

    @property
    def not_run(self) -> int:
        """Number of planned rollouts that were never sent."""
        return max(0, self.plan.to_run - self.progress.tally.total)

    @property
    def status(self) -> int:
        if self.interrupted:
            return INTERRUPTED
        return INCOMPLETE if self.missing else COMPLETE

    def mean(self) -> MeanWithInterval | None:
        """Return the mean reward of the whole run; a resumed run reads the earlier rewards from the output."""
        if not self.plan.finished:
            return self.progress.compute_mean()
        records = RolloutStore(self.target).records()
        return ClusteredMean((record.get("_ng_task_index"), float(record[REWARD_KEY])) for record in records).mean()

    def files(self) -> dict[str, str]:
        """Return the files of the run that exist, keyed by content; an empty failures file is left out."""
        failures = failures_path_for(self.target)
        paths = {
            "rollouts": self.target,
            "failures": failures if failures.exists() and failures.stat().st_size else None,
            "metrics": aggregate_metrics_path_for(self.target) if self.entries else None,
            "inputs": materialized_path_for(self.target),
            "run": run_path_for(self.target),
            "earlier": self.plan.kept,
        }
        return {name: str(path) for name, path in paths.items() if path is not None and path.exists()}

    def next_commands(self) -> dict[str, str]:
        """Return commands to run next, keyed by purpose."""
        commands: dict[str, str] = {}
        attempts_of_failed = self.progress.failed_attempts
        is_exhausted = any(attempts >= self.max_attempts for attempts in attempts_of_failed)
        has_given_up = self.plan.given_up > self.plan.final or self.progress.reopenable or is_exhausted
        if any(self.progress.tally.failed[kind] for kind in VERIFICATION_FAILURES):
            commands["score again"] = reverify_command(self.words, self.target)
        if self.interrupted or self.stopped:
            spent = next((limit for limit in (TOTAL, COST) if LIMIT_KEYS[limit] in (self.stopped or "")), None)
            resume = resume_command(self.words)
            commands["continue"] = self._command_with_double(spent) if spent else resume
        elif any(attempts < self.max_attempts for attempts in attempts_of_failed):
            commands["retry the failed"] = resume_command(self.words)
        elif has_given_up:
            flag, value = "--max-attempts", str(self.max_attempts + 1)
            commands["try once more"] = resume_command(self.words, flag, value, without=flag)
        for limit, _ in self.progress.tally.limits.most_common(1):
            if limit in LIMIT_FLAGS:
                commands["allow more"] = self._command_with_double(limit)
        rollouts, inputs = shlex.quote(str(self.target)), shlex.quote(str(materialized_path_for(self.target)))
        if self.target.exists():
            partial_flag = " +allow_partial_rollouts=true" if self.missing else ""
            if self.plan.finished or self.progress.tally.scored:
                commands["profile"] = f"gym eval profile --inputs {inputs} --rollouts {rollouts}{partial_flag}"
            commands["view"] = f"gym view {rollouts}"
        return commands

    def _command_with_double(self, limit: str) -> str:
        """Return the command that resumes with twice the limit; with the same limit, rollouts would end there again."""
        flag, value = LIMIT_FLAGS[limit], self.limits.get(limit)
        return resume_command(self.words, *((flag, f"{2 * value:.15g}") if value else ()), without=flag)


def run_header(request: EvalRequest, plan: PlanSummary) -> str:
    """Describe a run as `arithmetic · gpt-4o · 40 tasks × 2 repeats`."""
    repeats = request.collection.num_repeats
    rollouts = f"{plan.total} rollouts"
    if isinstance(repeats, int) and not plan.total % repeats:
        tasks = plan.total // repeats
        rollouts = f"{tasks} task{'s' if tasks != 1 else ''} × {repeats} repeat{'s' if repeats != 1 else ''}"
    labels = request.labels
    return " · ".join(filter(None, (labels.name, labels.environment, labels.model, rollouts)))


def resume_command(words: Sequence[str], *more: str, without: str | None = None) -> str:
    """Return the command that resumes a run: masked `words` without the flag `without`, plus `more`."""
    return f"{masked_command(words, *more, without=without)} --resume"


def reverify_command(words: Sequence[str], target: Path) -> str:
    """Return the command that verifies the stored answers of a run again, without calling its model."""
    kept: list[str] = []
    previous = ""
    for word in words:
        name = word.partition("=")[0]
        if previous in CONFIGURATION_FLAGS or name in CONFIGURATION_FLAGS or _is_server_override(word):
            kept.append(mask_word(word))
        previous = word
    output_path = target.with_name(f"{target.stem}_reverified{target.suffix}")
    files = ["--failed", "--rollouts", str(target), "--output", str(output_path)]
    return f"gym eval reverify {shlex.join([*kept, *files])}"


def _is_server_override(word: str) -> bool:
    """Return whether a word sets a field of a server: an override such as `+quiz.resources_servers.quiz.field=1`."""
    return word.startswith("+") and "." in word.partition("=")[0]


def masked_command(words: Sequence[str], *more: str, without: str | None = None) -> str:
    """Return a command without secrets, --resume, --overwrite and the flag `without`, plus `more`."""
    masked: list[str] = []
    previous = ""
    for word in words:
        name = word.partition("=")[0]
        if previous == "--model-api-key":
            masked.append(MASK)
        elif word not in RESUME_FLAGS and without not in (name, previous):
            masked.append(mask_word(word))
        previous = "" if previous in ("--model-api-key", without) else word  # a value is not a flag
    return f"gym {shlex.join([*masked, *more])}"


def report_as_dict(report: Report) -> dict[str, Any]:
    """Return the report for `--json`."""
    tally, mean = report.progress.tally, report.mean()
    labels = report.request.labels.names() if report.request is not None else {}
    return {
        "exit_status": report.status,
        **labels,
        "total": report.plan.total,
        "finished_before": report.plan.finished,
        "scored": tally.scored,
        "failed": {str(kind): count for kind, count in tally.failed.items()},
        "limits": {str(limit): count for limit, count in tally.limits.items()},
        "cancelled": tally.cancelled,
        "not_run": report.not_run,
        "missing": report.missing,
        "stopped": report.stopped,
        "interrupted": report.interrupted,
        "mean_reward": mean.value if mean else None,
        "mean_reward_interval_95": [mean.low, mean.high] if mean and mean.low is not None else None,
        "tokens": report.progress.tokens,
        "tokens_by_model": {entry["agent_ref"]["name"]: entry.get("tokens") for entry in report.entries},
        "tool_errors": {entry["agent_ref"]["name"]: entry.get(TOOL_ERRORS, []) for entry in report.entries},
        "answers": {entry["agent_ref"]["name"]: entry.get("answers") for entry in report.entries},
        "cost": report.prices.total(token_items(report.entries))[0] if report.prices else None,
        "seconds": round(report.seconds, 3),
        "seconds_per_rollout": {name: round(value, 6) for name, value in report.progress.phase_times.means().items()},
        "rollouts": str(report.target),
        "files": report.files(),
        "metrics": {entry["agent_ref"]["name"]: entry["key_metrics"] for entry in report.entries},
        "intervals_95": {entry["agent_ref"]["name"]: metric_intervals(entry) for entry in report.entries},
        "rewards": {entry["agent_ref"]["name"]: agent_reward(entry) for entry in report.entries},
        "nodes": [node_as_dict(node) for node in report.progress.nodes()],
        "next": report.next_commands(),
        "pages": dict(report.pages),
    }


def node_as_dict(node: NodeStatistics) -> dict[str, Any]:
    """Return the statistics of a node for `--json`; seconds are those from its lease to the outcome."""
    return {
        "name": node.name,
        "rollouts": node.outcomes,
        "seconds_mean": node.latency.mean,
        "seconds_p50": node.latency.quantile(0.5),
        "seconds_p95": node.latency.quantile(0.95),
        "lost": node.loss,
        "lost_rollouts": node.lost_rollouts,
    }


def print_report(report: Report) -> None:
    """Print the report as text."""
    tally, mean = report.progress.tally, report.mean()
    output.write("")
    if report.request is not None:
        output.write(run_header(report.request, report.plan))
    for kind, failure in report.progress.first_failures.items():
        if isinstance(report.problem, EndpointRefused) and failure.refusal_status is not None:
            continue  # the error at the end says it, with the fix
        output.write(f"{kind}: {failure.server}: {one_line(failure.message)}")
    not_run = f" · {report.not_run} not run" if report.not_run else ""
    earlier = f" · {report.plan.finished} scored before" if report.plan.finished else ""
    has_tokens = report.progress.tokens and not report.entries
    tokens = f" · {format_number(report.progress.tokens)} tokens" if has_tokens else ""
    duration = format_time(report.seconds) if report.seconds >= 10 else f"{report.seconds:.1f} s"
    rate = tally.total / max(report.seconds, 1e-9)
    output.write(f"{tally}{not_run}{earlier} · {duration} ({rate:.1f}/s){tokens}")
    for node in report.progress.nodes():
        output.write(f"node         {describe_node(node)}")
    output.write(f"mean reward  {mean or 'none: nothing was scored'}")
    for line in answer_lines(report.entries, report.prices):
        output.write(line)
    if phases := phase_line(report.progress.phase_times.means()):
        output.write(phases)
    for entry in report.entries:
        intervals = metric_intervals(entry)
        figures = {name: value for name, value in entry["key_metrics"].items() if is_number(value)}
        if figures:
            output.write(f"\n{entry['agent_ref']['name']}")
            bounds = {name: format_interval(*interval) for name, interval in intervals.items()}
            rows = [(f"  {name}", format_figure(value), bounds.get(name, "")) for name, value in figures.items()]
            output.write_table(rows)
    output.write("")
    output.write_table([(name, path) for name, path in {**report.files(), **report.pages}.items()])
    if report.stopped and report.problem is None:
        output.write(f"\nstopped early: {report.stopped}")
    if commands := report.next_commands():
        output.write("")
        output.write_table(list(commands.items()))


def answer_lines(entries: Sequence[Mapping[str, Any]], prices: PriceTable | None = None) -> Iterator[str]:
    """Yield the tokens of all attempts by kind with their cost, and the share of answers that have a problem."""
    tokens = Counter[str]()
    by_model = token_items(entries)
    for _, kinds in by_model:
        tokens.update(kinds)
    if tokens:
        parts = {kind: f" ({kind} {format_number(tokens[kind])})" for kind in ("cached", "reasoning") if tokens[kind]}
        used = f"{format_number(tokens['input'])} in{parts.get('cached', '')}"
        made = f"{format_number(tokens['output'])} out{parts.get('reasoning', '')}"
        yield f"tokens       {used} · {made}{_cost_text(by_model, prices)}"
    for entry in entries:
        if problems := describe_answers(entry):
            agent = f"  ({entry['agent_ref']['name']})" if len(entries) > 1 else ""
            yield f"answers      {problems}{agent}"
        for error in (entry.get(TOOL_ERRORS) or ())[:SHOWN_TOOL_ERRORS]:
            place = f" at {error['at']}" if error["at"] else ""
            yield f"tool errors  {error['count']} × /{error['tool']}: {error['error']}{place}"


def token_items(entries: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, int]]]:
    """Return the tokens of each model of each agent."""
    return [(model, kinds) for entry in entries for model, kinds in (entry.get("tokens") or {}).items()]


def _cost_text(by_model: Sequence[tuple[str, Mapping[str, int]]], prices: PriceTable | None) -> str:
    if not prices:
        return ""
    cost, unknown = prices.total(by_model)
    return f" · ${cost:,.4g}" + (f" without {', '.join(unknown)}, which prices does not list" if unknown else "")


def phase_line(means: Mapping[str, float]) -> str:
    """Format mean seconds as `per rollout  4.1 s: model 3.2 s, tools 0.71 s`: longest first, no phases below 1 %."""
    if not means:
        return ""
    whole = means["whole"]
    phases = sorted(((value, name) for name, value in means.items() if name != "whole"), reverse=True)
    parts = ", ".join(f"{name} {_format_seconds(value)}" for value, name in phases if value >= 0.01 * whole)
    return f"per rollout  {_format_seconds(whole)}" + (f": {parts}" if parts else "")


def _format_seconds(seconds: float) -> str:
    """Format as `3.2 s`, `71 ms`, `0.3 ms`."""
    if seconds >= 0.0995:  # less would be rounded to 1e+02 ms
        return f"{seconds:.2g} s" if seconds < 100 else f"{seconds:.0f} s"
    return f"{1000 * seconds:.2g} ms"


def metric_intervals(entry: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the 95 % interval of each key metric that has one: means of fields, and pass@k of the reward."""
    scores = entry.get("scores") or {}
    bounds: dict[str, list[float]] = {}
    for name, value in entry["key_metrics"].items():
        score, scale = _find_score(name, scores)
        # A server may compute a metric of this name in its own way; then our interval is not one of its value.
        if score.get("ci95") and is_number(value) and abs(scale * score["mean"] - value) <= 1e-6 * max(1, abs(value)):
            bounds[name] = [scale * bound for bound in score["ci95"]]
    return bounds


def _find_score(metric: str, scores: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
    """Return the score of a key metric, empty if it has none, and the factor to the metric: pass@k is in percent."""
    kind, _, name = metric.partition("/")
    if kind == "mean":
        return scores.get(name) or {}, 1
    reward = scores.get(REWARD_KEY) or {}
    if kind.startswith("pass@1["):  # such as pass@1[avg-of-4], which is the mean reward
        return reward, 100
    score = (reward.get("pass@k") or {}).get(kind.removeprefix("pass@")) if kind.startswith("pass@") else None
    return score or {}, 100


def agent_reward(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mean reward of an agent and its interval."""
    score = (entry.get("scores") or {}).get(REWARD_KEY) or {}
    return {"mean": score.get("mean"), "interval_95": score.get("ci95")}


def read_entries(target: Path) -> list[dict[str, Any]]:
    """Read the metrics file of an output; return an empty list if it is missing."""
    path = aggregate_metrics_path_for(target)
    entries: list[dict[str, Any]] = orjson.loads(path.read_bytes()) if path.exists() else []
    return entries


def one_line(text: str) -> str:
    """Return `text` without line breaks, shortened to 300 characters."""
    return output.clip(" ".join(text.split()), 300)


class Trackers:
    """The trackers of a configuration, opened on a thread while the servers start. Tracker errors never end a run."""

    def __init__(self, config: DictConfig) -> None:
        self._opening = asyncio.create_task(run_in_thread(partial(setup_exporters, config)))

    async def export(self, target: Path, entries: Sequence[Mapping[str, Any]], *, upload: bool) -> dict[str, str]:
        """Send metrics and, with `upload`, rollouts; return the URL of the run's page for each tracker that has one."""
        exporters = await self._opening
        if exporters:
            output.notify(f"exporting to {' and '.join(exporter.name for exporter in exporters)}")

            def export_results() -> None:
                export_metrics(dict(metrics_for_trackers(entries)))
                if upload and target.exists():
                    export_rollouts(RolloutStore(target).records)

            await run_in_thread(export_results)
        return {exporter.name: exporter.url for exporter in exporters if exporter.url}

    async def close(self) -> None:
        """Close the trackers; if they are still being opened, wait for that at most OPEN_SECONDS."""
        await asyncio.wait({self._opening}, timeout=OPEN_SECONDS)
        if self._opening.done() and self._opening.result():
            await run_in_thread(teardown_exporters)
        self._opening.cancel()


def metrics_for_trackers(entries: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield names and values: all metrics as `<agent>/<metric>`, key metrics also as `key_metrics/<agent>/<metric>`."""
    for entry in entries:
        agent = entry["agent_ref"]["name"]
        for prefix, metrics in ((agent, entry["agent_metrics"]), (f"key_metrics/{agent}", entry["key_metrics"])):
            yield from ((f"{prefix}/{name}", value) for name, value in metrics.items())
