"""Find components whose name, domain, agent, dataset or description is near what you type."""

import argparse
from collections.abc import Sequence
from difflib import get_close_matches

from nemo_gym.cli import output
from nemo_gym.cli.listing_flags import KINDS, add_listing_arguments

DEFAULT = "environments"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("type", nargs="?", metavar="TYPE", help=f"one of {', '.join(KINDS)} (default: {DEFAULT})")
    parser.add_argument("query", metavar="QUERY", help="what to look for; need not be spelt exactly")
    add_listing_arguments(parser)


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:  # noqa: ARG001 - listings take no overrides
    from nemo_gym.cli.listing import found_components, matching, show  # `--help` does without

    what = args.type or DEFAULT
    if what not in KINDS:
        close = get_close_matches(what, KINDS, n=1)
        hint = f" Did you mean `{close[0]}`?" if close else ""
        output.error(f"`{what}` is not one of {', '.join(KINDS)}.{hint}")
        return 2
    found = matching(args.query, found_components(what, args.search_dir))
    if not found and not args.json:
        output.talk(f"No {what} found for '{args.query}'.")
        return 0
    return show(what, found, as_json=args.json)
