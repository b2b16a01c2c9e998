"""Compare two stored runs task by task: the second against the first.

RUN is `latest`, the name of its folder, the name given to it, or a path. Tasks are matched by their number, so both
runs must use the same file of rows.

  gym runs compare baseline latest
"""

from __future__ import annotations

import argparse
from typing import Any

from nemo_gym.cli.runs.list import add_results_flag
from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="RUN", help="the two runs to compare")
    flags = options.FlagGroup(parser)
    flags.integer("--limit", "tasks to list, the largest difference first (default: 10)", default=10)
    add_results_flag(flags)
    flags.json()


def run(args: argparse.Namespace) -> int:
    from pathlib import Path

    from nemo_gym.rollouts.run_folders import find_stored_run
    from nemo_gym.view.comparison import compare_runs
    from nemo_gym.view.database import RunDatabase

    if len(args.names) != 2:
        fix = "gym runs compare baseline latest"
        raise options.UsageError(f"two runs are needed, not {len(args.names)}", where=args.prog, fix=fix)
    first, second = (RunDatabase(find_stored_run(Path(args.results), name)) for name in args.names)
    for database in (first, second):
        while database.grow():
            pass  # reads the files until all rollouts are indexed
    comparison = compare_runs(first, second, args.limit)
    output.write_result(comparison, lambda: _print_comparison(args.names, comparison), as_json=args.json)
    return 0


def _print_comparison(names: list[str], comparison: dict[str, Any]) -> None:
    from nemo_gym.metrics.intervals import format_figure, format_interval

    if not comparison["tasks"]:
        output.write("no task is scored in both runs")
        return
    interval = comparison["interval_95"]
    interval_text = f" {format_interval(*interval)} (95 %, paired by task)" if interval else ""
    output.write(f"{names[1]} against {names[0]}: {format_figure(comparison['mean_difference'])}{interval_text}")
    same = comparison["tasks"] - comparison["better"] - comparison["worse"]
    counts = f"{comparison['better']} better, {comparison['worse']} worse, {same} equal"
    output.write(f"{comparison['tasks']} tasks in both: {counts}")
    if comparison["rows"]:
        rows = [("task", *names, "difference")]
        rows += [
            (str(row["task"]), *map(format_figure, (row["first"], row["second"], row["second"] - row["first"])))
            for row in comparison["rows"]
        ]
        output.write("")
        output.write_table(rows)
