"""Compute a reward profile: how hard each task is and how much its rollouts differ.

Needs the rollouts of a run and the inputs it wrote beside them; no server. Writes <stem>_reward_profiling.jsonl (one
line per task) and <stem>_agent_metrics.json next to the rollouts. Collect with --num-repeats greater than 1 to see
spread. Exit status: 0 done, 1 the files do not fit together or rollouts are missing, 2 wrong usage.
"""

import argparse
from collections.abc import Sequence


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rollouts", metavar="FILE", help="the rollouts of a run")
    parser.add_argument("--inputs", metavar="FILE", help="its materialized inputs (default: those beside the rollouts)")
    parser.add_argument(
        "--allow-partial", action="store_true", help="profile what there is, even if some inputs have no rollout"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object, and nothing else")
    parser.add_argument("-v", "--verbose", action="store_true", help="say more")


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    from nemo_gym.cli.profiling import profile  # `--help` does without

    return profile(args, rest)
