"""Find components whose name, domain, agent, dataset or description is near what you type."""

import argparse
from collections.abc import Sequence

from nemo_gym.catalog.components import EVERY_KIND
from nemo_gym.cli import output
from nemo_gym.cli.listing import add_listing_arguments, found_components, matching, show

DEFAULT = "environments"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("type", nargs="?", metavar="TYPE", help=f"one of {', '.join(EVERY_KIND)} (default: {DEFAULT})")
    parser.add_argument("query", metavar="QUERY", help="what to look for; need not be spelt exactly")
    add_listing_arguments(parser)


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:  # noqa: ARG001 - listings take no overrides
    what = args.type or DEFAULT
    if what not in EVERY_KIND:
        output.error(f"'{what}' is not one of {', '.join(EVERY_KIND)}")
        return 2
    found = matching(args.query, found_components(what, args.search_dir))
    if not found and not args.json:
        output.talk(f"No {what} found for '{args.query}'.")
        return 0
    return show(what, found, as_json=args.json)
