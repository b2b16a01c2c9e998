"""Components: load their configurations, and list them for `gym list` and `gym search`.

Only files are read. A configuration that cannot be read is skipped with a warning, and missing values are allowed.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from nemo_gym.config.dataset_agents import dataset_owners, datasets_of, resolve_dataset_agent
from nemo_gym.config.error_locations import ErrorLocations
from nemo_gym.config.inheritance import Expansion
from nemo_gym.config.instances import ServerInstance, instances_of, server_instances
from nemo_gym.config.load import load_files
from nemo_gym.config.problems import raise_all
from nemo_gym.config.search_roots import is_second_name
from nemo_gym.config.trees import Tree, merge_into
from nemo_gym.errors import ConfigError
from nemo_gym.keys import AGENTS, MODELS, RESOURCES

logger = logging.getLogger("nemo_gym.catalog")

ENVIRONMENT, BENCHMARK = "environment", "benchmark"
AGENT, MODEL, RESOURCES_SERVER = "agent", "model", "resources-server"

OWN_FRAMEWORK_KEYS = ("agent_framework", "anthropic_api_key")
"""Keys of agents that run their own agent framework, which contains the environment."""
EXPERIMENTAL, NO_MANIFEST, REFUSED = "experimental", "no-manifest", "refused"

MIN_SIMILARITY = 0.7
_BETWEEN_WORDS = re.compile(r"[\s_\-/]+")


def load_tree(path: Path, roots: Sequence[Path], *, strict: bool) -> Tree:
    """Merge a configuration file with the files it includes and expand its directives; `${…}` are not resolved.

    A directive that cannot be expanded is ignored, or with `strict` an error.

    Raises:
        ConfigError: a file cannot be read, or (strict only) a directive cannot be expanded.
    """
    return load_entry_tree(str(path.absolute()), roots, strict=strict)


def load_entry_tree(entry: str, roots: Sequence[Path], *, strict: bool) -> Tree:
    """Merge, as `load_tree` does, what an entry of `config_paths` names: a file, or an environment of a source."""
    sources = load_files([entry], roots).sources
    tree: Tree = {}
    for source in sources:
        merge_into(tree, source.tree, root=tree)
    expanded = Expansion(tree)
    if strict:
        raise_all(ErrorLocations(sources, []).locate(expanded.problems))
    return expanded.tree


@dataclass(frozen=True, kw_only=True)
class Component:
    """A component that the command line accepts by name."""

    name: str
    kind: str
    path: Path
    """The configuration file, or the folder of a component with several configuration files."""
    domain: str = ""
    description: str = ""
    agent: str = ""
    """The name of the agent instance that gets the rows."""
    repeats: int | None = None
    licence: str = ""
    verified: bool | None = None
    resources_server: str = ""
    datasets: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    """The names of the configuration files."""
    self_contained: bool = False
    """True for an agent that contains its environment and does not work with other resources servers."""
    refused: str = ""
    """The reason why it cannot be run."""
    manifest: Mapping[str, Any] = field(default_factory=dict)
    shadowed: tuple[Path, ...] = ()
    """Paths of unused components of the same name in later roots."""

    @property
    def status(self) -> str:
        return REFUSED if self.refused else EXPERIMENTAL if self.manifest else NO_MANIFEST


def catalog(roots: Sequence[Path]) -> list[Component]:
    """List environments and benchmarks; resources-server configurations with an agent and datasets are environments."""
    environments = _folder_components("environments", ENVIRONMENT, roots)
    benchmarks = _folder_components("benchmarks", BENCHMARK, roots)
    return _unique([*environments, *benchmarks, *_runnable_configs(roots)])


def resources_servers(roots: Sequence[Path]) -> list[Component]:
    """List the configurations of resources servers."""
    listed = ("description", "licence", "domain", "verified")
    return _unique(
        Component(name=name, kind=RESOURCES_SERVER, path=path, **{field: facts.listing[field] for field in listed})
        for path, name, facts in _server_configs(roots)
    )


EVERY_KIND = {
    "benchmarks": lambda roots: [component for component in catalog(roots) if component.kind == BENCHMARK],
    "environments": catalog,
    "agents": lambda roots: _unique(_server_folders(AGENTS, AGENT, roots)),
    "models": lambda roots: _unique(_server_folders(MODELS, MODEL, roots)),
    "resources-servers": resources_servers,
}
"""Argument of `gym list` -> function that lists those components."""


def matches_query(query: str, fields: Iterable[str]) -> bool:
    """Return whether a field contains the query, or the field or one of its words is similar to the query."""
    query = query.lower()
    return any(
        query in text or get_close_matches(query, [text, *_BETWEEN_WORDS.split(text)], n=1, cutoff=MIN_SIMILARITY)
        for text in map(str.lower, fields)
    )


def _folder_components(folder: str, kind: str, roots: Sequence[Path]) -> Iterator[Component]:
    """Yield a component for each folder with a `config.yaml`; the manifest overrides values of the configuration."""
    for root in roots:
        for path in sorted((root / folder).rglob("config.yaml")):
            relative = path.parent.relative_to(root / folder)
            if any(part.startswith(".") for part in relative.parts):
                continue
            facts = _read_facts(path, roots)
            if facts is None:
                continue
            manifest = _read_manifest(path.parent / "manifest.yaml")
            keys = {"domain": "domain", "description": "description", "licence": "licensing"}
            overrides = {field: str(manifest[key]) for field, key in keys.items() if manifest.get(key)}
            fields = {**facts.listing, **overrides}
            yield Component(name=relative.as_posix(), kind=kind, path=path, manifest=manifest, **fields)


def _runnable_configs(roots: Sequence[Path]) -> Iterator[Component]:
    """Yield the resources-server configurations that can be run, because an agent runs their datasets."""
    for path, name, facts in _server_configs(roots):
        if facts.listing["agent"]:
            yield Component(name=f"{RESOURCES}/{name}", kind=ENVIRONMENT, path=path, **facts.listing)


def _server_configs(roots: Sequence[Path]) -> "Iterator[tuple[Path, str, _ConfigFacts]]":
    """Yield path, name and facts of every configuration that has a resources server."""
    for root in roots:
        for path in sorted((root / RESOURCES).glob("*/configs/*.yaml")):
            server = path.parents[1].name
            facts = None if is_second_name(path.parents[1]) else _read_facts(path, roots)
            if facts is not None and facts.listing["resources_server"]:
                yield path, server if path.stem == server else f"{server}/{path.stem}", facts


def _server_folders(server_type: str, kind: str, roots: Sequence[Path]) -> Iterator[Component]:
    """Yield a component for each server folder of a type, described from all its configuration files."""
    for folder in (app.parent for root in roots for app in sorted((root / server_type).glob("*/app.py"))):
        if is_second_name(folder):
            continue
        main = folder / "configs" / f"{folder.name}.yaml"
        configs = sorted(folder.glob("configs/**/*.yaml"), key=lambda path: (path != main, path))
        all_facts = [facts for path in configs if (facts := _read_facts(path, roots)) is not None]
        descriptions = (facts.listing["description"] for facts in all_facts) if main in configs else iter(())
        is_composable = any(facts.uses_resources for facts in all_facts) and not any(
            facts.has_own_framework for facts in all_facts
        )
        yield Component(
            name=folder.name,
            kind=kind,
            path=folder,
            description=next(filter(None, descriptions), None) or _first_sentence(folder),
            variants=tuple(path.relative_to(folder / "configs").with_suffix("").as_posix() for path in configs),
            self_contained=kind == AGENT and not is_composable,
        )
        if kind == AGENT and main not in configs:  # a catalogue: each configuration is an agent
            yield from _agents_of_catalogue(configs, roots)


def _agents_of_catalogue(configs: Iterable[Path], roots: Sequence[Path]) -> Iterator[Component]:
    """Yield a component for each configuration of an agent folder that has none with its own name."""
    for path in configs:
        facts = _read_facts(path, roots)
        if facts is not None:
            description = facts.listing["description"]
            yield Component(
                name=path.stem,
                kind=AGENT,
                path=path,
                description=description,
                self_contained=not facts.uses_resources or facts.has_own_framework,
            )


@dataclass(frozen=True)
class _ConfigFacts:
    """The properties of a component that its configuration contains."""

    listing: Mapping[str, Any]
    """Values for fields of `Component`."""
    uses_resources: bool
    has_own_framework: bool


def _read_facts(path: Path, roots: Sequence[Path]) -> _ConfigFacts | None:
    """Read the facts of a component from its configuration and includes; None if it cannot be read."""
    try:
        tree = load_tree(path, roots, strict=False)
    except ConfigError as error:
        logger.warning("skipped: %s", error)
        return None
    resources, agent_instances = instances_of(tree, RESOURCES), instances_of(tree, AGENTS)
    blocks = [instance.fields for instance in [*resources, *agent_instances]]
    agent_blocks = [agent.fields for agent in agent_instances]
    owners = [owner for owner in dataset_owners(tree) if datasets_of(owner.fields)]
    datasets = [dataset for owner in owners for _, dataset in datasets_of(owner.fields)]
    listing = {
        "domain": _first(blocks, "domain"),
        "description": _first(blocks, "description") or _first_comment(path),
        "verified": _first(blocks, "verified", None),
        "agent": next(filter(None, (_first_agent(tree, owner) for owner in owners)), ""),
        "resources_server": resources[0].name if resources else "",
        "repeats": next((d["num_repeats"] for d in datasets if isinstance(d.get("num_repeats"), int)), 1)
        if datasets
        else None,
        "licence": next((str(d["license"]) for d in datasets if d.get("license")), ""),
        "datasets": tuple(str(dataset.get("name", "")) for dataset in datasets),
    }
    return _ConfigFacts(
        listing,
        uses_resources=any(settings.get("resources_server") for settings in agent_blocks),
        has_own_framework=any(key in settings for settings in agent_blocks for key in OWN_FRAMEWORK_KEYS),
    )


def _first_agent(tree: Mapping[Any, Any], owner: ServerInstance) -> str:
    """Return the agent of the first dataset of an instance; "" if the configuration does not determine it."""
    _, dataset = datasets_of(owner.fields)[0]
    try:
        return resolve_dataset_agent(server_instances(tree), owner.name, dataset.get("agent"))
    except ConfigError:
        return ""


def _first(blocks: Sequence[Mapping[str, Any]], key: str, default: Any = "") -> Any:
    """Return the first value of a key in `blocks` that is not None, or else the default."""
    return next((block[key] for block in blocks if block.get(key) is not None), default)


def _first_comment(path: Path) -> str:
    """Return the comment on the first line of a configuration, which often describes the component."""
    with path.open(encoding="utf-8", errors="replace") as file:
        line = file.readline().strip()
    return line.lstrip("# ").strip() if line.startswith("#") else ""


def _first_sentence(folder: Path) -> str:
    """Return the first sentence of a README that is not a heading, table, list, badge or HTML; empty if it has none."""
    try:
        lines = (folder / "README.md").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return ""
    prose = next((line.strip() for line in lines if line.strip() and line.strip()[0] not in "#`|<![-"), "")
    return prose.split(". ")[0].rstrip(".")


def _read_manifest(path: Path) -> dict[str, Any]:
    """Read a manifest; empty if it is missing or invalid."""
    if not path.is_file():
        return {}
    try:
        manifest = yaml.safe_load(path.read_bytes())
    except (yaml.YAMLError, OSError) as error:
        logger.warning("skipped: %s: %s", path, str(error).splitlines()[0])
        return {}
    return manifest if isinstance(manifest, dict) else {}


def _unique(components: Iterable[Component]) -> list[Component]:
    """Keep the first component of each kind and name, record the paths that it shadows, and sort by name."""
    first: dict[tuple[str, str], Component] = {}
    for component in components:
        key = (component.kind, component.name)
        if key not in first:
            first[key] = component
        elif first[key].path != component.path:
            first[key] = replace(first[key], shadowed=(*first[key].shadowed, component.path))
    return sorted(first.values(), key=lambda component: (component.name.lower(), component.kind))
