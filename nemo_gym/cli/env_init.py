"""Make a new resources server, environment or benchmark that works and whose tests pass, ready to be changed.

It is written below the working directory: resources_servers/NAME, or environments/NAME (benchmarks/NAME) with a
manifest and the servers its profile needs. Nothing that exists is changed.

Profiles: custom-gym-verifier (the default) grades what our simple agent plays; custom-gym-agent-loop adds an agent of
your own; external-agent-loop one that calls a program outside; external-rollout-driver a function that collects.
"""

import argparse
from collections.abc import Sequence

PROFILES = ("custom-gym-verifier", "custom-gym-agent-loop", "external-agent-loop", "external-rollout-driver")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--resources-server", metavar="NAME", help="a resources server")
    what.add_argument("--environment", metavar="NAME", help="an environment with its resources server")
    what.add_argument("--benchmark", metavar="NAME", help="a benchmark with its resources server")
    more = parser.add_argument_group("environments and benchmarks")
    more.add_argument("--profile", choices=PROFILES, help="which part is your own (default: custom-gym-verifier)")
    more.add_argument("--reuse-verifier", metavar="NAME", help="grade with this resources server and write none")
    more.add_argument(
        "--reward-range", nargs=2, type=float, metavar=("LOW", "HIGH"), help="of the verifier that is reused"
    )
    direction = more.add_mutually_exclusive_group()
    direction.add_argument("--higher-is-better", action="store_true", default=None, help="of its rewards")
    direction.add_argument("--lower-is-better", action="store_false", dest="higher_is_better", help="of its rewards")


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    from nemo_gym.cli.scaffolding import init  # `--help` does without

    return init(args, rest)
