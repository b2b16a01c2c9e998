"""Prepare benchmarks: check all preparation scripts, then run them to write the rows."""

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

from nemo_gym.catalog import prepare_subprocess
from nemo_gym.catalog.benchmarks import PrepareBenchmarkConfig, benchmark_datasets, parse_dataset
from nemo_gym.catalog.components import BENCHMARK
from nemo_gym.catalog.rows import check_file
from nemo_gym.config.schema_datasets import BenchmarkDatasetConfig
from nemo_gym.errors import ConfigError, GymError

FUNCTION = "prepare"
CHECK_SECONDS = 60.0
"""Time limit for importing a script; slow code belongs in `prepare`."""
PARALLEL_CHECKS = 4
STDERR = 2
"""File descriptor for the output of scripts; stdout is for results."""


class PrepareFailed(ConfigError):
    """The script of a benchmark failed or wrote no usable rows."""


@dataclass(frozen=True)
class Preparation:
    """One benchmark to prepare: its agent, its script, and the possible paths of its rows."""

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
    """List the benchmarks of a resolved configuration: one for each agent that has a benchmark dataset.

    Raises:
        ConfigError: no agent has a benchmark dataset, an agent has several, or a script is missing.
    """
    by_agent: dict[str, list[Mapping[str, Any]]] = {}
    for agent, _, dataset in benchmark_datasets(config):
        by_agent.setdefault(agent, []).append(dataset)
    if not by_agent:
        raise ConfigError(
            f"no agent has a dataset of type '{BENCHMARK}'", fix="choose a benchmark with --benchmark or --config"
        )
    jobs: list[Preparation] = []
    problems: list[str] = []
    for agent, datasets in by_agent.items():
        if len(datasets) > 1:
            problems.append(f"{agent} has {len(datasets)} datasets of type '{BENCHMARK}'; only one is allowed")
            continue
        try:
            jobs.append(_preparation(agent, datasets[0], roots))
        except ConfigError as error:
            problems.append(f"{agent}: {error.problem}")
    if problems:
        raise ConfigError("; ".join(problems))
    return jobs


def prepare_all(
    jobs: Sequence[Preparation],
    options: PrepareBenchmarkConfig,
    done: Callable[[PreparedBenchmark], None] = lambda _: None,
) -> list[PreparedBenchmark]:
    """Check all scripts, then prepare the benchmarks, in parallel if configured; call `done` after each.

    Raises:
        ConfigError: a script cannot be imported, has no `prepare`, or rejects the arguments; no script was run.
        PrepareFailed: a script failed or wrote another file; the other scripts were run.
    """
    cached = [job for job in jobs if options.use_cached_prepared_benchmarks and job.existing_rows]
    uncached = [job for job in jobs if job not in cached]
    _check_scripts(uncached, options.prepare_script_args)
    scripts = Scripts(options.prepare_timeout_seconds)
    results = scripts.run_all(uncached, options.prepare_script_args, options.num_prepare_benchmark_processes)
    problems: list[str] = []
    finished: list[PreparedBenchmark] = []
    for job, result in chain(((job, job.existing_rows) for job in cached), results):
        try:
            benchmark = _check_result(job, result, cached=job in cached)
        except GymError as error:
            problems.append(str(error))
        else:
            finished.append(benchmark)
            done(benchmark)
    if problems:
        raise PrepareFailed("; ".join(problems))
    return finished


class Scripts:
    """Runs scripts, each in a separate process group with a time limit."""

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = seconds
        self._running: set[subprocess.Popen[bytes]] = set()

    def run_all(
        self, jobs: Sequence[Preparation], arguments: Mapping[str, Any], parallel: int, *, only_check: bool = False
    ) -> Iterator[tuple[Preparation, Any]]:
        """Yield each job with the result of `run` or the `PrepareFailed` it raised; kill all scripts on an error."""

        def call(job: Preparation) -> Any:
            try:
                return self.run(job.script, job.module, arguments, only_check=only_check)
            except PrepareFailed as error:
                return error

        with ThreadPoolExecutor(parallel) as pool:
            futures = [(job, pool.submit(call, job)) for job in jobs]
            try:
                yield from ((job, future.result()) for job, future in futures)
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
                child.communicate(orjson.dumps({**request, "only_check": only_check}), timeout=self._seconds)
            except subprocess.TimeoutExpired:
                step = f"importing the script (slow code belongs in {FUNCTION}())" if only_check else f"{FUNCTION}()"
                raise PrepareFailed(
                    f"{step} took longer than {self._seconds:g} s and was killed",
                    where=str(script),
                    fix="increase --timeout, or check why the script is slow",
                ) from None
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
    # The root of the script has precedence for the rows.
    script = (root / relative).resolve()
    first = script.parent if relative.is_absolute() else root
    targets = tuple(dict.fromkeys((folder / dataset.jsonl_fpath).resolve() for folder in [first, *roots]))
    return Preparation(agent, dataset, script, targets)


def _check_scripts(jobs: Sequence[Preparation], arguments: Mapping[str, Any]) -> None:
    """Check that every script can be run; in separate processes, because an import may have side effects."""
    checks = Scripts(CHECK_SECONDS).run_all(jobs, arguments, PARALLEL_CHECKS, only_check=True)
    problems = [f"{job.script}: {result.problem}" for job, result in checks if isinstance(result, PrepareFailed)]
    if problems:
        raise ConfigError("; ".join([*problems, "no benchmark was prepared"]))


def _check_result(job: Preparation, result: Any, *, cached: bool) -> PreparedBenchmark:
    """Check that a script returned the configured file, and that the file has valid rows."""
    if isinstance(result, PrepareFailed):
        raise result
    if not isinstance(result, str | Path):
        raise PrepareFailed(f"{FUNCTION}() returned {result!r:.80} instead of a path", where=str(job.script))
    path = Path(result).resolve()
    if path not in job.targets:
        raise ConfigError(
            f"{FUNCTION}() wrote {path}, but jsonl_fpath is {job.dataset.jsonl_fpath}", where=str(job.script)
        )
    if not path.is_file():
        raise PrepareFailed(f"{FUNCTION}() returned {path}, which does not exist", where=str(job.script))
    rows, problems = check_file(path, needs_params=job.dataset.prompt_config is None)
    if problems:
        raise PrepareFailed("; ".join(problems.texts()), where=str(path))
    if not rows:
        raise PrepareFailed("the file has no rows", where=str(path))
    return PreparedBenchmark(job.agent, job.dataset.name, path, rows, cached)
