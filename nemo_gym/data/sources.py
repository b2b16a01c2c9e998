"""Find the dataset files of agents, and download missing ones."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count, islice
from pathlib import Path
from typing import Literal, TypeAlias

from nemo_gym.catalog.rows import parse_row, row_line
from nemo_gym.config.dataset_agents import DATASET_OWNERS, resolve_dataset_agent
from nemo_gym.config.instances import read_instance
from nemo_gym.config.omegaconf_adapter import as_dict
from nemo_gym.config.schema_datasets import BenchmarkDatasetConfig, DatasetConfig
from nemo_gym.config.schema_servers import ServerInstanceConfig
from nemo_gym.config.search_roots import _resolve_under_cwd_or_install
from nemo_gym.data import gitlab, hub
from nemo_gym.data.prompt import find_prompt_config, load_prompt_config
from nemo_gym.errors import ConfigError, GymError
from nemo_gym.keys import AGENT_REF_KEY_NAME, AGENTS, TASK_SOURCE_KEY_NAME

Mode: TypeAlias = Literal["train_preparation", "example_validation"]
Storage: TypeAlias = Literal["gitlab", "huggingface"]

TYPES_OF_MODE: Mapping[Mode, tuple[str, ...]] = {
    "train_preparation": ("train", "validation", "benchmark"),
    "example_validation": ("example",),
}
PREFERRED_TYPES = ("benchmark", "validation", "example")
"""Dataset types in order of preference, for a run without an input file."""

Watch = Callable[[str, int, int | None], None]
"""Called with the name of the current step, the number of bytes done and the total, if known."""


class MissingDatasetsError(ConfigError, AssertionError):
    """Dataset files are missing and cannot be downloaded."""


@dataclass(frozen=True, slots=True)
class DatasetSource:
    """One dataset of one agent, and its file."""

    agent: str
    config: DatasetConfig | BenchmarkDatasetConfig
    path: Path
    stem: str
    """Prefix of the names of the files written next to the dataset file; unique for each source."""
    task_source: str | None = None
    """The resources server that declares the dataset; None if the agent does."""

    @property
    def row_range(self) -> tuple[int | None, int | None]:
        """The first row and the end (exclusive) of the rows to use, counted from 0; None: no limit."""
        if isinstance(self.config, BenchmarkDatasetConfig):
            return None, None
        return self.config.start_idx, self.config.end_idx

    @property
    def prompt(self) -> Path | None:
        path = self.config.prompt_config if isinstance(self.config, BenchmarkDatasetConfig) else None
        return find_prompt_config(path) if path else None

    @property
    def metrics_path(self) -> Path:
        return self.path.with_name(f"{self.stem}_metrics.json")

    @property
    def conflict_path(self) -> Path:
        return self.path.with_name(f"{self.stem}_conflict.json")

    @property
    def prepared_path(self) -> Path:
        return self.path.with_name(f"{self.stem}_prepare.jsonl")


@dataclass(frozen=True, slots=True)
class RegistryAccess:
    """Addresses and tokens of the registries."""

    storage: Storage = "huggingface"
    """The registry to use for a dataset that is in both."""
    hf_token: str | None = None
    mlflow_tracking_uri: str | None = None
    mlflow_tracking_token: str | None = None


def find_sources(instances: Iterable[ServerInstanceConfig], mode: Mode) -> list[DatasetSource]:
    """List the datasets of agents and resources servers whose type belongs to `mode`, by type, then as configured.

    Raises:
        ConfigError: no agent has such a dataset, or the prompt of a benchmark is invalid.
    """
    sources: list[DatasetSource] = []
    types: list[str] = []
    servers = [
        (instance, read_instance(instance.name, as_dict(instance.server_type_config_dict))) for instance in instances
    ]
    blocks = [block for _, block in servers if block is not None]
    for instance, _ in servers:
        if instance.SERVER_TYPE not in DATASET_OWNERS:
            continue
        for config in instance.datasets or []:
            types.append(config.type)
            if config.type in TYPES_OF_MODE[mode]:
                path = _resolve_under_cwd_or_install(config.jsonl_fpath)
                agent = resolve_dataset_agent(blocks, instance.name, config.agent)
                declaring = None if instance.name == agent else instance.name
                sources.append(DatasetSource(agent, config, path, path.stem, declaring))
    if not sources:
        existing = ", ".join(dict.fromkeys(types)) or "none"
        problem = f"no agent has a dataset of type {' or '.join(TYPES_OF_MODE[mode])} (existing types: {existing})"
        raise ConfigError(problem, fix="add one under 'datasets' of an agent, or choose the other --mode")
    problems = []
    for source in sources:  # an invalid prompt is reported before any row is read
        try:
            if source.prompt:
                load_prompt_config(source.prompt)
        except GymError as error:
            problems.append(f"{source.agent}: {error}")
    if problems:
        raise ConfigError("\n  ".join(dict.fromkeys(problems)))
    sources.sort(key=lambda source: TYPES_OF_MODE[mode].index(source.config.type))
    return assign_stems(sources)


def missing_sources(sources: Sequence[DatasetSource]) -> list[DatasetSource]:
    return [source for source in sources if not source.path.is_file()]


def fetch_missing(
    sources: Sequence[DatasetSource], mode: Mode, access: RegistryAccess | None, watch: Watch
) -> list[DatasetSource]:
    """Download missing files, if `access` is given; return the sources with the paths of existing files.

    Raises:
        MissingDatasetsError: (an AssertionError) files are missing and cannot be downloaded; nothing was downloaded.
    """
    missing = missing_sources(sources)
    if not missing:
        return list(sources)
    fixes = [(source, _fix_without_download(source, mode, access)) for source in missing]
    lines = [f"{source.path} ({source.agent}, {source.config.type}): {fix}" for source, fix in fixes if fix]
    if lines or access is None:  # without access, every missing source has a line
        distinct_lines = list(dict.fromkeys(lines))
        number = "1 dataset file is" if len(distinct_lines) == 1 else f"{len(distinct_lines)} dataset files are"
        listed = "\n  ".join(distinct_lines)
        raise MissingDatasetsError(f"{number} missing\n  {listed}")
    targets: dict[Path, Path] = {}
    for source in missing:
        if source.path not in targets:
            targets[source.path] = _download(source, access, watch)
    return [replace(source, path=targets.get(source.path, source.path)) for source in sources]


def stamp_rows(sources: Sequence[DatasetSource]) -> Iterator[bytes]:
    """Yield the rows of all sources in order, with their repeats, as JSON lines.

    A row without a reference to an agent gets the agent of its source. Rows are not checked, and prompts of benchmarks
    are not applied.

    Raises:
        ConfigError: a line is not a JSON object.
    """
    for source in sources:
        reference = {"type": AGENTS, "name": source.agent}
        with source.path.open("rb") as lines:
            for number, line in islice(enumerate(lines, start=1), *source.row_range):
                if line.isspace():
                    continue
                row = parse_row(line, where=f"{source.path}:{number}")
                row.setdefault(AGENT_REF_KEY_NAME, reference)
                if source.task_source is not None:
                    row[TASK_SOURCE_KEY_NAME] = source.task_source
                encoded = row_line(row)
                for _ in range(source.config.num_repeats):
                    yield encoded


def assign_stems(sources: Sequence[DatasetSource]) -> list[DatasetSource]:
    """Give each source a unique stem for the files written next to its dataset file.

    The stem of a source that uses a range of rows contains the range. If several sources share a file and a range, all
    but the first stem contain the agent and, if necessary, the name of the dataset and a number.
    """
    used_paths: set[Path] = set()
    renamed = []
    for source in sources:
        first, end = source.row_range
        rows = "" if first is None and end is None else f"_{first or 0}-{'end' if end is None else end}"
        longest = f"_{source.agent}_{source.config.name}"
        suffixes = chain(("", f"_{source.agent}", longest), (f"{longest}_{number}" for number in count(2)))
        candidates = (replace(source, stem=f"{source.path.stem}{rows}{suffix}") for suffix in suffixes)
        chosen = next(candidate for candidate in candidates if candidate.metrics_path not in used_paths)
        used_paths.add(chosen.metrics_path)
        renamed.append(chosen)
    return renamed


def _fix_without_download(source: DatasetSource, mode: Mode, access: RegistryAccess | None) -> str | None:
    """Tell the user how to get a missing file that cannot be downloaded; None if it can be downloaded."""
    config = source.config
    if isinstance(config, BenchmarkDatasetConfig):
        return "prepare it first with 'gym eval prepare'"
    if mode == "example_validation":
        return "example rows are not downloaded; write the file"
    if config.gitlab_identifier is None and config.huggingface_identifier is None:
        return "write it, or configure its download under 'source'"
    if access is None:
        return "download it with --download"
    if _storage(config, access) == "gitlab" and not access.mlflow_tracking_uri:
        return "mlflow_tracking_uri is not set; add it and mlflow_tracking_token to env.yaml"
    return None


def _storage(config: DatasetConfig, access: RegistryAccess) -> Storage:
    if config.gitlab_identifier and config.huggingface_identifier:
        return access.storage
    return "gitlab" if config.gitlab_identifier else "huggingface"


def _download(source: DatasetSource, access: RegistryAccess, watch: Watch) -> Path:
    """Download the file of a source to the path in its configuration, below the working directory."""
    config = source.config
    assert isinstance(config, DatasetConfig)
    target = Path(config.jsonl_fpath).absolute()

    def meter(done: int, total: int | None) -> None:
        watch(f"downloading {config.jsonl_fpath}", done, total)

    if _storage(config, access) == "gitlab":
        assert config.gitlab_identifier is not None
        assert access.mlflow_tracking_uri is not None
        registry = gitlab.Registry(access.mlflow_tracking_uri, access.mlflow_tracking_token)
        gitlab.fetch(config.gitlab_identifier, target, registry, meter=meter)
    else:
        assert config.huggingface_identifier is not None
        hub.fetch(config.huggingface_identifier, target, split=config.type, token=access.hf_token, meter=meter)
    return target
