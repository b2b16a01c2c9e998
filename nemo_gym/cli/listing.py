"""What `gym list` and `gym search` share: rows, tables, and one component looked at closely."""

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from nemo_gym import component_search_roots
from nemo_gym.catalog.components import AGENT, BENCHMARK, ENVIRONMENT, EVERY_KIND, MODEL, RESOURCES_FOLDER, Component
from nemo_gym.catalog.fuzzy import matches
from nemo_gym.cli import output
from nemo_gym.errors import GymError
from nemo_gym.keys import EXTRA_ROOTS_ENV_VAR

COLUMNS = {
    "benchmarks": ("name", "domain", "agent", "repeats", "description"),
    "environments": ("name", "kind", "status", "domain", "description"),
    "agents": ("name", "pattern", "variants", "description"),
    "models": ("name", "variants", "description"),
    "resources-servers": ("name", "domain", "verified", "description"),
}
NARROWEST_LAST_COLUMN = 20
LEAST_FIRST = ("status", "repeats", "verified", "variants", "kind", "agent", "pattern", "domain")
"""Which columns are left out first where there is no room for all."""
FILTERS: dict[str, Callable[[Component], str | None]] = {
    "domain": lambda component: component.domain,
    "kind": lambda component: component.kind,
    "status": lambda component: component.status,
    "licensing": lambda component: component.licence,
    "modality": lambda component: component.manifest.get("modality"),
    "lifecycle": lambda component: component.manifest.get("lifecycle"),
}


class NoSuchComponent(GymError):
    """Nothing has that name; the nearest that exists is told."""


def list_or_inspect(what: str, args: argparse.Namespace) -> int:
    """All components of a kind that pass the filters, or the one that is named."""
    components = found_components(what, args.search_dir)
    if args.name:
        return inspect(what, args.name, components, as_json=args.json)
    for key, value_of in FILTERS.items():
        wanted = getattr(args, key, None)
        if wanted is None:
            continue
        unknown = [component.name for component in components if not value_of(component)]
        if unknown:
            output.talk(f"Note: {len(unknown)} say nothing about {key} and are left out, such as {unknown[0]}")
        components = [c for c in components if (value_of(c) or "").lower() == wanted.lower()]
    return show(what, components, as_json=args.json)


def found_components(what: str, search_dirs: Sequence[str]) -> list[Component]:
    """Every component of a kind in the search roots, `search_dirs` first."""
    if search_dirs:
        folders = [str(Path(folder).resolve()) for folder in search_dirs]
        known = os.environ.get(EXTRA_ROOTS_ENV_VAR)
        os.environ[EXTRA_ROOTS_ENV_VAR] = os.pathsep.join([*folders, *filter(None, [known])])
    components = EVERY_KIND[what](component_search_roots())
    for component in components:
        for hidden in component.shadowed:
            output.talk(f"Note: {component.name} is {component.path}, which hides {hidden}")
    return components


def show(what: str, components: Sequence[Component], *, as_json: bool) -> int:
    """All of them, a row each."""
    if as_json:
        output.json([as_row(what, component) for component in components])
    elif not components:
        output.talk(f"No {what} found.")
    else:
        columns = COLUMNS[what]
        rows = [[_cell(component, column) for column in columns] for component in components]
        output.table(_fitted([[column.capitalize() for column in columns], *rows]))
    return 0


def inspect(what: str, name: str, components: Sequence[Component], *, as_json: bool) -> int:
    """One of them, with what it consists of and a command that runs it.

    Raises:
        NoSuchComponent: there is none of that name.
    """
    chosen = next((component for component in components if component.name == name), None)
    if chosen is None:
        names = [component.name for component in components]
        close = get_close_matches(name, names, n=1)
        fix = f"gym list {what} {close[0]}" if close else f"gym list {what} shows all {len(names)}"
        raise NoSuchComponent(f"no {what.removesuffix('s')} is called '{name}'", fix=fix)
    details = {
        key: value
        for key, value in {
            "config": str(chosen.path),
            "agent": chosen.agent,
            "pattern": _pattern(chosen) if chosen.kind == AGENT else "",
            "resources_server": chosen.resources_server,
            "datasets": list(chosen.datasets),
            "num_repeats": chosen.repeats,
            "variants": list(chosen.variants),
            "licence": chosen.licence,
            "verified": chosen.verified,
            "manifest": dict(chosen.manifest),
        }.items()
        if value not in ("", None, [], {})
    }
    facts = {"name": chosen.name, "type": chosen.kind, "domain": chosen.domain, "description": chosen.description}
    if as_json:
        output.json({**facts, "details": details, "usage_example": usage_example(chosen)})
        return 0
    shown = {**facts, **details}
    output.table([(key.replace("_", " "), _text(value)) for key, value in shown.items() if value not in ("", None)])
    output.data(f"\nrun it with:\n  {usage_example(chosen)}")
    return 0


def usage_example(component: Component) -> str:
    """A command that can be typed as it stands: the embedded model needs no key."""
    name = component.name
    if component.kind == BENCHMARK:
        return f"gym eval prepare --benchmark {name} && gym eval run --benchmark {name} --model-type embedded_model"
    if component.kind == MODEL:
        return f"gym eval run --environment arithmetic --model-type {name}"
    if component.kind == AGENT:
        variant = component.variants[0] if component.variants else name
        return f"gym env validate --config responses_api_agents/{name}/configs/{variant}.yaml"
    if component.kind == ENVIRONMENT and not name.startswith(f"{RESOURCES_FOLDER}/"):
        return f"gym eval run --environment {name} --model-type embedded_model"
    server = name.removeprefix(f"{RESOURCES_FOLDER}/")
    return f"gym eval run --resources-server {server} --model-type embedded_model"


def matching(query: str, components: Sequence[Component]) -> list[Component]:
    """Those whose name, agent, resources server, dataset, domain or description is near the query."""
    return [c for c in components if matches(query, searched_fields(c))]


def searched_fields(component: Component) -> list[str]:
    return [
        component.name,
        component.agent,
        component.resources_server,
        component.domain,
        component.description,
        *component.datasets,
    ]


def as_row(what: str, component: Component) -> dict[str, Any]:
    """A component as JSON."""
    shared = {"name": component.name, "description": component.description}
    if what == "agents":
        return {
            **shared,
            "pattern": _pattern(component),
            "self_contained": component.self_contained,
            "variants": list(component.variants),
        }
    if what == "models":
        return {**shared, "model": component.name, "model_group": component.path.name, "variants": component.variants}
    if what == "resources-servers":
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


def _fitted(rows: list[list[str]]) -> list[list[str]]:
    """Rows that fit the terminal: columns are left out that matter least, then the last one and the first are cut.

    Nothing is cut when the output is piped.
    """
    if not sys.stdout.isatty():
        return rows
    room = shutil.get_terminal_size().columns
    for name in LEAST_FIRST:
        if _width(rows) + NARROWEST_LAST_COLUMN <= room:
            break
        where = next((index for index, title in enumerate(rows[0]) if title.lower() == name), None)
        rows = rows if where is None else [[*row[:where], *row[where + 1 :]] for row in rows]
    left = max(room - _width(rows), min(NARROWEST_LAST_COLUMN, room // 3))
    first = max(room - left - 2, room // 3) if len(rows[0]) == 2 else room
    return [[_clipped(row[0], first), *row[1:-1], _clipped(row[-1], left)] for row in rows]


def _width(rows: list[list[str]]) -> int:
    """What all columns but the last take up."""
    return sum(max(len(row[column]) for row in rows) + 2 for column in range(len(rows[0]) - 1))


def _clipped(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(width - 1, 0)]}…"
