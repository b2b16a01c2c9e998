"""List the environments there are, or look at one.

Benchmarks are in this list too, and so are configurations of resources servers that can be run as they are.
"""

import argparse
from collections.abc import Callable, Sequence

from nemo_gym.catalog.components import BENCHMARK, ENVIRONMENT, EXPERIMENTAL, NO_MANIFEST, Component
from nemo_gym.cli import output
from nemo_gym.cli.listing import add_listing_arguments, found_components, inspect, show

WHAT = "environments"

FILTERS: dict[str, Callable[[Component], str | None]] = {
    "domain": lambda component: component.domain,
    "kind": lambda component: component.kind,
    "status": lambda component: component.status,
    "licensing": lambda component: component.licence,
    "modality": lambda component: component.manifest.get("modality"),
    "lifecycle": lambda component: component.manifest.get("lifecycle"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="only this one, in detail")
    only = parser.add_argument_group("only those with this")
    only.add_argument("--domain", metavar="DOMAIN")
    only.add_argument("--kind", choices=(ENVIRONMENT, BENCHMARK))
    only.add_argument("--modality", metavar="MODALITY")
    only.add_argument("--licensing", metavar="LICENCE")
    only.add_argument("--status", choices=(EXPERIMENTAL, NO_MANIFEST))
    only.add_argument("--lifecycle", choices=("active", "deprecated"))
    add_listing_arguments(parser)


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:  # noqa: ARG001 - listings take no overrides
    components = found_components(WHAT, args.search_dir)
    if args.name:
        return inspect(WHAT, args.name, components, as_json=args.json)
    for key, value_of in FILTERS.items():
        wanted = getattr(args, key)
        if wanted is None:
            continue
        unknown = [component.name for component in components if not value_of(component)]
        if unknown:
            output.talk(f"Note: {len(unknown)} say nothing about {key} and are left out, such as {unknown[0]}")
        components = [c for c in components if (value_of(c) or "").lower() == wanted.lower()]
    return show(WHAT, components, as_json=args.json)
