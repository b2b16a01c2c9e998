"""The rows of the agents' own datasets, checked and put into one file beside the output."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from omegaconf import DictConfig

from nemo_gym.catalog.files import whole_file
from nemo_gym.cli import output
from nemo_gym.config_types import ServerInstanceConfig
from nemo_gym.data.agents import AGENTS, PREFERRED, AgentDataset, stamped_lines
from nemo_gym.data.chunks import span_of
from nemo_gym.data.collate import RowsRefused
from nemo_gym.data.prepare import Preparer, Task
from nemo_gym.data.problems import Problems
from nemo_gym.data.sources import Access, Mode, Source, fetch_missing, missing_of, sources_of
from nemo_gym.errors import ConfigError, GymError
from nemo_gym.global_config import GlobalConfigDictParser
from nemo_gym.rollouts.jsonl import StoreError

CHUNK = 2 * 1024 * 1024
PAUSE = 5.0


class Told:
    """Says now and then how far a long piece of work is."""

    def __init__(self) -> None:
        self._at = time.monotonic()

    def __call__(self, what: str, done: int, total: int | None) -> None:
        if time.monotonic() - self._at >= PAUSE:
            self._at = time.monotonic()
            output.talk(f"{what}: {100 * done / total:.0f} %" if total else f"{what}: {done / 1e6:.0f} MB")


def gather_rows(
    config: DictConfig, split: str | None, target: Path, *, prompted: bool, prepare: str = "gym eval prepare"
) -> Path:
    """Write the rows of the agents' datasets of a type beside the output, each with its agent, and return that file.

    With `prompted` the rows get their input later: they are not checked, and prompts of benchmarks are not applied.
    `prepare` is the command that makes the data of a benchmark.

    Raises:
        ConfigError: there are no such datasets, or files are missing.
        RowsRefused: (a ValueError) rows that no agent could take, all of them.
        StoreError: the file cannot be written.
    """
    instances = GlobalConfigDictParser().filter_for_server_instance_configs(config)
    wanted = chosen_type(instances, split)
    path = target.with_suffix("") / "preprocessed_datasets" / f"{wanted}.jsonl"
    if config.get("reuse_existing_data_preparation") and path.is_file():
        return path
    sources = _located(instances, wanted, config, prepare)
    try:
        with whole_file(path) as rows:
            rows.writelines(_stamped(sources) if prompted else _checked(sources))
    except GymError:
        raise
    except OSError as error:
        where = str(error.filename or path)
        raise StoreError(f"cannot be read or written: {error.strerror or error}", where=where) from error
    return path


def chosen_type(instances: Sequence[ServerInstanceConfig], split: str | None) -> str:
    """The type of datasets that is run: `split`, or the first of the usual ones that any agent has.

    Raises:
        ConfigError: no agent has one; says what there is.
    """
    agents = [instance for instance in instances if instance.SERVER_TYPE == AGENTS]
    there = {dataset.type for agent in agents for dataset in agent.datasets or []}
    wanted = (split,) if split else PREFERRED
    for kind in wanted:
        if kind in there:
            return kind
    raise ConfigError(
        f"no agent has a dataset of type {' or '.join(wanted)} (there are: {', '.join(sorted(there)) or 'none'})",
        fix="choose another --split, or name a file with --input and its agent with --agent",
    )


def _located(instances: Sequence[ServerInstanceConfig], wanted: str, config: DictConfig, prepare: str) -> list[Source]:
    """The sources of that type, every file in its place."""
    mode: Mode = "example_validation" if wanted == "example" else "train_preparation"
    sources = [source for source in sources_of(instances, mode) if source.config.type == wanted]
    if wanted == "benchmark" and missing_of(sources):
        missing = ", ".join(str(source.path) for source in missing_of(sources))
        raise ConfigError(f"the data of the benchmark is not there yet: {missing}", fix=prepare)
    access = Access(
        config.get("data_source") or "huggingface",
        config.get("hf_token"),
        config.get("mlflow_tracking_uri"),
        config.get("mlflow_tracking_token"),
    )
    return fetch_missing(sources, mode, access if config.get("should_download") else None, Told())


def _checked(sources: Sequence[Source]) -> Iterator[bytes]:
    """The rows as agents will get them; if one cannot be used, all such rows are told at the end."""
    preparer, told = Preparer(measure=False), Told()
    refused: list[tuple[Source, Problems]] = []
    spans = [span_of(source.path, *source.rows) for source in sources]
    total, done = sum(span.size for span in spans), 0
    for source, span in zip(sources, spans, strict=True):
        problems, lines = Problems(), span.lines_before
        for chunk in span.chunks(CHUNK):
            found = preparer.prepare(Task(chunk, source.agent, source.config.num_repeats, source.prompt))
            problems.merge(found.problems, after=lines)
            lines += found.lines
            done += chunk.end - chunk.start
            told("checking rows", done, total)
            yield found.written
        if problems:
            refused.append((source, problems))
    if refused:
        raise RowsRefused(refused, stopped=False)


def _stamped(sources: Sequence[Source]) -> Iterator[bytes]:
    datasets = [AgentDataset(s.agent, s.config.type, s.path, s.config.num_repeats, *s.rows) for s in sources]
    return stamped_lines(datasets)
