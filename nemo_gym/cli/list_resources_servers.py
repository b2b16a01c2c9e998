"""List the resources servers there are, or look at one."""

import argparse
from collections.abc import Sequence

from nemo_gym.cli.listing_flags import add_listing_arguments, add_name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_name(parser)
    add_listing_arguments(parser)


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:  # noqa: ARG001 - listings take no overrides
    from nemo_gym.cli.listing import list_or_inspect  # `--help` does without

    return list_or_inspect("resources-servers", args)
