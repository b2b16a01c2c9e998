"""What `gym dataset export` does."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.cli import output
from nemo_gym.cli.dataset_publish import configuration, files_explained, progress_bar
from nemo_gym.cli.options import options
from nemo_gym.data.export import ExportDatasetConfig, Exported, export, reasons
from nemo_gym.rollouts.paths import materialized_path_for, run_path_for

COMMAND = "gym dataset export"


def export_rollouts(args: argparse.Namespace, rest: Sequence[str]) -> int:
    given = {
        "rollouts_jsonl_fpath": ("--input", args.input),
        "output_fpath": ("--output", args.output),
        "format": ("--format", args.format),
        "select": ("--select", args.select),
        "min_reward": ("--min-reward", args.min_reward),
        "min_gap": ("--min-gap", args.min_gap),
        "pairs_per_task": ("--pairs-per-task", args.pairs_per_task),
        "reasoning": ("--reasoning", args.reasoning),
        "developer": ("--developer", args.developer),
        "loss_on": ("--loss-on", args.loss_on),
    }
    settings = options(ExportDatasetConfig, configuration(rest), given, command=COMMAND)
    files = [Path(path).expanduser() for path in settings.rollouts_jsonl_fpath]
    runs = {path: run for path in files if (run := run_of(path))}
    inputs = {path: sent for path in files if (sent := materialized_path_for(path)).is_file()}
    with files_explained(), progress_bar("reading") as meter:
        done = export(settings, runs=runs, inputs=inputs, meter=meter)
    if args.json:
        output.json(facts(done))
    else:
        tell(done)
    return 0


def run_of(rollouts: Path) -> str | None:
    """The identity of the run behind a file of rollouts, where it has one."""
    try:
        said = orjson.loads(run_path_for(rollouts).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    return str(said["run_id"]) if isinstance(said, dict) and said.get("run_id") else None


def facts(done: Exported) -> dict[str, Any]:
    """The result for `--json`."""
    return {
        "format": done.format,
        "output": str(done.path),
        "rows": done.rows,
        "bytes": done.path.stat().st_size,
        "scored_rollouts": done.rollouts,
        "tasks": done.tasks,
        "left_out": dict(done.left_out),
        "skipped": dict(done.skipped),
    }


def tell(done: Exported) -> None:
    """The result for people."""
    what = {"sft": "example", "dpo": "pair", "rl": "prompt"}[done.format]
    output.data(f"✓ {done.rows:,} {what}{'s' if done.rows != 1 else ''} → {done.path}")
    output.data(f"  from {done.rollouts:,} scored rollouts of {done.tasks:,} tasks")
    if done.left_out:
        output.data(f"  left out: {reasons(done.left_out)}")
    if done.skipped:
        output.talk(f"Warning: chosen but not expressible as training data: {reasons(done.skipped)}")
