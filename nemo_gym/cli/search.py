"""Find components by a name, domain, agent, dataset or description similar to a query."""

import argparse
from difflib import get_close_matches

from nemo_gym.cli.list.components import COLUMNS, find_components, print_components
from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output

KINDS = tuple(COLUMNS)
DEFAULT_KIND = "environments"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("type", nargs="?", metavar="TYPE", help=f"one of {', '.join(KINDS)} (default: {DEFAULT_KIND})")
    parser.add_argument("query", metavar="QUERY", help="text to search for; similar spellings match too")
    options.add_json_argument(parser)
    options.add_search_argument(parser)


def run(args: argparse.Namespace) -> int:
    kind = args.type or DEFAULT_KIND
    if kind not in KINDS:
        close = get_close_matches(kind, KINDS, n=1)
        hint = f" Did you mean `{close[0]}`?" if close else ""
        output.report_error(f"`{kind}` is not one of {', '.join(KINDS)}.{hint}")
        return 2
    from nemo_gym.catalog.components import matches_query

    components = [
        c
        for c in find_components(kind, args)
        if matches_query(args.query, [c.name, c.agent, c.resources_server, c.domain, c.description, *c.datasets])
    ]
    if not components and not args.json:
        output.notify(f"No {kind} found for '{args.query}'.")
        return 0
    print_components(kind, components, as_json=args.json)
    return 0
