"""Check the datasets of agents row by row, measure them, and collate them for training.

Every row that cannot be used is named, and then nothing is written; exit status 1. Otherwise: <type>.jsonl and
<type>_metrics.json in the output folder, <name>_prepare.jsonl and <name>_metrics.json beside each dataset.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_gym.cli import output
from nemo_gym.cli.dataset_bar import Bar, tidy_when_terminated
from nemo_gym.cli.inputs import add_config_arguments, config_overrides
from nemo_gym.cli.options import options, resolved_without_model
from nemo_gym.data.collate import Collated, MetricsConflict, RowsRefused
from nemo_gym.data.numbers import AVERAGE, COUNT, DEVIATION, HIGHEST, LOWEST
from nemo_gym.data.plot import check_plot, plot
from nemo_gym.data.problems import counted
from nemo_gym.train_data_utils import TrainDataProcessor, TrainDataProcessorConfig

FIGURES = {COUNT: "values", AVERAGE: "average", LOWEST: "min", HIGHEST: "max", DEVIATION: "std"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)
    rows = parser.add_argument_group("datasets")
    rows.add_argument(
        "--mode",
        choices=("train_preparation", "example_validation"),
        help="train, validation and benchmark data, or the example rows only",
    )
    rows.add_argument("--output-dir", metavar="DIR", help="where the collated rows and their metrics go")
    rows.add_argument("--download", action="store_true", help="download datasets whose files are missing")
    rows.add_argument("--data-source", choices=("huggingface", "gitlab"), help="if a dataset is in both registries")
    rows.add_argument("--max-errors", type=int, metavar="N", help="stop after N rows that cannot be used")
    rows.add_argument("--overwrite-metrics", action="store_true", help="replace metrics files that disagree")
    rows.add_argument("--plot", metavar="FILE", help="draw input lengths and turns, as .png or .svg")
    rows.add_argument("--processes", type=int, metavar="N", help="work with N processes (default: as fits)")
    rows.add_argument("--json", action="store_true", help="print the result as one JSON object, and nothing else")


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
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
