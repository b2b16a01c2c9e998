"""Turn rollouts into training data: SFT examples, DPO pairs or RL prompts, as JSONL or Parquet.

  sft  messages of the best rollout of each task (or of all above --min-reward); columns messages, tools, loss_mask
  dpo  the best and the worst rollout of each task; columns prompt, chosen, rejected, tools
  rl   one prompt per task with its fields and what the rollouts earned; columns prompt, tools, metadata

The columns are those TRL documents, with where each row comes from beside them; datasets.load_dataset reads both
formats. Failed rollouts are never exported. Exit status: 0 written, 1 nothing qualifies or a file is damaged, 2 wrong
usage.

  gym dataset export --format sft -i results/rollouts.jsonl -o data/sft.jsonl
  gym dataset export --format dpo -i results/rollouts.jsonl -o data/dpo.parquet --min-gap 0.5
"""

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
ROLES = ("assistant", "tool", "user", "system", "developer")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=("sft", "dpo", "rl"), help="what kind of training data")
    parser.add_argument("-i", "--input", action="append", metavar="FILE", help="rollouts; repeatable")
    parser.add_argument("-o", "--output", metavar="FILE", help="where to: a name ending in .jsonl or .parquet")
    chosen = parser.add_argument_group("which rollouts")
    chosen.add_argument(
        "--select", choices=("best", "above"), help="sft: the best of each task (default), or all above"
    )
    chosen.add_argument("--min-reward", type=float, metavar="R", help="sft: at least this reward (default: above 0)")
    chosen.add_argument(
        "--min-gap", type=float, metavar="G", help="dpo: rewards of a pair differ by this; rl: of a task"
    )
    chosen.add_argument("--pairs-per-task", type=int, metavar="N", help="dpo: at most so many pairs (default: 1)")
    form = parser.add_argument_group("how")
    form.add_argument(
        "--reasoning", choices=("inline", "separate", "drop"), help="thoughts: <think> in the text (default), or …"
    )
    form.add_argument(
        "--developer", choices=("system", "keep"), help="the role developer: as system (default), or kept"
    )
    form.add_argument(
        "--loss-on", action="append", choices=ROLES, help="roles to learn; repeatable (default: assistant)"
    )
    parser.add_argument("--json", action="store_true", help="print what was written as one JSON object")


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
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
    what = {"sft": "examples", "dpo": "pairs", "rl": "prompts"}[done.format]
    output.data(f"✓ {done.rows:,} {what} → {done.path}")
    output.data(f"  from {done.rollouts:,} scored rollouts of {done.tasks:,} tasks")
    if done.left_out:
        output.data(f"  left out: {reasons(done.left_out)}")
    if done.skipped:
        output.talk(f"Warning: chosen but not expressible as training data: {reasons(done.skipped)}")
