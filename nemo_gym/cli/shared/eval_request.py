"""The request of `gym eval run`, checked before servers start: its options and the rows to run."""

import argparse
import os
import pkgutil
import shlex
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from nemo_gym import RESULTS_DIR, _resolve_under_cwd_or_install, component_search_roots
from nemo_gym.adapters.rows import write_missing_rows
from nemo_gym.catalog.atomic_files import whole_file
from nemo_gym.catalog.row_problems import RowProblems
from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output
from nemo_gym.cli.terminal.output import ThrottledNotice
from nemo_gym.config.dataset_agents import DATASET_OWNERS
from nemo_gym.config.instances import check_server_types, instances_of, server_instances
from nemo_gym.config.keys import value_of
from nemo_gym.config.omegaconf_adapter import as_dict
from nemo_gym.config.search_roots import _augment_sys_path
from nemo_gym.config_types import DEPRECATED_UPLOAD_ROLLOUTS_KEY, ServerInstanceConfig
from nemo_gym.data.chunks import ChunkPreparer, ChunkSpec, line_span
from nemo_gym.data.collate import RowsRefused
from nemo_gym.data.sources import (
    PREFERRED_TYPES,
    DatasetSource,
    Mode,
    RegistryAccess,
    fetch_missing,
    find_sources,
    missing_sources,
    stamp_rows,
)
from nemo_gym.errors import ConfigError, NoServerInstancesError
from nemo_gym.global_config import GlobalConfigDictParser
from nemo_gym.keys import AGENTS, MODELS
from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper
from nemo_gym.rollouts.run_files import RunFiles
from nemo_gym.rollouts.run_folders import RunLabels, check_name, create_run_folder, discard_if_unused, latest_run
from nemo_gym.rollouts.run_identity import file_stat, read_identity
from nemo_gym.rollouts.store import RolloutStore

REQUEST_TIMEOUT_KEY = "request_timeout_seconds"
SAMPLING = ("temperature", "top_p", "max_output_tokens")
CHUNK_BYTES = 2 * 1024 * 1024

Driver = Callable[[RolloutCollectionConfig, DictConfig], Awaitable[Any]]
"""Collects rollouts in place of the collector: called with its options and the configuration of the servers."""


@dataclass(frozen=True)
class EvalRequest:
    """The checked options of an evaluation."""

    config: DictConfig
    collection: RolloutCollectionConfig
    driver: Driver | None
    grace: float
    """Seconds that rollouts in flight may take after an interrupt."""
    labels: RunLabels = field(default_factory=RunLabels)
    is_new_folder: bool = False
    """True if the output is in a folder that this command created."""

    @property
    def output(self) -> Path:
        return Path(self.collection.output_jsonl_fpath)

    def discard_unused_folder(self) -> None:
        """Remove the folder that was created for the run, if the run did not begin."""
        if self.is_new_folder:
            discard_if_unused(self.output)


def check_request(args: argparse.Namespace, config: DictConfig, served: DictConfig) -> EvalRequest:
    """Check everything that can be wrong before servers start; `served` is the configuration of the servers."""
    check_has_agent(served)
    labels, results = run_labels(args, served), results_folder(config)
    if labels.name:
        check_name(results, labels.name)
    target, is_new_folder = choose_output(args, config, labels)
    try:
        collection = collection_config(args, config, served, target)
        if args.last_failed:
            collection = select_last_failed(collection, latest_run(results, labels), is_new_folder=is_new_folder)
        check_agent(collection, served)
        driver = load_driver(collection.rollout_collection_driver)
        if driver is None:
            notice = ThrottledNotice()

            def show_reading(rows: int, fraction: float) -> None:
                notice(f"checking rows ({rows:,} so far): {100 * fraction:.0f} %")

            RolloutCollectionHelper(on_reading=show_reading).check(collection, served)
    except BaseException:
        if is_new_folder:
            discard_if_unused(target)
        raise
    grace = float(value_of(config, "interrupt_grace_seconds"))
    return EvalRequest(config, collection, driver, grace, labels, is_new_folder)


