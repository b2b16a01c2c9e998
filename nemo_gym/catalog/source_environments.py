"""Environments of other packages as components, for `gym list environments --source` and `gym search`."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path

from nemo_gym.catalog.components import ENVIRONMENT, Component
from nemo_gym.config.environment_sources import (
    SOURCE_FILE,
    EnvironmentSource,
    UnknownEnvironment,
    find_environment_sources,
)

ALL = "all"
ANY_NAME = "NAME"
"""Stands for the id in a source of packages, of which there is no list."""


def source_components(source: str, roots: Sequence[Path]) -> list[Component]:
    """Return the environments of a source, or with `all` those of every source that can be run.

    Raises:
        UnknownEnvironment: no source has this name.
    """
    sources = find_environment_sources(roots)
    if source == ALL:
        every = (component for one in sources.values() for component in _components(one))
        return [component for component in every if not component.refused]
    if source not in sources:
        close = get_close_matches(source, sources, n=1)
        fix = close[0] if close else f"one of {', '.join([ALL, *sources])}"
        raise UnknownEnvironment(f"unknown source '{source}'", where="--source", fix=fix)
    return list(_components(sources[source]))


def searched_names(component: Component) -> list[str]:
    """Return what a search compares: the id, and the name of a source without a list of ids."""
    source, _, environment_id = component.name.partition(":")
    return [source] if environment_id == ANY_NAME else [environment_id]


def source_summary(roots: Sequence[Path]) -> str:
    """Return how many environments every source has, in a line; empty without a source."""
    return ", ".join(
        f"{name} ({'packages' if source.runs_any_name else f'{len(source.runnable_ids):,}'})"
        for name, source in find_environment_sources(roots).items()
    )


def _components(source: EnvironmentSource) -> Iterator[Component]:
    ids = {ANY_NAME: {}} if source.runs_any_name else source.ids
    for name, facts in ids.items():
        reason = str(facts.get("refused", ""))
        players = int(facts.get("players", 1))
        description = f"{players} players" if players > 1 else source.file.description
        yield Component(
            name=f"{source.name}:{name}",
            kind=ENVIRONMENT,
            path=source.folder / SOURCE_FILE,
            domain=source.file.domain,
            description=f"cannot be run: {reason}" if reason else description,
            licence=source.file.licence,
            resources_server=source.folder.name,
            refused=reason,
        )
