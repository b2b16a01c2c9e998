"""Benchmarks: the YAML files below `benchmarks/` that declare a dataset of type `benchmark`."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, Field, ValidationError

from nemo_gym.catalog.components import BENCHMARK, datasets_of, load_tree
from nemo_gym.config.instances import instances_of
from nemo_gym.config.load import read_source
from nemo_gym.config.omegaconf_adapter import as_dict
from nemo_gym.config.schema_cli import BaseNeMoGymCLIConfig
from nemo_gym.config.schema_datasets import BenchmarkDatasetConfig
from nemo_gym.config.search_roots import component_search_roots
from nemo_gym.errors import ConfigError, ConfigInterpolationError
from nemo_gym.keys import AGENTS

logger = logging.getLogger("nemo_gym.catalog")

FOLDER = "benchmarks"
CONFIG_STEM = "config"


class PrepareBenchmarkConfig(BaseNeMoGymCLIConfig):
    """Run the script that writes a benchmark's rows."""

    use_cached_prepared_benchmarks: bool = False
    """Skip benchmarks whose rows already exist."""
    num_prepare_benchmark_processes: int = Field(default=1, ge=1)
    """Maximum number of benchmarks prepared in parallel."""
    prepare_timeout_seconds: float | None = Field(default=6 * 3600.0, gt=0)
    """Time limit for the script of one benchmark; null: no limit."""
    prepare_script_args: dict[str, Any] = {}
    """Keyword arguments for the script's `prepare`."""


class BenchmarkConfig(BaseModel):
    """One benchmark: an agent and the rows it is evaluated on."""

    name: str
    """The name of its dataset."""
    path: Path
    agent_name: str
    """The agent's instance name."""
    num_repeats: int
    dataset: BenchmarkDatasetConfig

    @classmethod
    def from_config_path(cls, path: str | Path, strict: bool = True) -> "BenchmarkConfig | None":
        """Read the benchmark that a configuration file declares, with its includes and directives applied.

        The agent must be in this file; its dataset may be in an included file.

        With `strict`, the file must declare exactly one benchmark. Otherwise the result is the first benchmark; None if
        the file declares none or cannot be read.

        Raises:
            ConfigError: (strict only) the file cannot be read or does not declare exactly one benchmark.
        """
        path = Path(path)
        try:
            tree = load_tree(path, component_search_roots(), strict=True)
            own_names = read_source(path).tree
            declared = [(agent, key) for agent, key, _ in benchmark_datasets(tree) if agent in own_names]
            if strict and len(declared) != 1:
                agents = ", ".join(agent for agent, _ in declared) or "none"
                what = f"expected one agent with one dataset of type '{BENCHMARK}'; found: {agents}"
                raise ConfigError(what, where=str(path))
            if not declared:
                return None
            agent, key_path = declared[0]
            dataset = parse_dataset(_resolve(tree, key_path, path), f"the dataset of {agent}", where=str(path))
        except ConfigError as error:
            if strict:
                raise
            logger.warning("skipped: %s", error)
            return None
        return cls(name=dataset.name, path=path, agent_name=agent, num_repeats=dataset.num_repeats, dataset=dataset)


def discover_benchmarks(roots: Sequence[Path] | None = None) -> dict[str, BenchmarkConfig]:
    """Find every benchmark in the search roots, by name; an earlier root has precedence.

    The name of `benchmarks/<dir>/config.yaml` is `<dir>`; that of any other file is its path without `.yaml`. A file
    that cannot be read is skipped with a warning.
    """
    benchmarks: dict[str, BenchmarkConfig] = {}
    for root in component_search_roots() if roots is None else roots:
        folder = root / FOLDER
        for path in sorted(folder.rglob("*.yaml")):
            relative = path.relative_to(folder)
            is_hidden = any(part.startswith(".") for part in relative.parts)
            if is_hidden or _benchmark_name(relative) in benchmarks or not _mentions_benchmark(path):
                continue
            benchmark = BenchmarkConfig.from_config_path(path, strict=False)
            if benchmark is not None:
                benchmarks[_benchmark_name(relative)] = benchmark
    return benchmarks


def benchmark_datasets(tree: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield agent, key path and settings of every dataset of type `benchmark`."""
    for agent in instances_of(tree, AGENTS):
        for index, dataset in datasets_of(agent.fields):
            if dataset.get("type") == BENCHMARK:
                yield agent.name, f"{'.'.join(agent.path)}.datasets[{index}]", dataset


def parse_dataset(settings: Mapping[str, Any], subject: str, where: str | None = None) -> BenchmarkDatasetConfig:
    """Validate the settings of a benchmark dataset; errors begin with `subject`.

    Raises:
        ConfigError: fields are invalid; the message lists all of them.
    """
    try:
        return BenchmarkDatasetConfig.model_validate(dict(settings))
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in error.errors())
        raise ConfigError(f"{subject}: {problems}", where=where) from None


def _resolve(tree: Mapping[Any, Any], key_path: str, path: Path) -> dict[str, Any]:
    """Return the dataset at `key_path` with its interpolations resolved."""
    try:
        return as_dict(OmegaConf.select(OmegaConf.create(dict(tree)), key_path))
    except OmegaConfBaseException as error:
        problem = str(error).splitlines()[0]
        raise ConfigInterpolationError(f"{key_path}: {problem}", where=str(path)) from None


def _mentions_benchmark(path: Path) -> bool:
    """Return whether a file contains the word `benchmark`; avoids parsing prompts, which most files are."""
    try:
        return BENCHMARK.encode() in path.read_bytes()
    except OSError:
        return False


def _benchmark_name(relative: Path) -> str:
    """Return the name of a benchmark from the path of its file below `benchmarks/`."""
    if relative.stem == CONFIG_STEM and len(relative.parts) > 1:
        return relative.parent.as_posix()
    return relative.with_suffix("").as_posix()
