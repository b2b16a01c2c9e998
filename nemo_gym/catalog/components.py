"""List components, for `gym list` and `gym search`.

Only files are read. A configuration that cannot be read is skipped with a warning, and missing values are allowed.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import yaml

from nemo_gym.catalog.config_tree import AGENTS as AGENTS_FOLDER
from nemo_gym.catalog.config_tree import datasets_of, load_tree
from nemo_gym.config.instances import instances_of
from nemo_gym.errors import ConfigError

logger = logging.getLogger("nemo_gym.catalog")

ENVIRONMENT, BENCHMARK = "environment", "benchmark"
AGENT, MODEL, RESOURCES_SERVER = "agent", "model", "resources-server"

RESOURCES_FOLDER, MODELS_FOLDER = "resources_servers", "responses_api_models"
OWN_FRAMEWORK_KEYS = ("agent_framework", "anthropic_api_key")
RUNNABLE_FACTS = ("domain", "verified", "agent", "repeats", "resources_server", "datasets")
EXPERIMENTAL, NO_MANIFEST = "experimental", "no-manifest"

MIN_SIMILARITY = 0.7
_BETWEEN_WORDS = re.compile(r"[\s_\-/]+")


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
    manifest: Mapping[str, Any] = field(default_factory=dict)
    shadowed: tuple[Path, ...] = ()
    """Paths of unused components of the same name in later roots."""

    @property
    def status(self) -> str:
        return EXPERIMENTAL if self.manifest else NO_MANIFEST


def catalog(roots: Sequence[Path]) -> list[Component]:
    """List environments and benchmarks; resources-server configurations with an agent and datasets are environments."""
    environments = _folder_components("environments", ENVIRONMENT, roots)
    benchmarks = _folder_components("benchmarks", BENCHMARK, roots)
    return _unique([*environments, *benchmarks, *_runnable_configs(roots)])


def resources_servers(roots: Sequence[Path]) -> list[Component]:
    return _unique(
        Component(name=name, kind=RESOURCES_SERVER, path=path, **_select(facts, "domain", "verified"))
        for path, name, facts in _server_configs(roots)
    )


def agents(roots: Sequence[Path]) -> list[Component]:
    return _unique(_server_folders(AGENTS_FOLDER, AGENT, roots))


def models(roots: Sequence[Path]) -> list[Component]:
    return _unique(_server_folders(MODELS_FOLDER, MODEL, roots))


EVERY_KIND = {
    "benchmarks": lambda roots: [component for component in catalog(roots) if component.kind == BENCHMARK],
    "environments": catalog,
    "agents": agents,
    "models": models,
    "resources-servers": resources_servers,
}
"""Argument of `gym list` -> function that lists those components."""


def matches_query(query: str, fields: Iterable[str]) -> bool:
    """Return whether a field contains the query, or whether the field or one of its words is similar to it."""
    query = query.lower()
    for text in filter(None, map(str.lower, fields)):
        if query in text or any(_is_similar(query, word) for word in (text, *_BETWEEN_WORDS.split(text)) if word):
            return True
    return False


def _is_similar(query: str, word: str) -> bool:
    matcher = SequenceMatcher(None, query, word)
    # The quick ratios are upper bounds, which avoid the full comparison of most words.
    return (
        matcher.real_quick_ratio() >= MIN_SIMILARITY
        and matcher.quick_ratio() >= MIN_SIMILARITY
        and matcher.ratio() >= MIN_SIMILARITY
    )


def _folder_components(folder: str, kind: str, roots: Sequence[Path]) -> Iterator[Component]:
    """Yield the folders with a `config.yaml`; values of the manifest override those of the configuration."""
    for root in roots:
        for path in sorted((root / folder).rglob("config.yaml")):
            relative = path.parent.relative_to(root / folder)
            if any(part.startswith(".") for part in relative.parts):
                continue
            facts = _facts(path, roots)
            if facts is None:
                continue
            manifest = _read_manifest(path.parent / "manifest.yaml")
            names = {"domain": "domain", "description": "description", "licensing": "licence"}
            overrides = {name: str(manifest[key]) for key, name in names.items() if manifest.get(key)}
            fields = {**_select(facts, *RUNNABLE_FACTS), **overrides}
            yield Component(name=relative.as_posix(), kind=kind, path=path, manifest=manifest, **fields)


def _runnable_configs(roots: Sequence[Path]) -> Iterator[Component]:
    """Yield the resources-server configurations with an agent that has datasets, which can be run directly."""
    for path, name, facts in _server_configs(roots):
        if facts["datasets"]:
            fields = _select(facts, *RUNNABLE_FACTS)
            yield Component(name=f"{RESOURCES_FOLDER}/{name}", kind=ENVIRONMENT, path=path, **fields)


def _server_configs(roots: Sequence[Path]) -> Iterator[tuple[Path, str, dict[str, Any]]]:
    """Yield path, name and facts of every configuration that has a resources server."""
    for root in roots:
        for path in sorted((root / RESOURCES_FOLDER).glob("*/configs/*.yaml")):
            server = path.parents[1].name
            facts = _facts(path, roots)
            if facts is not None and facts["has_resources"]:
                yield path, server if path.stem == server else f"{server}/{path.stem}", facts


def _server_folders(folder: str, kind: str, roots: Sequence[Path]) -> Iterator[Component]:
    for root in roots:
        for path in sorted((root / folder).glob("*/app.py")):
            yield _folder_component(path.parent, kind, roots)


def _folder_component(folder: Path, kind: str, roots: Sequence[Path]) -> Component:
    """Describe a server folder from all its configuration files."""
    configs = sorted(folder.glob("configs/**/*.yaml"))
    all_facts = [facts for path in configs if (facts := _facts(path, roots)) is not None]
    is_composable = any(facts["uses_resources"] for facts in all_facts) and not any(
        facts["own_framework"] for facts in all_facts
    )
    return Component(
        name=folder.name,
        kind=kind,
        path=folder,
        description=next(
            (facts["description"] for facts in all_facts if facts["description"]), _first_sentence(folder)
        ),
        variants=tuple(path.relative_to(folder / "configs").with_suffix("").as_posix() for path in configs),
        self_contained=kind == AGENT and not is_composable,
    )


def _facts(path: Path, roots: Sequence[Path]) -> dict[str, Any] | None:
    """Return the properties of a component from its configuration and includes; None if it cannot be read."""
    try:
        tree = load_tree(path, roots, strict=False)
    except ConfigError as error:
        logger.warning("skipped: %s", error)
        return None
    resources = [(instance.name, instance.fields) for instance in instances_of(tree, RESOURCES_FOLDER)]
    agent_blocks = [(instance.name, instance.fields) for instance in instances_of(tree, AGENTS_FOLDER)]
    blocks = [settings for _, settings in [*resources, *agent_blocks]]
    datasets = [dataset for _, settings in agent_blocks for _, dataset in datasets_of(settings)]
    return {
        "has_resources": bool(resources),
        "uses_resources": any(settings.get("resources_server") for _, settings in agent_blocks),
        "own_framework": any(key in settings for _, settings in agent_blocks for key in OWN_FRAMEWORK_KEYS),
        "domain": _first(blocks, "domain"),
        "description": _first(blocks, "description") or _first_comment(path),
        "verified": _first(blocks, "verified", None),
        "agent": next((name for name, settings in agent_blocks if datasets_of(settings)), ""),
        "resources_server": next((name for name, _ in resources), ""),
        "repeats": next((int(d["num_repeats"]) for d in datasets if isinstance(d.get("num_repeats"), int)), None),
        "licence": next((str(d["license"]) for d in datasets if d.get("license")), ""),
        "datasets": tuple(str(dataset.get("name", "")) for dataset in datasets),
    }


def _select(facts: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: facts[name] for name in ("description", "licence", *names)}


def _first(blocks: Sequence[Mapping[str, Any]], key: str, default: Any = "") -> Any:
    return next((block[key] for block in blocks if block.get(key) is not None), default)


def _first_comment(path: Path) -> str:
    """Return the comment on the first line of a configuration, which often describes the component."""
    with path.open(encoding="utf-8", errors="replace") as file:
        line = file.readline().strip()
    return line.lstrip("# ").strip() if line.startswith("#") else ""


def _first_sentence(folder: Path) -> str:
    """Return the first sentence of a folder's README; empty if there is no README."""
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
    """Keep the first component of each name, record the paths it shadows, and sort by name."""
    first: dict[tuple[str, str], Component] = {}
    for component in components:
        key = (component.kind, component.name)
        if key not in first:
            first[key] = component
        elif first[key].path != component.path:
            first[key] = replace(first[key], shadowed=(*first[key].shadowed, component.path))
    return sorted(first.values(), key=lambda component: (component.name.lower(), component.kind))
