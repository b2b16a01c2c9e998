"""List COMPONENTS, or show one in detail.

The list of environments includes benchmarks, and resources servers with a configuration that can be run unchanged.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from nemo_gym import component_search_roots
from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output
from nemo_gym.errors import GymError

if TYPE_CHECKING:
    from nemo_gym.catalog.components import Component

COLUMNS = {
    "benchmarks": ("name", "domain", "agent", "repeats", "description"),
    "environments": ("name", "kind", "status", "domain", "description"),
    "agents": ("name", "pattern", "variants", "description"),
    "models": ("name", "variants", "description"),
    "resources-servers": ("name", "domain", "verified", "description"),
}
"""Kind of component, as in the command -> columns of its table."""
MIN_LAST_COLUMN = 20
DROPPED_COLUMNS = ("status", "repeats", "verified", "variants", "kind", "agent", "pattern", "domain")
"""Columns to leave out of a narrow table, least important first."""
FILTERS: dict[str, Callable[[Component], str | None]] = {
    "domain": lambda component: component.domain,
    "kind": lambda component: component.kind,
    "status": lambda component: component.status,
    "licensing": lambda component: component.licence,
    "modality": lambda component: component.manifest.get("modality"),
    "lifecycle": lambda component: component.manifest.get("lifecycle"),
}


class NoSuchComponent(GymError):
    """No component has this name; the fix names the most similar one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="component to show in detail")
    if parser.prog.endswith(" environments"):
        filters = options.FlagGroup(parser, "filters")
        filters.value("--domain", "DOMAIN", "only environments of this domain, such as math")
        filters.add_argument("--kind", choices=("environment", "benchmark"), help="only environments, or benchmarks")
        filters.value("--modality", "MODALITY", "only environments with this modality in the manifest, such as text")
        filters.value("--licensing", "LICENCE", "only environments with this licence")
        filters.add_argument(
            "--status",
            choices=("experimental", "no-manifest"),
            help="only environments with a manifest (experimental), or without one",
        )
        filters.add_argument(
            "--lifecycle", choices=("active", "deprecated"), help="only active environments, or deprecated ones"
        )
    options.add_json_argument(parser)
    options.add_search_argument(parser)


def run(args: argparse.Namespace) -> int:
    kind = args.command
    components = find_components(kind, args)
    if args.name:
        return _show_component(kind, args.name, components, as_json=args.json)
    for key, read_value in FILTERS.items():
        value = getattr(args, key, None)
        if value is None:
            continue
        without_value = [component.name for component in components if not read_value(component)]
        if without_value:
            count = len(without_value)
            output.notify(f"Note: {count} are left out because they have no {key}, such as {without_value[0]}")
        components = [c for c in components if (read_value(c) or "").lower() == value.lower()]
    print_components(kind, components, as_json=args.json)
    return 0


def find_components(kind: str, args: argparse.Namespace) -> list[Component]:
    """Return every component of a kind in the search roots, those of --search-dir first."""
    from nemo_gym.catalog.components import EVERY_KIND

    options.add_search_dirs(args)
    components = EVERY_KIND[kind](component_search_roots())
    for component in components:
        for hidden in component.shadowed:
            output.notify(f"Note: {component.name} is {component.path}, which hides {hidden}")
    return components


def print_components(kind: str, components: Sequence[Component], *, as_json: bool) -> None:
    """Print components as a table or as JSON."""
    if as_json:
        output.write_json([_component_as_dict(kind, component) for component in components])
    elif not components:
        output.notify(f"No {kind} found.")
    else:
        columns = COLUMNS[kind]
        rows = [[_cell(component, column) for column in columns] for component in components]
        output.write_table(_fit_terminal([[column.capitalize() for column in columns], *rows]))


