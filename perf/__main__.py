"""Measure performance and print every figure beside its promise: `python -m perf [--short] [--json FILE]`.

Figures are CPU time, the best of several runs, because other work on the machine only adds to it. The cost of a rollout
is a ratio to the floor, measured in the same minute. A promise in seconds is scaled by the speed of this machine
relative to the reference machine (perf/pace.py). The exit status is 1 if a promise is missed by more than the margin.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from perf import (
    aggregate,
    collate,
    collector,
    commands,
    config,
    export,
    grading,
    imports,
    inflight,
    live,
    rollouts,
    samples,
    sandbox,
    sessions,
    startup,
    streams,
    validate,
    view,
)
from perf.pace import pace

MARGIN = 1.5


@dataclass(frozen=True)
class Figure:
    """A measured value and the promised maximum."""

    name: str
    measured: float
    promised: float
    unit: str = "s CPU"
    pace: float = 1.0

    @property
    def ratio(self) -> float:
        return self.measured / (self.promised * (self.pace if self.unit.endswith("CPU") else 1.0))


def import_figures(short: bool) -> list[Figure]:  # noqa: ARG001 - has no shorter form
    results = imports.measure()
    loaded = {module for row in results.values() for module in row["forbidden"]}
    if loaded:
        raise SystemExit(f"importing a server base loads {', '.join(sorted(loaded))}")
    return [Figure(f"import {name}", row["best_seconds"], row["limit_seconds"]) for name, row in results.items()]


def validation_figures(short: bool) -> list[Figure]:  # noqa: ARG001
    results = validate.measure()
    return [Figure(f"validate {name}", row["best_ms"], row["limit_ms"], "ms CPU") for name, row in results.items()]


def config_figures(short: bool) -> list[Figure]:  # noqa: ARG001
    results = config.measure()
    return [Figure("parse and check 100 instances", results["seconds"], results["limit_seconds"])]


def rollout_figures(short: bool) -> list[Figure]:
    results = rollouts.measure((64,) if short else (64, 256, 1024), count=1000 if short else 2000)
    return [
        Figure(
            f"a rollout, {at_once} in flight, against the floor", row["ratio"], rollouts.MAX_TIMES_THE_FLOOR, "x floor"
        )
        for at_once, row in results.items()
    ]


def inflight_figures(short: bool) -> list[Figure]:
    at_once = 512 if short else 4096
    results = inflight.measure(at_once, waves=4, runs=1 if short else inflight.RUNS)
    if results["errors"]:
        raise SystemExit(f"{results['errors']} rollouts failed with {at_once} in flight")
    name = f"{at_once:,} in flight, 1 s latency"
    compared = f"{results['times_latency']:.2f} x latency, {results['times_floor']:.2f} x floor"
    return [
        Figure(f"{name}: wall time ({compared})", results["times_ideal"], inflight.MAX_TIMES_IDEAL, "x ideal"),
        Figure(f"{name}: loop lag p99", results["lag_ms"], inflight.MAX_LAG_MS, "ms"),
        Figure(f"{name}: memory of one", results["kb_per_rollout"], inflight.MAX_KB, "KB"),
    ]


def startup_figures(short: bool) -> list[Figure]:
    shapes = [(1, "cell", 2.5, 220.0), (100, "cell", 6.0, 500.0)]
    if not short:
        shapes.append((100, "process", 12.0, 2048.0))
    figures = []
    for count, hosting, cpu, memory in shapes:
        results = startup.measure(count, hosting)
        name = f"start model, agent and {count} as {hosting}"
        figures += [Figure(name, results["cpu_s"], cpu), Figure(f"{name}, PSS", results["pss_mb"], memory, "MB")]
    return figures


def collector_figures(short: bool) -> list[Figure]:
    results = collector.measure(20_000, 4_000) if short else collector.measure()
    return [
        Figure("collect, beyond the call", results["us_per_rollout"], collector.MAX_MICROSECONDS, "us CPU"),
        Figure("collect, peak memory", results["peak_mb"], collector.MAX_MB, "MB"),
        Figure("resume, until the first rollout", results["resume_s"], collector.MAX_RESUME_SECONDS),
    ]


def aggregate_figures(short: bool) -> list[Figure]:
    count = aggregate.ROLLOUTS // 20 if short else aggregate.ROLLOUTS
    results = aggregate.measure(count)
    figures = []
    for name in ("aggregate", "profile"):
        row = results[name]
        title = f"{name} {count:,} rollouts ({row['x_floor']:.1f} x parsing)"
        figures.append(Figure(title, row["cpu_s"], aggregate.limit_seconds(count)))
        figures.append(Figure(f"{name} {count:,} rollouts, peak memory", row["rss_mb"], aggregate.LIMIT_MB, "MB"))
    return figures


def collate_figures(short: bool) -> list[Figure]:
    results = collate.measure(10 if short else 200, runs=3)
    name = f"collate {results['megabytes']:.0f} MB"
    return [
        Figure(f"{name} against the floor", results["times_the_floor"], collate.MAX_TIMES_THE_FLOOR, "x floor"),
        Figure(f"{name}, PSS", results["most_memory_mb"], collate.MAX_MB, "MB"),
    ]


def export_figures(short: bool) -> list[Figure]:
    results = export.measure(4_000 if short else export.ROLLOUTS)
    name = f"export {results['megabytes']:.0f} MB"
    return [
        Figure(f"{name}, the best of each task", results["best"], export.MAX_RATIO_BEST, "x floor"),
        Figure(f"{name}, every rollout", results["all"], export.MAX_RATIO_ALL, "x floor"),
        Figure(f"{name}, every rollout, Parquet", results["all_parquet"], export.MAX_RATIO_PARQUET, "x floor"),
    ]


def sample_figures(short: bool) -> list[Figure]:
    results = samples.measure(1_000 if short else samples.ROLLOUTS)
    return [Figure("samples of 10,000 rollouts of 2,000 tokens", results["seconds"], samples.MAX_SECONDS)]


def live_figures(short: bool) -> list[Figure]:
    results = live.measure(20_000 if short else live.ROLLOUTS)
    added = f"watch a rollout (floor {results['floor_us_per_rollout']:.1f} us)"
    return [
        Figure(added, results["us_per_rollout"], live.MAX_MICROSECONDS, "us CPU"),
        Figure("draw the live view, share of a processor", results["drawing_share"], live.MAX_DRAWING_SHARE, "share"),
    ]


def grading_figures(short: bool) -> list[Figure]:
    results = grading.measure(30 if short else 100)
    return [
        Figure("read and compare a choice", results["choice_ms"], results["choice_limit_ms"], "ms CPU"),
        Figure("mcqa verify", results["mcqa_verify_ms"], results["choice_limit_ms"], "ms CPU"),
        Figure("compare an ordinary mathematical answer", results["math_ms"], results["math_limit_ms"], "ms CPU"),
    ]


def sandbox_figures(short: bool) -> list[Figure]:
    at_once = 64 if short else sandbox.CROWD
    results = sandbox.measure(10 if short else 40, at_once)
    if not results:
        return []
    if results["crowd"]["wrong"]:
        raise SystemExit(
            f"{results['crowd']['wrong']:.0f} of {at_once} sandboxed programs were stopped although they are fast"
        )
    floor = results["floor"]["cpu_ms"]
    return [
        Figure(
            f"sandboxed program, cold (floor {floor:.0f} ms)", results["cold"]["cpu_ms"], sandbox.MAX_COLD_MS, "ms CPU"
        ),
        Figure(
            f"sandboxed program, warm (floor {floor:.0f} ms)", results["warm"]["cpu_ms"], sandbox.MAX_WARM_MS, "ms CPU"
        ),
    ]


def session_figures(short: bool) -> list[Figure]:
    at_once, count = (250, 2_000) if short else (1_000, 20_000)
    stream = sessions.measure("stream", 1000 if short else 4000)
    cancelled = sessions.measure("cancel", at_once)
    trainer = sessions.measure("run_examples", count)
    errors = stream["errors"] + cancelled["without_prefix"] + trainer["errors"]
    if errors:
        raise SystemExit(f"{errors} rollouts of a session failed or lost their prefix")
    beside = sessions.measure("slow_task", 16 if short else 64)["times_alone"]
    rate = f"stream a rollout ({stream['per_second']:.0f} a second)"
    return [
        Figure(rate, stream["cpu_ms"], sessions.MAX_CPU_MS, "ms CPU"),
        Figure("groups beside a slow task", beside, sessions.MAX_TIMES_ALONE, "x alone"),
        Figure(f"cancel, {at_once:,} in flight", cancelled["seconds"], sessions.MAX_CANCEL_SECONDS, "s"),
        Figure(f"run_examples, {count:,} in flight: memory", trainer["kb_per_rollout"], sessions.MAX_KB, "KB"),
    ]


def stream_figures(short: bool) -> list[Figure]:
    results = streams.measure(30 if short else streams.STREAMS)
    return [
        Figure(f"first byte: {name} (median {row['median_ms']:.1f} ms)", row["best_ms"], streams.MAX_MS, "ms")
        for name, row in results.items()
    ]


def view_figures(short: bool) -> list[Figure]:
    results = view.measure(20_000 if short else view.MANY)
    many = f"{results['rollouts']:,} rollouts"
    return [
        Figure(f"view: open {many}, indexed", results["open_s"], 1.0),
        Figure(f"view: slowest filter of {many}", results["slowest_s"], 0.3),
        Figure("view: memory", results["rss_mb"], 500.0, "MB"),
    ]


def command_figures(short: bool) -> list[Figure]:  # noqa: ARG001
    return [Figure(name, row["best_seconds"], row["limit_seconds"]) for name, row in commands.measure().items()]


GROUPS: dict[str, Callable[[bool], list[Figure]]] = {
    "imports": import_figures,
    "validation": validation_figures,
    "configuration": config_figures,
    "startup": startup_figures,
    "rollouts": rollout_figures,
    "inflight": inflight_figures,
    "sessions": session_figures,
    "streams": stream_figures,
    "grading": grading_figures,
    "sandbox": sandbox_figures,
    "collate": collate_figures,
    "export": export_figures,
    "samples": sample_figures,
    "collector": collector_figures,
    "aggregate": aggregate_figures,
    "live": live_figures,
    "view": view_figures,
    "commands": command_figures,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="run the short form of CI, with fewer rollouts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE as JSON as well")
    parser.add_argument("groups", nargs="*", choices=[*GROUPS, []], help="groups to measure (default: all)")
    args = parser.parse_args()
    machine = pace()
    figures = [replace(figure, pace=machine) for name in args.groups or GROUPS for figure in GROUPS[name](args.short)]
    print(f"this machine takes {machine:.2f} x the seconds of the reference machine")
    print(f"{'what':<44} {'measured':>10} {'promised':>10} {'ratio':>6}")
    for figure in figures:
        print(
            f"{figure.name:<44} {figure.measured:>10.4f} {figure.promised:>10.4f} {figure.ratio:>6.2f}  {figure.unit}"
        )
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps([asdict(figure) | {"ratio": figure.ratio} for figure in figures], indent=2))
    missed = [figure.name for figure in figures if figure.ratio > MARGIN]
    if missed:
        print(f"missed by more than {MARGIN:g} x: {', '.join(missed)}", file=sys.stderr)
    return int(bool(missed))


if __name__ == "__main__":
    raise SystemExit(main())