def check_has_agent(served: Mapping[str, Any]) -> None:
    """Raise NoServerInstancesError if there is no agent to run rows; a misspelt server type is the likely reason."""
    if any(instance.server_type == AGENTS for instance in server_instances(served).values()):
        return
    check_server_types(served)
    fix = "choose an environment with --environment NAME; `gym list environments` shows all"
    raise NoServerInstancesError("the configuration defines no agent", fix=fix)


def run_labels(args: argparse.Namespace, served: Mapping[str, Any]) -> RunLabels:
    """Return the labels of a run: the names of its environments and of its policy model, and those of the user."""
    names: list[str] = []
    for selector in ("environment", "benchmark", "resources_server"):
        names += options.given_values(args, selector)
    instances = server_instances(served)
    agents = [instance.name for instance in instances.values() if instance.server_type == AGENTS]
    policy = instances.get("policy_model") or next(
        (one for one in instances.values() if one.server_type == MODELS), None
    )
    model = served.get("policy_model_name") or (policy.implementation if policy is not None else "")
    name, tags = getattr(args, "run_label", None) or "", list(getattr(args, "run_tags", ()))
    return RunLabels(environment="+".join(names or agents[:2]), model=str(model), name=name, tags=tags)


def results_folder(config: Mapping[str, Any]) -> Path:
    """Return the folder of runs: `results_dir` of the configuration, else `results` in the working directory."""
    folder = Path(value_of(config, "results_dir"))
    return Path(RESULTS_DIR.name) if folder == RESULTS_DIR else folder


def choose_output(args: argparse.Namespace, config: DictConfig, labels: RunLabels) -> tuple[Path, bool]:
    """Return the file of --output, else the output of the run to resume, else a file in a new folder and True."""
    path = args.output_jsonl_fpath or config.get("output_jsonl_fpath")
    if path:
        return Path(path), False
    results = results_folder(config)
    is_resumed = args.resume_from_cache or args.force_resume or config.get("resume_from_cache")
    stored = latest_run(results, labels) if is_resumed else None
    if stored is not None:
        return Path(os.path.relpath(stored.output)), False
    return create_run_folder(results, labels, datetime.now().astimezone()), True


def select_last_failed(
    collection: RolloutCollectionConfig, last: RunFiles | None, *, is_new_folder: bool
) -> RolloutCollectionConfig:
    """Select the rows that have no score in the last run: the one that --output names, else `last`."""
    if not is_new_folder:
        last = RunFiles(Path(collection.output_jsonl_fpath))
    stored = read_identity(last.identity) if last is not None else None
    if last is None or stored is None:
        raise options.UsageError("there is no earlier run", where="--last-failed", fix="gym runs list")
    stat = file_stat(_resolve_under_cwd_or_install(collection.input_jsonl_fpath))
    if [stored[0].file_stat.get(key) for key in ("name", "size")] != [stat.get(key) for key in ("name", "size")]:
        problem = f"the run in {last.output} used other rows than {collection.input_jsonl_fpath}"
        raise options.UsageError(problem, where="--last-failed", fix="choose rows with --ids or --where")
    with RolloutStore(last.output) as store:
        tasks = store.unscored_tasks()
    if not tasks:
        raise options.UsageError(f"every rollout of {last.output} is scored", where="--last-failed")
    return collection.model_copy(update={"tasks": tasks})


