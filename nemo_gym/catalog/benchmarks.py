"""Benchmarks: the YAML files below `benchmarks/` that declare a dataset of type `benchmark`."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, Field, ValidationError

from nemo_gym.catalog.roots import component_search_roots
from nemo_gym.config.directives import expand_directives
from nemo_gym.config.load import load_files, read_source
from nemo_gym.config.merge import Tree, merge_into
from nemo_gym.config.positions import Positions
from nemo_gym.config.problems import raise_all
from nemo_gym.config.schema_cli import BaseNeMoGymCLIConfig
from nemo_gym.config.schema_datasets import BenchmarkDatasetConfig
from nemo_gym.errors import ConfigError, ConfigInterpolationError

logger = logging.getLogger("nemo_gym.catalog")

FOLDER = "benchmarks"
CONFIG_STEM = "config"
AGENTS = "responses_api_agents"
BENCHMARK = "benchmark"


class PrepareBenchmarkConfig(BaseNeMoGymCLIConfig):
    """Run the script that writes a benchmark's rows."""

    use_cached_prepared_benchmarks: bool = False
    """Leave a benchmark alone whose rows are already there."""
    num_prepare_benchmark_processes: int = Field(default=1, ge=1)
    """How many benchmarks are prepared at once."""
    prepare_timeout_seconds: float | None = Field(default=6 * 3600.0, gt=0)
    """How long the script of one benchmark may take; null: as long as it likes."""
    prepare_script_args: dict[str, Any] = {}
    """Passed to the script's `prepare` by name."""


class BenchmarkConfig(BaseModel):
    """One benchmark: the agent that is measured, and the rows it is measured on."""

    name: str
    """What its dataset is called."""
    path: Path
    agent_name: str
    """The agent's instance id."""
    num_repeats: int
    dataset: BenchmarkDatasetConfig

    @classmethod
    def from_config_path(cls, path: str | Path, strict: bool = True) -> "BenchmarkConfig | None":
        """The benchmark a configuration file declares, with what it includes and inherits taken into account.

        With `strict`, a file that declares none, or several, or cannot be read, is an error; without, it gives None,
        or the first of several.

        Raises:
            ConfigError: (strict only) says which file and what is wrong with it.
        """
        try:
            return cls._declared(Path(path), strict)
        except ConfigError as error:
            if strict:
                raise
            logger.warning("left out: %s", error)
            return None

    @classmethod
    def _declared(cls, path: Path, strict: bool) -> "BenchmarkConfig | None":
        declarations = list(_declarations(path, component_search_roots()))
        if strict and len(declarations) != 1:
            found = ", ".join(d.agent_name for d in declarations) or "none"
            raise ConfigError(
                f"a benchmark has one agent with one dataset of type '{BENCHMARK}'; this file has: {found}",
                where=str(path),
            )
        if not declarations:
            return None
        first = declarations[0]
        try:
            dataset = BenchmarkDatasetConfig.model_validate(first.dataset)
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in error.errors())
            raise ConfigError(f"the dataset of {first.agent_name}: {problems}", where=str(path)) from None
        return cls(
            name=dataset.name,
            path=path,
            agent_name=first.agent_name,
            num_repeats=dataset.num_repeats,
            dataset=dataset,
        )


def discover_benchmarks(roots: Sequence[Path] | None = None) -> dict[str, BenchmarkConfig]:
    """Every benchmark in the search roots by the name it is asked for; the first root that has a name wins.

    `benchmarks/<dir>/config.yaml` is called `<dir>`, any other file by its path without `.yaml`. A file that cannot
    be read is left out with a warning.
    """
    found: dict[str, BenchmarkConfig] = {}
    for root in component_search_roots() if roots is None else roots:
        folder = root / FOLDER
        for path in sorted(folder.rglob("*.yaml")):
            name = _name(path.relative_to(folder))
            if name in found or _is_hidden(path.relative_to(folder)) or not _mentions_a_benchmark(path):
                continue
            benchmark = BenchmarkConfig.from_config_path(path, strict=False)
            if benchmark is not None:
                found[name] = benchmark
    return found


@dataclass(frozen=True)
class _Declaration:
    agent_name: str
    dataset: dict[str, Any]


def _declarations(path: Path, roots: Sequence[Path]) -> Iterator[_Declaration]:
    """The benchmark datasets of the agents that this file names, whoever wrote them down."""
    own = read_source(path).tree
    sources = load_files([str(path.absolute())], roots).sources
    tree: Tree = {}
    for source in sources:
        merge_into(tree, source.tree, root=tree)
    expanded = expand_directives(tree)
    raise_all(Positions(sources, [], expanded.moves).located(expanded.problems))
    for agent, position in _benchmark_datasets(expanded.tree):
        if agent in own:
            yield _Declaration(agent, _resolved(expanded.tree, position, path))


def _benchmark_datasets(tree: Tree) -> Iterator[tuple[str, str]]:
    """Agent and position of every dataset of type `benchmark`."""
    for agent, block in tree.items():
        implementations = block.get(AGENTS) if isinstance(block, Mapping) else None
        for name, implementation in implementations.items() if isinstance(implementations, Mapping) else ():
            datasets = implementation.get("datasets") if isinstance(implementation, Mapping) else None
            for index, dataset in enumerate(datasets if isinstance(datasets, list) else ()):
                if isinstance(dataset, Mapping) and dataset.get("type") == BENCHMARK:
                    yield str(agent), f"{agent}.{AGENTS}.{name}.datasets[{index}]"


def _resolved(tree: Tree, position: str, path: Path) -> dict[str, Any]:
    try:
        dataset = OmegaConf.to_container(OmegaConf.select(OmegaConf.create(tree), position), resolve=True)
    except OmegaConfBaseException as error:
        problem = str(error).splitlines()[0]
        raise ConfigInterpolationError(f"{position}: {problem}", where=str(path)) from None
    return {str(key): value for key, value in dataset.items()} if isinstance(dataset, dict) else {}


def _mentions_a_benchmark(path: Path) -> bool:
    """A quick look: most YAML files below `benchmarks/` are prompts."""
    try:
        return BENCHMARK.encode() in path.read_bytes()
    except OSError:
        return False


def _is_hidden(relative: Path) -> bool:
    return any(part.startswith(".") for part in relative.parts)


def _name(relative: Path) -> str:
    if relative.stem == CONFIG_STEM and len(relative.parts) > 1:
        return relative.parent.as_posix()
    return relative.with_suffix("").as_posix()
