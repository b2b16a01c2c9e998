"""List COMPONENTS, or show one in detail.

The list of environments includes benchmarks, and resources servers with a configuration that can be run unchanged.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
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
_ENVIRONMENT_FACTS = (
    "name", "description", "kind", "status", "domain", "version", "integration_profile", "modality", "licensing",
    "lifecycle", "agent", "num_repeats", "verified",
)  # fmt: skip
JSON_FACTS = {
    "benchmarks": _ENVIRONMENT_FACTS,
    "environments": _ENVIRONMENT_FACTS,
    "agents": ("name", "description", "pattern", "self_contained", "variants"),
    "models": ("name", "description", "model", "model_group", "variants"),
    "resources-servers": ("name", "description", "domain", "verified", "license"),
}
"""Kind of component -> facts that `--json` prints for each component in the list."""
DETAILS = (
    "config", "agent", "pattern", "resources_server", "datasets", "num_repeats", "variants", "licence", "verified",
    "manifest",
)  # fmt: skip
"""Facts to show about one component, after its name, type, domain and description."""
FILTERS = ("domain", "kind", "status", "licensing", "modality", "lifecycle")
"""Facts by which flags of the same name filter the list."""
MIN_LAST_COLUMN = 20
DROPPED_COLUMNS = ("status", "repeats", "verified", "variants", "kind", "agent", "pattern", "domain")
"""Columns to leave out of a narrow table, least important first."""


class NoSuchComponent(GymError):
    """No component has this name; the fix names the most similar one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags = options.FlagGroup(parser)
    parser.add_argument("name", nargs="?", metavar="NAME", help="component to show in detail")
    if parser.prog.endswith(" environments"):
        source_help = "environments of another package, such as textarena; all: of every package"
        flags.text("--source", "SOURCE", source_help)
        filters = options.FlagGroup(parser, "filters")
        filters.text("--domain", "DOMAIN", "only environments of this domain, such as math")
        filters.choice("--kind", ("environment", "benchmark"), "only environments, or benchmarks")
        filters.text("--modality", "MODALITY", "only environments with this modality in the manifest, such as text")
        filters.text("--licensing", "LICENCE", "only environments with this licence")
        status_help = "experimental: only environments with a manifest; no-manifest: only those without"
        filters.choice("--status", ("experimental", "no-manifest"), status_help)
        filters.choice("--lifecycle", ("active", "deprecated"), "only active environments, or deprecated ones")
    flags.json()
    flags.search_dir()


def run(args: argparse.Namespace) -> int:
    kind = args.command
    components = find_components(kind, args)
    if args.name:
        _show_component(kind, args.name, components, as_json=args.json)
        return 0
    for fact in FILTERS:
        wanted_value = getattr(args, fact, None)
        if wanted_value is None:
            continue
        pairs = [(component, component_facts(component)[fact] or "") for component in components]
        without_value = [component.name for component, value in pairs if not value]
        if without_value:
            count = len(without_value)
            output.notify(f"Note: {count} are left out because they have no {fact}, such as {without_value[0]}")
        components = [component for component, value in pairs if value.lower() == wanted_value.lower()]
    print_components(kind, components, as_json=args.json)
    if kind == "environments" and not args.source and not args.json:
        from nemo_gym.catalog.source_environments import source_summary

        summary = source_summary(component_search_roots())
        output.notify(f"of other packages, as SOURCE:ID: {summary}; gym list environments --source SOURCE")
    return 0


def find_components(kind: str, args: argparse.Namespace) -> list[Component]:
    """Return the components of a kind; print a note for each that hides one of the same name in a later search root."""
    from nemo_gym.catalog.components import EVERY_KIND

    options.add_search_dirs(args)
    roots, source = component_search_roots(), getattr(args, "source", None)
    name = getattr(args, "name", None) or ""
    if source or (kind == "environments" and ":" in name):
        from nemo_gym.catalog.source_environments import source_components

        return source_components(source or name.partition(":")[0], roots)
    components = EVERY_KIND[kind](roots)
    for component in components:
        for hidden in component.shadowed:
            output.notify(f"Note: {component.name} is {component.path}, which hides {hidden}")
    return components