def collection_config(
    args: argparse.Namespace, config: DictConfig, served: DictConfig, target: Path
) -> RolloutCollectionConfig:
    """Return the options (flags override keys); without --input, gather the rows of the served agents into a file."""
    check_row_flags(args)
    values: dict[str, Any] = {
        DEPRECATED_UPLOAD_ROLLOUTS_KEY: config.get(DEPRECATED_UPLOAD_ROLLOUTS_KEY),
        REQUEST_TIMEOUT_KEY: config.get(REQUEST_TIMEOUT_KEY) or served.get(REQUEST_TIMEOUT_KEY),
    }
    if args.ids is not None:
        values["ids"] = [part.strip() for part in args.ids.split(",") if part.strip()]
    if args.limit is not None and args.limit.isdecimal() and int(args.limit):  # another text is refused
        values["limit"] = int(args.limit)
    if args.num_repeats is not None:
        values["num_repeats"] = parse_repeats(args.num_repeats)
    sampling = {name: getattr(args, name) for name in SAMPLING if getattr(args, name) is not None}
    if sampling:
        values["responses_create_params"] = {**as_dict(config.get("responses_create_params")), **sampling}
    values["output_jsonl_fpath"] = str(target)
    if not args.input_jsonl_fpath and not config.get("input_jsonl_fpath"):
        values["input_jsonl_fpath"] = ""
    labels = {"responses_create_params": "--temperature, --top-p, --max-output-tokens"}
    collection = options.load_options(RolloutCollectionConfig, config, args, values, labels)
    if collection.force_resume:
        collection = collection.model_copy(update={"resume_from_cache": True})
    if collection.resume_from_cache and collection.overwrite:
        problem = "--resume keeps earlier results and --overwrite removes them"
        raise options.UsageError(problem, fix="leave one of them out")
    if not collection.input_jsonl_fpath:
        split, is_prompted = args.split or config.get("split"), collection.prompt_config is not None
        rows = gather_rows(served, split, target, prompted=is_prompted, prepare=prepare_command(args))
        per_agent = collection.limit_per_agent or count_agents_with_rows(served, split) > 1
        collection = collection.model_copy(update={"input_jsonl_fpath": str(rows), "limit_per_agent": per_agent})
    files = {"--input": collection.input_jsonl_fpath, "--prompt-config": collection.prompt_config}
    paths = {flag: _resolve_under_cwd_or_install(name) for flag, name in files.items() if name is not None}
    missing = [
        f"{flag}: {'a folder, not a file' if path.is_dir() else 'file not found'}: {files[flag]}"
        for flag, path in paths.items()
        if not path.is_file()
    ]
    if missing:
        raise options.UsageError("; ".join(missing))
    return collection


def check_row_flags(args: argparse.Namespace) -> None:
    """Raise UsageError for flags that choose rows and make no sense together."""
    if args.shuffle_seed is not None and not args.shuffle:
        raise options.UsageError("--seed is the seed of --shuffle", fix="add --shuffle")
    if args.last_failed and (args.resume_from_cache or args.force_resume):
        raise options.UsageError("--last-failed starts a new run and --resume continues one", fix="leave one out")


def parse_repeats(text: str) -> int | dict[str, int]:
    """Parse one number for all agents, `4`, or one for each, `math_agent=8,_default=2`."""
    counts: int | dict[str, int]
    try:
        pairs = [part.split("=", 1) for part in text.split(",") if part.strip()]
        counts = {name.strip(): int(count) for name, count in pairs} if "=" in text else int(text)
    except ValueError:
        counts = 0  # refused below
    if min(counts.values() if isinstance(counts, dict) else (counts,)) < 1:
        problem = f"'{text}' is neither a number from 1 nor NAME=N,NAME=N"
        raise options.UsageError(problem, where="--num-repeats", fix="4 or math=8,_default=2")
    return counts


def check_agent(collection: RolloutCollectionConfig, served: Mapping[str, Any]) -> None:
    """Check that the agent of --agent exists; it runs the rows that name no agent."""
    agents = sorted(agent.name for agent in instances_of(served, AGENTS))
    name = collection.agent_name
    if name is not None and name not in agents:
        close = get_close_matches(name, agents, n=1)
        fix = close[0] if close else f"one of {', '.join(agents)}" if agents else None
        raise options.UsageError(f"unknown agent '{name}'", where="--agent", fix=fix)


def prepare_command(args: argparse.Namespace) -> str:
    """Return the command that prepares the benchmark of this run."""
    words = ["gym", "eval", "prepare", *(word for path in args.config for word in ("--config", path))]
    return shlex.join(
        [*words, *(word for name in options.given_values(args, "benchmark") for word in ("--benchmark", name))]
    )


def load_driver(path: str | None) -> Driver | None:
    """Import the function at `module.path:function`, which replaces the collector; return None without a path."""
    if path is None:
        return None
    where, fix = "rollout_collection_driver", "name a function as module.path:function"
    _augment_sys_path()  # the driver may be a module of the working directory
    try:
        driver: Driver = pkgutil.resolve_name(path)
    except (ValueError, ImportError, AttributeError) as error:
        raise ConfigError(f"cannot import {path!r}: {error}", where=where, fix=fix) from error
    if not callable(driver):
        raise ConfigError(f"{path!r} cannot be called", where=where, fix=fix)
    return driver


