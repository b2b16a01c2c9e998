"""Everything there is to run, by name: what `gym list` and `gym search` show.

Read from the files alone and tolerantly: a configuration that cannot be read is left out with a warning, values that
are still unset do not matter.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from nemo_gym.config.directives import expand_directives
from nemo_gym.config.load import load_files
from nemo_gym.config.merge import Tree, merge_into
from nemo_gym.errors import ConfigError

logger = logging.getLogger("nemo_gym.catalog")

ENVIRONMENT, BENCHMARK = "environment", "benchmark"
AGENT, MODEL, RESOURCES_SERVER = "agent", "model", "resources-server"

RESOURCES_FOLDER, AGENTS_FOLDER, MODELS_FOLDER = "resources_servers", "responses_api_agents", "responses_api_models"
OWN_FRAMEWORK_KEYS = ("agent_framework", "anthropic_api_key")
EXPERIMENTAL, NO_MANIFEST = "experimental", "no-manifest"


@dataclass(frozen=True, kw_only=True)
class Component:
    """One thing that can be named on the command line."""

    name: str
    kind: str
    path: Path
    """Its configuration file, or its folder where it has several."""
    domain: str = ""
    description: str = ""
    agent: str = ""
    """The agent instance that its rows are sent to."""
    repeats: int | None = None
    licence: str = ""
    verified: bool | None = None
    resources_server: str = ""
    datasets: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    """The names of its configuration files."""
    self_contained: bool = False
    """An agent that brings its own environment instead of working with a resources server of its user's choice."""
    manifest: Mapping[str, Any] = field(default_factory=dict)
    shadowed: tuple[Path, ...] = ()
    """Others of the same name in later roots, which are not used."""

    @property
    def status(self) -> str:
        return EXPERIMENTAL if self.manifest else NO_MANIFEST


def catalog(roots: Sequence[Path]) -> list[Component]:
    """Environments and benchmarks, also those that are only a resources server's configuration with an agent."""
    found = [*_of_folder("environments", ENVIRONMENT, roots), *_of_folder("benchmarks", BENCHMARK, roots)]
    return _unique([*found, *_runnable(roots)])


def resources_servers(roots: Sequence[Path]) -> list[Component]:
    found = []
    for path, name in _configs(RESOURCES_FOLDER, roots):
        facts = _facts(path, roots)
        if facts is not None and facts.get("has_resources"):
            found.append(Component(name=name, kind=RESOURCES_SERVER, path=path, **_shown(facts, "domain", "verified")))
    return _unique(found)


def agents(roots: Sequence[Path]) -> list[Component]:
    return _unique([_folder_component(folder, AGENT, roots) for folder in _folders(AGENTS_FOLDER, roots)])


def models(roots: Sequence[Path]) -> list[Component]:
    return _unique([_folder_component(folder, MODEL, roots) for folder in _folders(MODELS_FOLDER, roots)])


EVERY_KIND = {
    "benchmarks": lambda roots: [found for found in catalog(roots) if found.kind == BENCHMARK],
    "environments": catalog,
    "agents": agents,
    "models": models,
    "resources-servers": resources_servers,
}
"""What can be listed -> how it is found."""


def _of_folder(folder: str, kind: str, roots: Sequence[Path]) -> Iterator[Component]:
    for root in roots:
        for path in sorted((root / folder).rglob("config.yaml")):
            relative = path.parent.relative_to(root / folder)
            if any(part.startswith(".") for part in relative.parts):
                continue
            facts = _facts(path, roots)
            if facts is None:
                continue
            manifest = _manifest(path.parent / "manifest.yaml")
            known = {name: str(manifest[name]) for name in ("domain", "description") if manifest.get(name)}
            if manifest.get("licensing"):
                known["licence"] = str(manifest["licensing"])
            shown = {**_shown(facts, "domain", "verified", "agent", "repeats", "resources_server", "datasets"), **known}
            yield Component(name=relative.as_posix(), kind=kind, path=path, manifest=manifest, **shown)


def _runnable(roots: Sequence[Path]) -> Iterator[Component]:
    """Configurations of resources servers that bring an agent with datasets: they can be run as they are."""
    for path, name in _configs(RESOURCES_FOLDER, roots):
        facts = _facts(path, roots)
        if facts is not None and facts.get("has_resources") and facts.get("datasets"):
            shown = _shown(facts, "domain", "verified", "agent", "repeats", "resources_server", "datasets")
            yield Component(name=f"{RESOURCES_FOLDER}/{name}", kind=ENVIRONMENT, path=path, **shown)


