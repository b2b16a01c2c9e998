"""Benchmarks: find the YAML files below `benchmarks/` that declare one, and run the scripts that write their rows."""

import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import orjson
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, Field, ValidationError

from nemo_gym.catalog import prepare_subprocess
from nemo_gym.catalog.components import BENCHMARK, load_tree
from nemo_gym.catalog.rows import check_file
from nemo_gym.config.dataset_agents import dataset_owners, datasets_of, resolve_dataset_agent
from nemo_gym.config.instances import server_instances
from nemo_gym.config.load import read_source
from nemo_gym.config.omegaconf_adapter import as_plain_value
from nemo_gym.config.schema_cli import BaseNeMoGymCLIConfig
from nemo_gym.config.schema_datasets import BenchmarkDatasetConfig
from nemo_gym.config.search_roots import _augment_sys_path, component_search_roots
from nemo_gym.errors import ConfigError, ConfigInterpolationError, GymError

logger = logging.getLogger("nemo_gym.catalog")

FOLDER = "benchmarks"
CONFIG_STEM = "config"
CHECK_SECONDS = 60.0
"""Time limit for importing a script; slow code belongs in `prepare`."""
PARALLEL_CHECKS = 4
STDERR = 2
"""File descriptor for the output of scripts; stdout is for results."""


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

        The agent or the server that declares the dataset must be in this file; the other may be in an included one.
        With `strict`, the file must declare exactly one benchmark. Otherwise, return the first benchmark; None if the
        file declares none or cannot be read.

        Raises:
            ConfigError: (strict only) the file cannot be read or does not declare exactly one benchmark.
        """
        path = Path(path)
        try:
            tree = load_tree(path, component_search_roots(), strict=True)
            own_tree = read_source(path).tree
            declared = [
                (agent, key)
                for agent, key, _ in benchmark_datasets(tree)
                if agent in own_tree or key.split(".")[0] in own_tree
            ]
            if strict and len(declared) != 1:
                agents = ", ".join(agent for agent, _ in declared) or "none"
                problem = f"expected one agent with one dataset of type '{BENCHMARK}'; found: {agents}"
                raise ConfigError(problem, where=str(path))
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
    """Yield agent, key path and settings of every dataset of type `benchmark`, of agents and of resources servers.

    Raises:
        ConfigError: the agent of a dataset of a resources server is not determined.
    """
    for owner in dataset_owners(tree):
        for index, dataset in datasets_of(owner.fields):
            if dataset.get("type") == BENCHMARK:
                agent = resolve_dataset_agent(server_instances(tree), owner.name, dataset.get("agent"))
                yield agent, f"{'.'.join(owner.path)}.datasets[{index}]", dataset


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
        dataset = as_plain_value(OmegaConf.select(OmegaConf.create(dict(tree)), key_path))
        return dataset if isinstance(dataset, dict) else {}
    except OmegaConfBaseException as error:
        problem = str(error).splitlines()[0]
        raise ConfigInterpolationError(f"{key_path}: {problem}", where=str(path)) from None


def _mentions_benchmark(path: Path) -> bool:
    """Return whether a file contains the word `benchmark`. Most files do not: they are prompts and need no parsing."""
    try:
        return BENCHMARK.encode() in path.read_bytes()
    except OSError:
        return False


def _benchmark_name(relative: Path) -> str:
    """Return the name of a benchmark from the path of its file below `benchmarks/`."""
    if relative.stem == CONFIG_STEM and len(relative.parts) > 1:
        return relative.parent.as_posix()
    return relative.with_suffix("").as_posix()


# -- preparation ----------------------------------------------------------------------------------------------------


class PrepareFailed(ConfigError):
    """The script of a benchmark failed or wrote no usable rows."""


@dataclass(frozen=True)
class Preparation:
    """One benchmark to prepare: its agent, its script, and the paths that its rows may have, by precedence."""

    agent: str
    dataset: BenchmarkDatasetConfig
    script: Path
    targets: tuple[Path, ...]

    @property
    def module(self) -> str:
        """The name under which the script is imported: its path with dots."""
        return ".".join(self.dataset.prepare_script.with_suffix("").parts)

    @property
    def existing_rows(self) -> Path | None:
        """The file with the rows of an earlier preparation, if any."""
        return next((path for path in self.targets if path.is_file()), None)


@dataclass(frozen=True)
class PreparedBenchmark:
    """A benchmark whose rows exist."""

    agent: str
    name: str
    path: Path
    rows: int
    cached: bool = False


def preparations(config: Mapping[str, Any], roots: Sequence[Path]) -> list[Preparation]:
    """List the benchmarks to prepare in a resolved configuration: one for each agent that has a benchmark dataset.

    Raises:
        ConfigError: no agent has a benchmark dataset, an agent has several, or a script is missing.
    """
    by_agent: dict[str, list[Mapping[str, Any]]] = {}
    for agent, _, dataset in benchmark_datasets(config):
        by_agent.setdefault(agent, []).append(dataset)
    if not by_agent:
        fix = "choose a benchmark with --benchmark or --config"
        raise ConfigError(f"no agent has a dataset of type '{BENCHMARK}'", fix=fix)
    pending: list[Preparation] = []
    problems: list[str] = []
    for agent, datasets in by_agent.items():
        if len(datasets) > 1:
            problems.append(f"{agent} has {len(datasets)} datasets of type '{BENCHMARK}'; only one is allowed")
            continue
        try:
            pending.append(_preparation(agent, datasets[0], roots))
        except ConfigError as error:
            problems.append(f"{agent}: {error.problem}")
    if problems:
        raise ConfigError("; ".join(problems))
    return pending


def prepare_all(
    pending: Sequence[Preparation],
    options: PrepareBenchmarkConfig,
    report_done: Callable[[PreparedBenchmark], None] = lambda _: None,
) -> list[PreparedBenchmark]:
    """Check all scripts, then prepare the benchmarks, in parallel if configured; call `report_done` after each.

    Raises:
        ConfigError: a script cannot be imported, has no `prepare`, or rejects the arguments; no script was run.
        PrepareFailed: a script failed or wrote another file; the other scripts were run.
    """
    cached = [item for item in pending if options.use_cached_prepared_benchmarks and item.existing_rows]
    uncached = [item for item in pending if item not in cached]
    _check_scripts(uncached, options.prepare_script_args)
    scripts = ScriptRunner(options.prepare_timeout_seconds)
    results = scripts.run_all(uncached, options.prepare_script_args, options.num_prepare_benchmark_processes)
    problems: list[str] = []
    finished: list[PreparedBenchmark] = []
    for preparation, result in chain(((item, item.existing_rows) for item in cached), results):
        try:
            benchmark = _check_result(preparation, result, cached=preparation in cached)
        except GymError as error:
            problems.append(str(error))
        else:
            finished.append(benchmark)
            report_done(benchmark)
    if problems:
        raise PrepareFailed("; ".join(problems))
    return finished


class ScriptRunner:
    """Runs scripts, each in a separate process group with a time limit."""

    def __init__(self, timeout_seconds: float | None = None) -> None:
        self._timeout_seconds = timeout_seconds
        self._running: set[subprocess.Popen[bytes]] = set()

    def run_all(
        self, pending: Sequence[Preparation], arguments: Mapping[str, Any], parallel: int, *, only_check: bool = False
    ) -> Iterator[tuple[Preparation, Any]]:
        """Yield each preparation with the result of `run`, or the `PrepareFailed` it raised.

        Any other error, or closing the generator, kills all scripts.
        """

        def call(preparation: Preparation) -> Any:
            try:
                return self.run(preparation.script, preparation.module, arguments, only_check=only_check)
            except PrepareFailed as error:
                return error

        with ThreadPoolExecutor(parallel) as pool:
            futures = [(preparation, pool.submit(call, preparation)) for preparation in pending]
            try:
                yield from ((preparation, future.result()) for preparation, future in futures)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self.stop()
                raise

    def run(self, script: Path, module: str, arguments: Mapping[str, Any], *, only_check: bool = False) -> Any:
        """Call the script's `prepare` and return its result; its output goes to stderr.

        With `only_check`, only import the script and check that `prepare` accepts the arguments.

        Raises:
            PrepareFailed: the script failed, or exceeded the time limit and was killed.
        """
        _augment_sys_path()  # the script may import its neighbours
        request = {"script": str(script), "module": module, "arguments": dict(arguments), "path": sys.path}
        with tempfile.TemporaryFile() as reply_file:
            child = subprocess.Popen(
                [sys.executable, prepare_subprocess.__file__, str(reply_file.fileno())],
                stdin=subprocess.PIPE,
                stdout=STDERR,
                pass_fds=(reply_file.fileno(),),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
                process_group=0,
            )
            self._running.add(child)
            try:
                child.communicate(orjson.dumps({**request, "only_check": only_check}), timeout=self._timeout_seconds)
            except subprocess.TimeoutExpired:
                step = "importing the script (slow code belongs in prepare())" if only_check else "prepare()"
                problem = f"{step} took longer than {self._timeout_seconds:g} s and was killed"
                fix = "increase --timeout, or check why the script is slow"
                raise PrepareFailed(problem, where=str(script), fix=fix) from None
            finally:
                self._kill(child)
            reply_file.seek(0)
            text = reply_file.read()
        if not text:
            raise PrepareFailed(f"its process ended with status {child.returncode}", where=str(script))
        reply = orjson.loads(text)
        if "problem" in reply:
            raise PrepareFailed(reply["problem"], where=str(script))
        return reply["result"]

    def stop(self) -> None:
        """Kill every running script and its children."""
        for child in list(self._running):
            self._kill(child)

    def _kill(self, child: "subprocess.Popen[bytes]") -> None:
        """Kill a script and its children, if it has not ended."""
        if child.returncode is None:  # not reaped yet, so its process id has not been reused
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        self._running.discard(child)


def _preparation(agent: str, settings: Mapping[str, Any], roots: Sequence[Path]) -> Preparation:
    """Find the script of a benchmark and the possible paths of its rows."""
    dataset = parse_dataset(settings, "its dataset")
    relative = dataset.prepare_script
    root = next((root for root in roots if (root / relative).is_file()), None)
    if root is None:
        raise ConfigError(f"file not found: {relative} in {', '.join(map(str, roots))}")
    script = (root / relative).resolve()
    script_root = script.parent if relative.is_absolute() else root  # the script most likely writes below it
    targets = tuple(dict.fromkeys((folder / dataset.jsonl_fpath).resolve() for folder in [script_root, *roots]))
    return Preparation(agent, dataset, script, targets)


def _check_scripts(pending: Sequence[Preparation], arguments: Mapping[str, Any]) -> None:
    """Check that every script can be run; in separate processes, because an import may have side effects."""
    checks = ScriptRunner(CHECK_SECONDS).run_all(pending, arguments, PARALLEL_CHECKS, only_check=True)
    problems = [f"{item.script}: {result.problem}" for item, result in checks if isinstance(result, PrepareFailed)]
    if problems:
        raise ConfigError("; ".join([*problems, "no benchmark was prepared"]))


def _check_result(preparation: Preparation, result: Any, *, cached: bool) -> PreparedBenchmark:
    """Check that the result of a script is the configured file, and that the file has valid rows."""
    if isinstance(result, PrepareFailed):
        raise result
    if not isinstance(result, str | Path):
        raise PrepareFailed(f"prepare() returned {result!r:.80} instead of a path", where=str(preparation.script))
    path = Path(result).resolve()
    if path not in preparation.targets:
        problem = f"prepare() wrote {path}, but jsonl_fpath is {preparation.dataset.jsonl_fpath}"
        raise ConfigError(problem, where=str(preparation.script))
    if not path.is_file():
        raise PrepareFailed(f"prepare() returned {path}, which does not exist", where=str(preparation.script))
    rows, problems = check_file(path, needs_params=preparation.dataset.prompt_config is None)
    if problems:
        raise PrepareFailed("; ".join(problems.texts()), where=str(path))
    if not rows:
        raise PrepareFailed("the file has no rows", where=str(path))
    return PreparedBenchmark(preparation.agent, preparation.dataset.name, path, rows, cached)
