"""Check the datasets of agents row by row, measure them, and collate them for training.

If rows are not valid, all of them are reported, no file is written, and the exit status is 1. Otherwise <type>.jsonl
and <type>_metrics.json are written to the output folder, and <name>_prepare.jsonl and <name>_metrics.json next to each
dataset.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output

if TYPE_CHECKING:
    from nemo_gym.data.collate import CollationResult, MetricsConflict, RowsRefused

METRICS_STATES = {"new": "written", "same": "unchanged", "completed": "completed", "conflict": "overwritten"}
"""State of a metrics file, as in the result -> word to print."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_config_arguments(parser)
    datasets = options.FlagGroup(parser, "datasets")
    mode_help = "use train, validation and benchmark data, or the example rows only"
    datasets.choice("--mode", ("train_preparation", "example_validation"), mode_help)
    datasets.text("--output-dir", "DIR", "folder for the collated rows and their metrics", "output_dirpath")
    datasets.switch("--download", "download datasets whose files are missing", "should_download")
    datasets.choice("--data-source", ("huggingface", "gitlab"), "registry to use for datasets that are in both")
    datasets.integer("--max-errors", "stop after N rows that are not valid")
    overwrite_help = "replace metrics files that differ from the new metrics"
    datasets.switch("--overwrite-metrics", overwrite_help, "overwrite_metrics_conflicts")
    datasets.text("--plot", "FILE", "plot input lengths and turns to a .png or .svg file")
    datasets.integer("--processes", "number of processes (default: depends on data and cores)", "num_processes")
    datasets.json()


def run(args: argparse.Namespace) -> int:
    from nemo_gym import component_search_roots
    from nemo_gym.adapters.rows import write_missing_rows
    from nemo_gym.cli.shared.concurrency import sigterm_as_interrupt
    from nemo_gym.data.collate import MetricsConflict, RowsRefused
    from nemo_gym.data.plot import check_plot, plot
    from nemo_gym.train_data_utils import TrainDataProcessor, TrainDataProcessorConfig

    config = options.resolve_config(args, needs_model=False).config
    settings = options.load_options(TrainDataProcessorConfig, config, args)
    write_missing_rows(config, component_search_roots(), output.notify)
    plot_path = Path(args.plot) if args.plot else None
    if plot_path:
        check_plot(plot_path)
    try:
        with sigterm_as_interrupt(), output.TransferBar(quiet=args.json) as bar:
            collated = TrainDataProcessor(bar).prepare(settings, config)
    except (RowsRefused, MetricsConflict) as error:
        if not args.json:
            raise
        output.write_json(_error_as_dict(error))
        return error.exit_status
    if plot_path:
        plot({part.type: part.metrics for part in collated.types}, plot_path)
    facts = _result_as_dict(collated, plot_path)
    output.write_result(facts, lambda: _print_result(collated, plot_path), as_json=args.json)
    return 0


def _error_as_dict(error: RowsRefused | MetricsConflict) -> dict[str, Any]:
    """Return the rows that are not valid, or the metrics files that differ from the new metrics, for `--json`."""
    from nemo_gym.data.collate import MetricsConflict

    if isinstance(error, MetricsConflict):
        conflicts = [
            {"metrics_path": str(s.metrics_path), "conflict_path": str(s.conflict_path), "differences": [*differences]}
            for s, differences in error.conflicts  # s: the source of a dataset
        ]
        return {"valid": False, "conflicts": conflicts}
    files = [
        {"path": str(source.path), "agent": source.agent, "rows": problems.rows, "problems": problems.report()}
        for source, problems in error.files
    ]
    row_count = sum(problems.rows for _, problems in error.files)
    return {"valid": False, "rows_refused": row_count, "stopped_early": error.stopped, "files": files}


def _result_as_dict(collated: CollationResult, plot_path: Path | None) -> dict[str, Any]:
    """Return the written files and their metrics, for `--json`."""
    return {
        "valid": True,
        "types": {
            part.type: {"path": str(part.path), "metrics_path": str(part.metrics_path), "metrics": part.report}
            for part in collated.types
        },
        "datasets": [
            {
                "agent": dataset.source.agent,
                "path": str(dataset.source.path),
                "examples": dataset.examples,
                "metrics_path": str(dataset.source.metrics_path),
                "metrics_file": dataset.state,
                "metrics": dataset.metrics,
            }
            for dataset in collated.datasets
        ],
        "plot": str(plot_path) if plot_path else None,
        "notes": collated.notes,
    }


def _print_result(collated: CollationResult, plot_path: Path | None) -> None:
    """Print the metrics of each dataset and of each type with several datasets, then the files and notes."""
    from nemo_gym.catalog.row_problems import row_count_text

    for dataset in collated.datasets:
        output.write(f"{dataset.source.config.name} of {dataset.source.agent}: {dataset.source.path}")
        output.write(f"  metrics {METRICS_STATES[dataset.state]}: {dataset.source.metrics_path.name}")
        config_keys = dataset.source.config.model_dump().keys()
        _print_metrics({name: value for name, value in dataset.metrics.items() if name not in config_keys})
    for part in collated.types:
        if sum(dataset.source.config.type == part.type for dataset in collated.datasets) > 1:
            output.write(f"all {part.type} data")
            _print_metrics(part.report)
    for part in collated.types:
        output.write(f"{part.path}  {row_count_text(part.metrics.examples)}")
    if plot_path:
        output.write(f"{plot_path}")
    for note in collated.notes:
        output.notify(f"Note: {note}")


def _print_metrics(metrics: Mapping[str, Any]) -> None:
    """Print metrics as a table: statistics of numbers, counts of texts, and single values."""
    from nemo_gym.data.running_statistics import AVERAGE, COUNT, DEVIATION, HIGHEST, LOWEST

    figures = {COUNT: "values", AVERAGE: "average", LOWEST: "min", HIGHEST: "max", DEVIATION: "std"}
    rows = [("", *figures.values())]
    for name, value in metrics.items():
        if not isinstance(value, dict):
            rows.append((f"  {name}", f"{value}", "", "", "", ""))
        elif value.get(COUNT):
            rows.append((f"  {name}", *(f"{value[figure]:g}" for figure in figures)))
        if isinstance(value, dict) and "unique_count" in value:
            rows.append((f"  {name}", f"{value['total_count']}", f"{value['unique_count']} different", "", "", ""))
    output.write_table(rows)
    output.write("")
