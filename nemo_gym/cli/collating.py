"""What `gym dataset collate` does."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_gym.cli import output
from nemo_gym.cli.dataset_bar import Bar, tidy_when_terminated
from nemo_gym.cli.inputs import config_overrides
from nemo_gym.cli.options import options, resolved_without_model
from nemo_gym.data.collate import Collated, MetricsConflict, RowsRefused
from nemo_gym.data.numbers import AVERAGE, COUNT, DEVIATION, HIGHEST, LOWEST
from nemo_gym.data.plot import check_plot, plot
from nemo_gym.data.problems import counted
from nemo_gym.train_data_utils import TrainDataProcessor, TrainDataProcessorConfig

FIGURES = {COUNT: "values", AVERAGE: "average", LOWEST: "min", HIGHEST: "max", DEVIATION: "std"}


def collate(args: argparse.Namespace, rest: Sequence[str]) -> int:
    config = resolved_without_model(config_overrides(args, rest)).config
    given = {
        "mode": ("--mode", args.mode),
        "output_dirpath": ("--output-dir", args.output_dir),
        "should_download": ("--download", args.download or None),
        "data_source": ("--data-source", args.data_source),
        "overwrite_metrics_conflicts": ("--overwrite-metrics", args.overwrite_metrics or None),
        "max_errors": ("--max-errors", args.max_errors),
        "num_processes": ("--processes", args.processes),
    }
    wanted = options(TrainDataProcessorConfig, config, given, command="gym dataset collate")
    picture = Path(args.plot) if args.plot else None
    if picture:
        check_plot(picture)
    try:
        with tidy_when_terminated(), Bar(quiet=args.json) as bar:
            done = TrainDataProcessor(bar).prepare(wanted, config)
    except (RowsRefused, MetricsConflict) as error:
        if not args.json:
            raise
        output.json(_refused(error) if isinstance(error, RowsRefused) else _conflicts(error))
        return error.exit_status
    if picture:
        plot({found.type: found.metrics for found in done.types}, picture)
    output.json(_result(done, picture)) if args.json else _show(done, picture)
    return 0


def _refused(refused: RowsRefused) -> dict[str, Any]:
    return {
        "valid": False,
        "rows_refused": sum(problems.rows for _, problems in refused.files),
        "stopped_early": refused.stopped,
        "files": [
            {"path": str(source.path), "agent": source.agent, "rows": problems.rows, "problems": problems.report()}
            for source, problems in refused.files
        ],
    }


def _conflicts(found: MetricsConflict) -> dict[str, Any]:
    return {
        "valid": False,
        "conflicts": [
            {
                "metrics_path": str(source.metrics_path),
                "conflict_path": str(source.conflict_path),
                "differences": list(differences),
            }
            for source, differences in found.conflicts
        ],
    }


def _result(done: Collated, picture: Path | None) -> dict[str, Any]:
    return {
        "valid": True,
        "types": {
            found.type: {"path": str(found.path), "metrics_path": str(found.metrics_path), "metrics": found.report}
            for found in done.types
        },
        "datasets": [
            {
                "agent": found.source.agent,
                "path": str(found.source.path),
                "examples": found.examples,
                "metrics_path": str(found.source.metrics_path),
                "metrics_file": found.state,
                "metrics": found.metrics,
            }
            for found in done.datasets
        ],
        "plot": str(picture) if picture else None,
        "notes": done.notes,
    }


def _show(done: Collated, picture: Path | None) -> None:
    for found in done.datasets:
        told = {"new": "written", "same": "unchanged", "completed": "completed", "conflict": "overwritten"}[found.state]
        output.data(f"{found.source.config.name} of {found.source.agent}: {found.source.path}")
        output.data(f"  metrics {told}: {found.source.metrics_path.name}")
        described = found.source.config.model_dump().keys()
        _show_metrics({name: value for name, value in found.metrics.items() if name not in described})
    for kind in done.types:
        if sum(found.source.config.type == kind.type for found in done.datasets) > 1:
            output.data(f"all {kind.type} data")
            _show_metrics(kind.report)
    for kind in done.types:
        output.data(f"{kind.path}  {counted(kind.metrics.examples)}")
    if picture:
        output.data(f"{picture}")
    for note in done.notes:
        output.talk(f"Note: {note}")


def _show_metrics(metrics: Mapping[str, Any]) -> None:
    rows = [("", *FIGURES.values())]
    for name, value in metrics.items():
        if not isinstance(value, dict):
            rows.append((f"  {name}", f"{value}", "", "", "", ""))
        elif value.get(COUNT):
            rows.append((f"  {name}", *(f"{value[figure]:g}" for figure in FIGURES)))
        if isinstance(value, dict) and "unique_count" in value:
            rows.append((f"  {name}", f"{value['total_count']}", f"{value['unique_count']} different", "", "", ""))
    output.table(rows)
    output.data("")
