"""One configuration file as a tree, with its includes and directives applied but without resolving values."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_gym.config.directives import expand_directives
from nemo_gym.config.instances import instances_of
from nemo_gym.config.load import load_files
from nemo_gym.config.merge import Tree, merge_into
from nemo_gym.config.positions import Positions
from nemo_gym.config.problems import raise_all

AGENTS = "responses_api_agents"
BENCHMARK = "benchmark"


def load_tree(path: Path, roots: Sequence[Path], *, strict: bool) -> Tree:
    """Merge a configuration file with the files it includes and expand its directives.

    A directive that cannot be expanded is ignored, or with `strict` an error.

    Raises:
        ConfigError: a file cannot be read, or (strict only) a directive cannot be expanded.
    """
    sources = load_files([str(path.absolute())], roots).sources
    tree: Tree = {}
    for source in sources:
        merge_into(tree, source.tree, root=tree)
    expanded = expand_directives(tree)
    if strict:
        raise_all(Positions(sources, [], expanded.moves).locate(expanded.problems))
    return expanded.tree


def datasets_of(settings: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
    """Return the datasets of a server block with their indices; entries that are not mappings are skipped."""
    datasets = settings.get("datasets")
    entries = enumerate(datasets) if isinstance(datasets, list) else ()
    return [(index, dataset) for index, dataset in entries if isinstance(dataset, Mapping)]


def benchmark_datasets(tree: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield agent, key path and settings of every dataset of type `benchmark`."""
    for agent in instances_of(tree, AGENTS):
        for index, dataset in datasets_of(agent.fields):
            if dataset.get("type") == BENCHMARK:
                yield agent.name, f"{'.'.join(agent.path)}.datasets[{index}]", dataset
