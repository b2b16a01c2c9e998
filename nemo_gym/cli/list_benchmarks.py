"""List the benchmarks there are, or look at one."""

import argparse
from collections.abc import Sequence

from nemo_gym.cli.listing import add_listing_arguments, found_components, inspect, show

WHAT = "benchmarks"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="only this one, in detail")
    add_listing_arguments(parser)


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:  # noqa: ARG001 - listings take no overrides
    components = found_components(WHAT, args.search_dir)
    if args.name:
        return inspect(WHAT, args.name, components, as_json=args.json)
    return show(WHAT, components, as_json=args.json)
