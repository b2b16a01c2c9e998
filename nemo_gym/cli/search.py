"""Find components by a name, domain, agent, dataset or description similar to a query."""

import argparse

from nemo_gym.cli.list.components import COLUMNS, find_components, print_components
from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output

KINDS = tuple(COLUMNS)
DEFAULT_KIND = "environments"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("type", nargs="?", metavar="TYPE", help=f"one of {', '.join(KINDS)} (default: {DEFAULT_KIND})")
    parser.add_argument("query", metavar="QUERY", help="text to search for; similar spellings match too")
    flags = options.FlagGroup(parser)
    flags.json()
    flags.search_dir()


def run(args: argparse.Namespace) -> int:
    from nemo_gym.catalog.components import matches_query

    kind = args.type or DEFAULT_KIND
    if kind not in KINDS:
        output.report_error(f"`{kind}` is not one of {', '.join(KINDS)}.{output.did_you_mean(kind, KINDS)}")
        return 2
    components = [
        c
        for c in find_components(kind, args)
        if matches_query(args.query, [c.name, c.agent, c.resources_server, c.domain, c.description, *c.datasets])
    ]
    if kind == "environments":
        from nemo_gym import component_search_roots
        from nemo_gym.catalog.source_environments import ALL, searched_names, source_components

        of_sources = source_components(ALL, component_search_roots())
        components += [c for c in of_sources if matches_query(args.query, searched_names(c))]
    print_components(kind, components, as_json=args.json)
    return 0
