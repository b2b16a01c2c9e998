"""Evaluate on a Slurm cluster: one job per benchmark, with the services it needs. Experimental.

The file of --config says which services run beside the evaluation, on which nodes, and which benchmarks are evaluated;
remaining words override it (driver.container=…). Scripts, logs and results go below job.output_path. Exit status: 0
submitted, 1 the file does not fit, 2 wrong usage, 3 sbatch is missing or refused.

  gym eval submit --config submit.yaml --dry-run
"""

import argparse
from collections.abc import Sequence


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-c", "--config", required=True, metavar="FILE", help="what to submit, and where")
    parser.add_argument("--dry-run", action="store_true", help="print the scripts, write and submit nothing")
    parser.add_argument("--json", action="store_true", help="print the jobs as one JSON object, and nothing else")


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    from nemo_gym.cli.submitting import submit  # `--help` does without

    return submit(args, rest)