def _configs(folder: str, roots: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """Configuration files of server folders and the names they are asked for."""
    for root in roots:
        for path in sorted((root / folder).glob("*/configs/*.yaml")):
            server = path.parents[1].name
            yield path, server if path.stem == server else f"{server}/{path.stem}"


def _folders(kind: str, roots: Sequence[Path]) -> Iterator[Path]:
    for root in roots:
        for path in sorted((root / kind).glob("*/app.py")):
            yield path.parent


def _folder_component(folder: Path, kind: str, roots: Sequence[Path]) -> Component:
    configs = sorted(folder.glob("configs/**/*.yaml"))
    facts = [found for path in configs if (found := _facts(path, roots)) is not None]
    composable = any(found["uses_resources"] for found in facts) and not any(found["own_framework"] for found in facts)
    return Component(
        name=folder.name,
        kind=kind,
        path=folder,
        description=next((found["description"] for found in facts if found["description"]), _first_sentence(folder)),
        variants=tuple(path.relative_to(folder / "configs").with_suffix("").as_posix() for path in configs),
        self_contained=kind == AGENT and not composable,
    )


def _facts(path: Path, roots: Sequence[Path]) -> dict[str, Any] | None:
    """What a configuration says about itself, with what it includes; None if it cannot be read."""
    try:
        sources = load_files([str(path.absolute())], roots).sources
        tree: Tree = {}
        for source in sources:
            merge_into(tree, source.tree, root=tree)
        tree = expand_directives(tree).tree
    except ConfigError as error:
        logger.warning("left out: %s", error)
        return None
    resources = list(_blocks(tree, RESOURCES_FOLDER))
    agent_blocks = list(_blocks(tree, AGENTS_FOLDER))
    with_data = [(name, block) for name, block in agent_blocks if _datasets(block)]
    datasets = [dataset for _, block in with_data for dataset in _datasets(block)]
    blocks = [block for _, block in [*resources, *agent_blocks]]
    return {
        "has_resources": bool(resources),
        "uses_resources": any(block.get("resources_server") for _, block in agent_blocks),
        "own_framework": any(key in block for _, block in agent_blocks for key in OWN_FRAMEWORK_KEYS),
        "domain": _first(blocks, "domain"),
        "description": _first(blocks, "description") or _first_comment(path),
        "verified": _first(blocks, "verified", None),
        "agent": next((name for name, _ in with_data), ""),
        "resources_server": next((name for name, _ in resources), ""),
        "repeats": next((int(d["num_repeats"]) for d in datasets if isinstance(d.get("num_repeats"), int)), None),
        "licence": next((str(d["license"]) for d in datasets if d.get("license")), ""),
        "datasets": tuple(str(dataset.get("name", "")) for dataset in datasets),
    }


def _shown(facts: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: facts[name] for name in ("description", "licence", *names)}


def _blocks(tree: Tree, kind: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, block in tree.items():
        implementations = block.get(kind) if isinstance(block, Mapping) else None
        for implementation in implementations.values() if isinstance(implementations, Mapping) else ():
            if isinstance(implementation, Mapping):
                yield str(name), implementation


def _datasets(block: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    datasets = block.get("datasets")
    return [dataset for dataset in datasets if isinstance(dataset, Mapping)] if isinstance(datasets, list) else []


def _first(blocks: Sequence[Mapping[str, Any]], key: str, default: Any = "") -> Any:
    return next((block[key] for block in blocks if block.get(key) is not None), default)


def _first_comment(path: Path) -> str:
    """The comment at the top of a configuration: people describe it there before they find the key for it."""
    with path.open(encoding="utf-8", errors="replace") as file:
        line = file.readline().strip()
    return line.lstrip("# ").strip() if line.startswith("#") else ""


def _first_sentence(folder: Path) -> str:
    """The first line of prose in a folder's README."""
    try:
        lines = (folder / "README.md").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return ""
    prose = next((line.strip() for line in lines if line.strip() and line.strip()[0] not in "#`|<![-"), "")
    return prose.split(". ")[0].rstrip(".")


def _manifest(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        manifest = yaml.safe_load(path.read_bytes())
    except (yaml.YAMLError, OSError) as error:
        logger.warning("left out: %s: %s", path, str(error).splitlines()[0])
        return {}
    return manifest if isinstance(manifest, dict) else {}


def _unique(found: Sequence[Component]) -> list[Component]:
    """The first of each name, told which others it hides; sorted as people read."""
    first: dict[tuple[str, str], Component] = {}
    for component in found:
        key = (component.kind, component.name)
        if key not in first:
            first[key] = component
        elif first[key].path != component.path:
            first[key] = replace(first[key], shadowed=(*first[key].shadowed, component.path))
    return sorted(first.values(), key=lambda component: (component.name.lower(), component.kind))
