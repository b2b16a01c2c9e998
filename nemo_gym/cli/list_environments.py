"""List the environments there are, or look at one.

Benchmarks are in this list too, and so are configurations of resources servers that can be run as they are.
"""

import argparse
from collections.abc import Sequence

from nemo_gym.cli.listing_flags import add_listing_arguments, add_name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_name(parser)
    only = parser.add_argument_group("filters: only those …")
    only.add_argument("--domain", metavar="DOMAIN", help="of this domain, such as math")
    only.add_argument("--kind", choices=("environment", "benchmark"), help="of this kind")
    only.add_argument("--modality", metavar="MODALITY", help="whose manifest names this modality, such as text")
    only.add_argument("--licensing", metavar="LICENCE", help="under this licence")
    only.add_argument("--status", choices=("experimental", "no-manifest"), help="with a manifest, or without")
    only.add_argument("--lifecycle", choices=("active", "deprecated"), help="that are kept up, or no longer")
    add_listing_arguments(parser)


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:  # noqa: ARG001 - listings take no overrides
    from nemo_gym.cli.listing import list_or_inspect  # `--help` does without

    return list_or_inspect("environments", args)
