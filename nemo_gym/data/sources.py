"""Which datasets of which agents are collated, where their files are, and how missing ones are fetched."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from nemo_gym.catalog.roots import _resolve_under_cwd_or_install
from nemo_gym.config.schema_datasets import BenchmarkDatasetConfig, DatasetConfig
from nemo_gym.config.schema_servers import ServerInstanceConfig
from nemo_gym.data import gitlab, hub
from nemo_gym.data.prompt import find_prompt_config, load_prompt_config
from nemo_gym.errors import ConfigError, GymError

Mode: TypeAlias = Literal["train_preparation", "example_validation"]
Storage: TypeAlias = Literal["gitlab", "huggingface"]

IN_SCOPE: Mapping[Mode, tuple[str, ...]] = {
    "train_preparation": ("train", "validation", "benchmark"),
    "example_validation": ("example",),
}
AGENTS = "responses_api_agents"

Watch = Callable[[str, int, int | None], None]
"""Told what is under way, how many bytes are done, and of how many if that is known."""


class MissingDatasetsError(ConfigError, AssertionError):
    """Files of datasets are not there, and nobody may or can fetch them."""


@dataclass(frozen=True, slots=True)
class Source:
    """One dataset of one agent, and its file."""

    agent: str
    config: DatasetConfig | BenchmarkDatasetConfig
    path: Path
    stem: str
    """What the names of the files written beside it begin with; different for each source."""

    @property
    def rows(self) -> tuple[int | None, int | None]:
        """The first row and the one before which to stop."""
        if isinstance(self.config, BenchmarkDatasetConfig):
            return None, None
        return self.config.start_idx, self.config.end_idx

    @property
    def prompt(self) -> Path | None:
        given = self.config.prompt_config if isinstance(self.config, BenchmarkDatasetConfig) else None
        return find_prompt_config(given) if given else None

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
class Access:
    """What the registries ask for."""

    storage: Storage = "huggingface"
    """Which one is asked when a dataset is in both."""
    hf_token: str | None = None
    mlflow_tracking_uri: str | None = None
    mlflow_tracking_token: str | None = None


def sources_of(instances: Iterable[ServerInstanceConfig], mode: Mode) -> list[Source]:
    """The datasets that `mode` is about, by type and then in the order of the configuration.

    Raises:
        ConfigError: no agent has one, or a prompt that a benchmark names cannot be used.
    """
    found: list[Source] = []
    has: list[str] = []
    for instance in instances:
        for config in instance.datasets or [] if instance.SERVER_TYPE == AGENTS else []:
            has.append(config.type)
            if config.type in IN_SCOPE[mode]:
                path = _resolve_under_cwd_or_install(config.jsonl_fpath)
                found.append(Source(instance.name, config, path, path.stem))
    if not found:
        there = ", ".join(dict.fromkeys(has)) or "none"
        raise ConfigError(
            f"no agent has a dataset of type {' or '.join(IN_SCOPE[mode])} (there are: {there})",
            fix="add one under 'datasets' of an agent, or choose the other --mode",
        )
    _check_prompts(found)
    found.sort(key=lambda source: IN_SCOPE[mode].index(source.config.type))
    return _told_apart(found)


def missing_of(sources: Sequence[Source]) -> list[Source]:
    return [source for source in sources if not source.path.is_file()]


def fetch_missing(sources: Sequence[Source], mode: Mode, access: Access | None, watch: Watch) -> list[Source]:
    """The sources with every file in its place, fetched where that was asked for (`access`) and is possible.

    Raises:
        MissingDatasetsError: (an AssertionError) names every file that is missing and cannot be had, before any is
            fetched.
    """
    missing = missing_of(sources)
    if not missing:
        return list(sources)
    hopeless = [(source, _obstacle(source, mode, access)) for source in missing]
    told = [f"{source.path} ({source.agent}, {source.config.type}): {why}" for source, why in hopeless if why]
    if told:
        different = list(dict.fromkeys(told))
        count = "1 dataset file is" if len(different) == 1 else f"{len(different)} dataset files are"
        listed = "\n  ".join(different)
        raise MissingDatasetsError(f"{count} missing\n  {listed}")
    assert access is not None
    targets: dict[Path, Path] = {}
    for source in missing:
        if source.path not in targets:
            targets[source.path] = _fetched(source, access, watch)
    return [replace(source, path=targets.get(source.path, source.path)) for source in sources]


def _obstacle(source: Source, mode: Mode, access: Access | None) -> str | None:
    """Why a missing file cannot be fetched, and what to do."""
    config = source.config
    if isinstance(config, BenchmarkDatasetConfig):
        return "prepare it first with 'gym eval prepare'"
    if mode == "example_validation":
        return "example rows are kept with the code; write the file"
    if config.gitlab_identifier is None and config.huggingface_identifier is None:
        return "write it, or say under 'source' where it can be downloaded"
    if access is None:
        return "download it with --download"
    if _storage(config, access) == "gitlab" and not access.mlflow_tracking_uri:
        return "mlflow_tracking_uri is not set; put it and mlflow_tracking_token into env.yaml"
    return None


def _storage(config: DatasetConfig, access: Access) -> Storage:
    if config.gitlab_identifier and config.huggingface_identifier:
        return access.storage
    return "gitlab" if config.gitlab_identifier else "huggingface"


def _fetched(source: Source, access: Access, watch: Watch) -> Path:
    """Download the file of a source to the place its configuration names, below the working directory."""
    config = source.config
    assert isinstance(config, DatasetConfig)
    target = Path(config.jsonl_fpath).absolute()

    def meter(done: int, total: int | None) -> None:
        watch(f"downloading {config.jsonl_fpath}", done, total)

    if _storage(config, access) == "gitlab":
        assert config.gitlab_identifier is not None
        assert access.mlflow_tracking_uri is not None
        uri, token = access.mlflow_tracking_uri, access.mlflow_tracking_token
        gitlab.fetch(config.gitlab_identifier, target, tracking_uri=uri, token=token, meter=meter)
    else:
        assert config.huggingface_identifier is not None
        hub.fetch(config.huggingface_identifier, target, split=config.type, token=access.hf_token, meter=meter)
    return target


def _check_prompts(sources: Sequence[Source]) -> None:
    """Every prompt is there and can be filled; said before any row is read."""
    wrong = []
    for source in sources:
        try:
            if source.prompt:
                load_prompt_config(source.prompt)
        except GymError as error:
            wrong.append(f"{source.agent}: {error}")
    if wrong:
        raise ConfigError("\n  ".join(dict.fromkeys(wrong)))


def _told_apart(sources: Sequence[Source]) -> list[Source]:
    """Give each source names of its own for what is written beside its file.

    A slice is named by its rows; a file that several agents share also by the agent, from the second on.
    """
    taken: set[Path] = set()
    named = []
    for source in sources:
        first, end = source.rows
        sliced = "" if first is None and end is None else f"_{first or 0}-{'end' if end is None else end}"
        stem = f"{source.path.stem}{sliced}"
        for ending in ("", f"_{source.agent}", f"_{source.agent}_{source.config.name}", *_numbered(source)):
            candidate = replace(source, stem=f"{stem}{ending}")
            if candidate.metrics_path not in taken:
                taken.add(candidate.metrics_path)
                named.append(candidate)
                break
    return named


def _numbered(source: Source) -> Iterable[str]:
    return (f"_{source.agent}_{source.config.name}_{number}" for number in range(2, 10_000))


def described(source: Source) -> dict[str, Any]:
    """What the configuration says about a dataset, for the head of its metrics file."""
    return source.config.model_dump(mode="json")
