"""Compare stored runs task by task: each run against the first.

RUN is `latest`, the name of its folder, the name given to it, or a path. Tasks are matched by their number, so all runs
must use the same file of rows; other data or another verifier is reported. With more than two runs, the p values are
corrected for the number of comparisons.

  gym runs compare baseline latest
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from nemo_gym.cli.runs.list import add_results_flag
from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output

SHOWN_DIFFERENCES = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="RUN", help="the runs to compare, the baseline first")
    flags = options.FlagGroup(parser)
    flags.integer("--limit", "tasks to list, the largest difference first (default: 10)", default=10)
    add_results_flag(flags)
    flags.json()


def run(args: argparse.Namespace) -> int:
    from pathlib import Path

    from nemo_gym.rollouts.run_folders import find_stored_run
    from nemo_gym.view.comparison import compare_runs, compare_several
    from nemo_gym.view.database import RunDatabase

    if len(args.names) < 2:
        fix = "gym runs compare baseline latest"
        raise options.UsageError(f"at least two runs are needed, not {len(args.names)}", where=args.prog, fix=fix)
    databases = [RunDatabase(find_stored_run(Path(args.results), name)) for name in args.names]
    for database in databases:
        while database.grow():
            pass  # reads the files until all rollouts are indexed
    if len(databases) > 2:
        several = compare_several(databases, range(len(databases)))
        output.write_result(several, lambda: _print_several(args.names, several), as_json=args.json)
        return 0
    comparison = compare_runs(databases[0], databases[1], args.limit)
    output.write_result(comparison, lambda: _print_comparison(args.names, comparison), as_json=args.json)
    return 0


def _print_comparison(names: list[str], comparison: dict[str, Any]) -> None:
    from nemo_gym.metrics.intervals import format_figure, format_interval

    if not comparison["tasks"]:
        output.write("no task is scored in both runs")
        return
    output.write(f"A = {names[0]}, B = {names[1]}: {comparison['sentence']}")
    if comparison["details"]:
        output.write(comparison["details"])
    interval = comparison["interval_95"]
    interval_text = f" {format_interval(*interval)} (95 %, paired by task)" if interval else ""
    output.write(f"{names[1]} against {names[0]}: {format_figure(comparison['mean_difference'])}{interval_text}")
    same = comparison["tasks"] - comparison["better"] - comparison["worse"]
    counts = f"{comparison['better']} better, {comparison['worse']} worse, {same} equal"
    output.write(f"{comparison['tasks']} task{'' if comparison['tasks'] == 1 else 's'} in both: {counts}")
    _print_differences(comparison["differences"])
    if comparison["rows"]:
        rows = [("task", *names, "difference")]
        rows += [
            (str(row["task"]), *map(format_figure, (row["first"], row["second"], row["second"] - row["first"])))
            for row in comparison["rows"]
        ]
        output.write("")
        output.write_table(rows)


def _print_differences(differences: Sequence[dict[str, Any]]) -> None:
    """Print what differs in how the runs were made."""
    for difference in differences[:SHOWN_DIFFERENCES]:
        output.write(f"{difference['kind']}: {difference['text']}")
    if len(differences) > SHOWN_DIFFERENCES:
        output.write(f"… {len(differences) - SHOWN_DIFFERENCES} more differences (--json lists all)")


def _print_several(names: list[str], comparison: dict[str, Any]) -> None:
    from nemo_gym.analysis.compare import format_p
    from nemo_gym.metrics.intervals import format_figure, format_interval

    rows: list[tuple[str, ...]] = [("run", "mean", "against the first", "95 %", "corrected p", "flips", "verdict")]
    for name, row in zip(names, comparison["runs"], strict=True):
        mean = "–" if row["mean"] is None else format_figure(row["mean"])
        if row.get("mean_difference") is None:
            rows.append((name, mean, *[""] * 5))
            continue
        interval, p = row["interval_95"], row["p_corrected"]
        flips = f"{row['flips']['up']} up, {row['flips']['down']} down"
        verdict = row["verdict"] if row["comparable"] else "not comparable"
        difference = format_figure(row["mean_difference"])
        bounds = format_interval(*interval) if interval else ""
        rows.append((name, mean, difference, bounds, "" if p is None else format_p(p), flips, verdict))
    output.write_table(rows)
