"""Start the servers, collect rollouts, score them and stop.

Rows come from --input, or from the agents' own datasets. Every result is on disk the moment it is known; --resume
continues an interrupted run. With --no-serve the servers are running already: the run registered on this machine, or
the head named by --run or head_server.host and head_server.port.

Ctrl-C once lets rollouts in flight finish for a while, saves, and says how to continue; twice stops at once.
Exit status: 0 all rollouts scored, 1 some failed, 2 wrong usage, 3 servers or disk did not work, 130 interrupted.
"""

import argparse
from collections.abc import Sequence
from contextlib import nullcontext

from nemo_gym.cli import rounds
from nemo_gym.cli.eval_flags import add_rollout_arguments, add_server_arguments
from nemo_gym.cli.inputs import add_config_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)
    add_rollout_arguments(parser)
    add_server_arguments(parser)


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    from nemo_gym.cli.evaluate import evaluate  # a second of imports that --help does without
    from nemo_gym.launch.ahead import forked_ahead

    with nullcontext() if args.no_serve else forked_ahead(rounds.USUAL):
        return evaluate(args, rest)