def gather_rows(
    config: DictConfig, split: str | None, target: Path, *, prompted: bool, prepare: str = "gym eval prepare"
) -> Path:
    """Write the rows of all datasets of one type to a file next to the output; each row names its agent.

    With `prompted` a prompt builds the input later: rows are not checked and prompts of benchmarks are not applied.
    `prepare` is the command that makes the data of a benchmark.

    Raises:
        ConfigError: no agent has a dataset of that type, or files are missing.
        RowsRefused: (a ValueError) rows are not valid; the error lists all of them.
        OSError: a file cannot be read or written.
    """
    write_missing_rows(config, component_search_roots(), output.notify)
    instances = GlobalConfigDictParser().filter_for_server_instance_configs(config)
    dataset_type = choose_dataset_type(instances, split)
    path = target.with_suffix("") / "preprocessed_datasets" / f"{dataset_type}.jsonl"
    if config.get("reuse_existing_data_preparation") and path.is_file():
        return path
    mode: Mode = "example_validation" if dataset_type == "example" else "train_preparation"
    sources = [source for source in find_sources(instances, mode) if source.config.type == dataset_type]
    if dataset_type == "benchmark" and missing_sources(sources):
        missing = ", ".join(str(source.path) for source in missing_sources(sources))
        raise ConfigError(f"the data of the benchmark is not prepared: {missing}", fix=prepare)
    access = None
    if config.get("should_download"):
        keys = ("hf_token", "mlflow_tracking_uri", "mlflow_tracking_token")
        access = RegistryAccess(config.get("data_source") or "huggingface", *(config.get(key) for key in keys))
    sources = fetch_missing(sources, mode, access, ThrottledNotice().show_fraction)
    with whole_file(path) as rows:
        rows.writelines(stamp_rows(sources) if prompted else _checked_rows(sources))
    return path


def count_agents_with_rows(config: DictConfig, split: str | None) -> int:
    """Count the agents and resources servers whose datasets `gather_rows` uses."""
    instances = GlobalConfigDictParser().filter_for_server_instance_configs(config)
    dataset_type = choose_dataset_type(instances, split)
    owners = [instance for instance in instances if instance.SERVER_TYPE in DATASET_OWNERS]
    return sum(any(dataset.type == dataset_type for dataset in owner.datasets or []) for owner in owners)


def choose_dataset_type(instances: Sequence[ServerInstanceConfig], split: str | None) -> str:
    """Return `split`, or without it the first of PREFERRED_TYPES that an agent or a resources server declares."""
    owners = [instance for instance in instances if instance.SERVER_TYPE in DATASET_OWNERS]
    available = {dataset.type for owner in owners for dataset in owner.datasets or []}
    candidates = (split,) if split else PREFERRED_TYPES
    for dataset_type in candidates:
        if dataset_type in available:
            return dataset_type
    existing = ", ".join(sorted(available)) or "none"
    raise ConfigError(
        f"no agent has a dataset of type {' or '.join(candidates)} (there are: {existing})",
        fix="choose another --split, or name a file with --input and its agent with --agent",
    )


def _checked_rows(sources: Sequence[DatasetSource]) -> Iterator[bytes]:
    """Yield chunks of rows as agents get them; at the end raise RowsRefused if some rows are not valid."""
    preparer, notice = ChunkPreparer(measure=False), ThrottledNotice()
    refused: list[tuple[DatasetSource, RowProblems]] = []
    spans = [line_span(source.path, *source.row_range) for source in sources]
    total, done = sum(span.size for span in spans), 0
    for source, span in zip(sources, spans, strict=True):
        problems, lines_before = RowProblems(), span.lines_before
        for chunk in span.chunks(CHUNK_BYTES):
            repeats = source.config.num_repeats
            spec = ChunkSpec(chunk, source.agent, repeats, source.prompt, task_source=source.task_source)
            part = preparer.prepare(spec)
            problems.merge(part.problems, after=lines_before)
            lines_before += part.lines
            done += chunk.end - chunk.start
            notice.show_fraction("checking rows", done, total)
            yield part.written
        if problems:
            refused.append((source, problems))
    if refused:
        raise RowsRefused(refused, stopped=False)
