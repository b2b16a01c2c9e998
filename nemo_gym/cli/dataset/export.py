"""Turn rollouts into training data: SFT examples, DPO pairs, RL prompts or token samples, as JSONL or Parquet.

  sft  messages of the best rollout of each task (or of all with at least --min-reward): messages, tools, loss_mask
  dpo  the best and the worst rollout of each task; columns prompt, chosen, rejected, tools
  rl   one prompt per task with its fields and the rewards of its rollouts; columns prompt, tools, metadata
  samples  the exact tokens of every trainable rollout; columns token_ids, loss_mask, logprobs, reward, group

The columns of sft, dpo and rl are those that TRL documents, plus the origin of each row. datasets.load_dataset reads
both formats. Failed rollouts are never exported. Exit status: 0 written, 1 no rollout qualifies or a file is damaged,
2 wrong usage.

  gym dataset export --format sft -i results/rollouts.jsonl -o data/sft.jsonl
  gym dataset export --format dpo -i results/rollouts.jsonl -o data/dpo.parquet --min-gap 0.5
"""

import argparse
from pathlib import Path

from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output

ROLES = ("assistant", "tool", "user", "system", "developer")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags = options.FlagGroup(parser)
    flags.choice("--format", ("sft", "dpo", "rl", "samples"), "kind of training data")
    parser.add_argument(
        "-i", "--input", dest="rollouts_jsonl_fpath", action="append", metavar="FILE", help="rollouts; repeatable"
    )
    flags.text("-o --output", "FILE", "file to write, ending in .jsonl or .parquet", "output_fpath")
    selection = options.FlagGroup(parser, "selection of rollouts")
    select_help = "sft: export the best rollout of each task (default), or all with at least --min-reward (above)"
    selection.choice("--select", ("best", "above"), select_help)
    selection.decimal("--min-reward", "R", "sft: smallest reward to export (default: above 0)")
    selection.decimal("--min-gap", "G", "smallest difference of rewards, of a pair (dpo) or within a task (rl)")
    selection.integer("--pairs-per-task", "dpo: maximum number of pairs per task (default: 1)")
    form = options.FlagGroup(parser, "form")
    reasoning_help = "reasoning as <think> in the text (default), as a separate field, or left out"
    form.choice("--reasoning", ("inline", "separate", "drop"), reasoning_help)
    form.choice("--developer", ("system", "keep"), "export the role developer as system (default), or keep it")
    form.add_argument(
        "--loss-on", action="append", choices=ROLES, help="roles to train on; repeatable (default: assistant)"
    )
    flags.json()


def run(args: argparse.Namespace) -> int:
    from nemo_gym.data.export import ExportDatasetConfig, export, format_counts
    from nemo_gym.rollouts.run_files import materialized_path_for
    from nemo_gym.training.export import export_samples

    config = options.resolve_config(args, needs_model=False).config
    settings = options.load_options(ExportDatasetConfig, config, args)
    files = [Path(path).expanduser() for path in settings.rollouts_jsonl_fpath]
    run_ids = {path: run_id for path in files if (run_id := _read_run_id(path))}
    inputs = {path: inputs_path for path in files if (inputs_path := materialized_path_for(path)).is_file()}
    with output.transfer_meter("reading") as meter:
        if settings.format == "samples":
            exported = export_samples(settings, meter=meter)
        else:
            exported = export(settings, runs=run_ids, inputs=inputs, meter=meter)
    facts = {
        "format": exported.format,
        "output": str(exported.path),
        "rows": exported.rows,
        "bytes": exported.path.stat().st_size,
        "scored_rollouts": exported.rollouts,
        "tasks": exported.tasks,
        "left_out": dict(exported.left_out),
        "skipped": dict(exported.skipped),
    }

    def print_text() -> None:
        noun = {"sft": "example", "dpo": "pair", "rl": "prompt", "samples": "sample"}[exported.format]
        output.write(f"✓ {exported.rows:,} {noun}{'s' if exported.rows != 1 else ''} → {exported.path}")
        output.write(f"  from {exported.rollouts:,} scored rollouts of {exported.tasks:,} tasks")
        if exported.left_out:
            output.write(f"  left out: {format_counts(exported.left_out)}")
        if exported.skipped:
            output.warn(f"selected but not usable as training data: {format_counts(exported.skipped)}")

    output.write_result(facts, print_text, as_json=args.json)
    return 0


def _read_run_id(rollouts: Path) -> str | None:
    """Return the id of the run that wrote a file of rollouts; None if its run file is missing or has no id."""
    import orjson

    from nemo_gym.rollouts.run_files import run_path_for

    try:
        facts = orjson.loads(run_path_for(rollouts).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    return str(facts["run_id"]) if isinstance(facts, dict) and facts.get("run_id") else None