def component_facts(component: Component) -> dict[str, Any]:
    """Return all facts about a component by the names that tables and `--json` use."""
    pattern = "self-contained (B)" if component.self_contained else "composable (A)"
    return {
        **{key: component.manifest.get(key) for key in ("version", "integration_profile", "modality", "lifecycle")},
        **{field.name: getattr(component, field.name) for field in fields(component)},
        "type": component.kind,
        "status": component.status,
        "config": str(component.path),
        "pattern": pattern if component.kind == "agent" else "",
        "num_repeats": component.repeats,
        "license": component.licence,
        "licensing": component.licence or None,
        "model": component.name,
        "model_group": component.path.name,
        "manifest": dict(component.manifest),
    }


def print_components(kind: str, components: Sequence[Component], *, as_json: bool) -> None:
    """Print components as a table or as JSON."""
    facts = [component_facts(component) for component in components]
    if as_json:
        output.write_json([{key: component[key] for key in JSON_FACTS[kind]} for component in facts])
    elif not components:
        output.notify(f"No {kind} found.")
    else:
        rows = [[_cell_text(component[column]) for column in COLUMNS[kind]] for component in facts]
        output.write_table(_fit_terminal([[column.capitalize() for column in COLUMNS[kind]], *rows]))


def _show_component(kind: str, name: str, components: Sequence[Component], *, as_json: bool) -> None:
    """Print the facts about one component and a command that runs it."""
    component = next((component for component in components if component.name == name), None)
    if component is None:
        names = [component.name for component in components]
        close = get_close_matches(name, names, n=1)
        fix = f"gym list {kind} {close[0]}" if close else f"gym list {kind} shows all {len(names)}"
        raise NoSuchComponent(f"unknown {kind.removesuffix('s')} '{name}'", fix=fix)
    all_facts, example = component_facts(component), _usage_example(component)
    summary = {key: all_facts[key] for key in ("name", "type", "domain", "description")}
    details = {key: all_facts[key] for key in DETAILS if all_facts[key] not in ("", None, (), {})}
    if as_json:
        output.write_json({**summary, "details": details, "usage_example": example})
        return
    facts = {**summary, **details}.items()
    output.write_table([(key.replace("_", " "), _cell_text(value)) for key, value in _lines(facts) if value != ""])
    output.write(f"\nrun it with:\n  {example}")


def _usage_example(component: Component) -> str:
    """Return a command that tries out a component; only a model that needs an API key makes the command need one."""
    from nemo_gym.catalog.components import AGENT, BENCHMARK, ENVIRONMENT, MODEL
    from nemo_gym.keys import RESOURCES

    name = component.name
    if component.kind == BENCHMARK:
        return f"gym eval prepare --benchmark {name} && gym eval run --benchmark {name} --model-type embedded_model"
    if component.kind == MODEL:
        return f"gym eval run --environment arithmetic --model-type {name}"
    if component.kind == AGENT and component.path.is_file():
        return f"gym eval run --resources-server coding_task --agent-type {name} --model-type openai_model"
    if component.kind == AGENT:
        variant = component.variants[0] if component.variants else name
        return f"gym env validate --config responses_api_agents/{name}/configs/{variant}.yaml"
    if component.kind == ENVIRONMENT and not name.startswith(f"{RESOURCES}/"):
        quoted = f"'{name}'" if ":" in name else name
        return f"gym eval run --environment {quoted} --model-type embedded_model"
    server = name.removeprefix(f"{RESOURCES}/")
    return f"gym eval run --resources-server {server} --model-type embedded_model"


def _lines(facts: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the facts, those of the manifest with a line each; what the lines before say is left out."""
    shown: list[Any] = []
    for key, value in facts:
        if key != "manifest":
            shown.append(value)
            yield key, value
            continue
        yield from ((f"manifest {name}", part) for name, part in value.items() if part not in shown)


def _cell_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(_cell_text, value))
    if isinstance(value, dict):
        return "; ".join(f"{key} {_cell_text(part)}" for key, part in value.items())
    return "" if value is None else " ".join(str(value).split())


def _fit_terminal(rows: list[list[str]]) -> list[list[str]]:
    """Fit rows to the terminal: drop the least important columns, then shorten the last one (and the first of two).

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
