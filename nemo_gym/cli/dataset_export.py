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
    from nemo_gym.cli.exporting import export_rollouts  # `--help` does without

    return export_rollouts(args, rest)