def _show_component(kind: str, name: str, components: Sequence[Component], *, as_json: bool) -> int:
    """Print the properties of one component and a command that runs it; return the exit status."""
    component = next((component for component in components if component.name == name), None)
    if component is None:
        names = [component.name for component in components]
        close = get_close_matches(name, names, n=1)
        fix = f"gym list {kind} {close[0]}" if close else f"gym list {kind} shows all {len(names)}"
        raise NoSuchComponent(f"unknown {kind.removesuffix('s')} '{name}'", fix=fix)
    details = {
        "config": str(component.path),
        "agent": component.agent,
        "pattern": _pattern(component) if kind == "agents" else "",
        "resources_server": component.resources_server,
        "datasets": list(component.datasets),
        "num_repeats": component.repeats,
        "variants": list(component.variants),
        "licence": component.licence,
        "verified": component.verified,
        "manifest": dict(component.manifest),
    }
    details = {key: value for key, value in details.items() if value not in ("", None, [], {})}
    facts = {
        "name": component.name,
        "type": component.kind,
        "domain": component.domain,
        "description": component.description,
    }
    example = _usage_example(component)
    if as_json:
        output.write_json({**facts, "details": details, "usage_example": example})
        return 0
    rows = [
        (key.replace("_", " "), _text(value)) for key, value in (facts | details).items() if value not in ("", None)
    ]
    output.write_table(rows)
    output.write(f"\nrun it with:\n  {example}")
    return 0


def _usage_example(component: Component) -> str:
    """Return a command that runs a component without an API key, with the embedded model."""
    from nemo_gym.catalog.components import AGENT, BENCHMARK, ENVIRONMENT, MODEL
    from nemo_gym.keys import RESOURCES

    name = component.name
    if component.kind == BENCHMARK:
        return f"gym eval prepare --benchmark {name} && gym eval run --benchmark {name} --model-type embedded_model"
    if component.kind == MODEL:
        return f"gym eval run --environment arithmetic --model-type {name}"
    if component.kind == AGENT:
        variant = component.variants[0] if component.variants else name
        return f"gym env validate --config responses_api_agents/{name}/configs/{variant}.yaml"
    if component.kind == ENVIRONMENT and not name.startswith(f"{RESOURCES}/"):
        return f"gym eval run --environment {name} --model-type embedded_model"
    server = name.removeprefix(f"{RESOURCES}/")
    return f"gym eval run --resources-server {server} --model-type embedded_model"


def _component_as_dict(kind: str, component: Component) -> dict[str, Any]:
    """Return the properties of a component that `--json` prints for its kind."""
    shared = {"name": component.name, "description": component.description}
    if kind == "agents":
        return {
            **shared,
            "pattern": _pattern(component),
            "self_contained": component.self_contained,
            "variants": list(component.variants),
        }
    if kind == "models":
        return {**shared, "model": component.name, "model_group": component.path.name, "variants": component.variants}
    if kind == "resources-servers":
        return {**shared, "domain": component.domain, "verified": component.verified, "license": component.licence}
    manifest = component.manifest
    return {
        **shared,
        "kind": component.kind,
        "status": component.status,
        "domain": component.domain,
        "version": manifest.get("version"),
        "integration_profile": manifest.get("integration_profile"),
        "modality": manifest.get("modality"),
        "licensing": component.licence or None,
        "lifecycle": manifest.get("lifecycle"),
        "agent": component.agent,
        "num_repeats": component.repeats,
        "verified": component.verified,
    }


def _pattern(component: Component) -> str:
    return "self-contained (B)" if component.self_contained else "composable (A)"


def _cell(component: Component, column: str) -> str:
    return _text(_pattern(component) if column == "pattern" else getattr(component, column))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "" if value is None else " ".join(str(value).split())


def _fit_terminal(rows: list[list[str]]) -> list[list[str]]:
    """Drop the least important columns, then shorten the last and the first one, until rows fit the terminal.

    Rows are unchanged if stdout is not a terminal.
    """
    if not sys.stdout.isatty():
        return rows
    width = shutil.get_terminal_size().columns
    for name in DROPPED_COLUMNS:
        if _leading_width(rows) + MIN_LAST_COLUMN <= width:
            break
        column = next((index for index, title in enumerate(rows[0]) if title.lower() == name), None)
        rows = rows if column is None else [[*row[:column], *row[column + 1 :]] for row in rows]
    last_width = max(width - _leading_width(rows), min(MIN_LAST_COLUMN, width // 3))
    first_width = max(width - last_width - 2, width // 3) if len(rows[0]) == 2 else width
    return [[output.clip(row[0], first_width), *row[1:-1], output.clip(row[-1], last_width)] for row in rows]


def _leading_width(rows: list[list[str]]) -> int:
    """Return the width of all columns but the last."""
    return sum(max(len(row[column]) for row in rows) + 2 for column in range(len(rows[0]) - 1))
