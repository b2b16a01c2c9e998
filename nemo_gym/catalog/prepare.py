"""Writing the rows of benchmarks: every one is checked before the script of any is run."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import orjson
from pydantic import ValidationError

from nemo_gym.catalog import script_child
from nemo_gym.catalog.benchmarks import AGENTS, BENCHMARK, PrepareBenchmarkConfig
from nemo_gym.config.schema_datasets import BenchmarkDatasetConfig
from nemo_gym.errors import ConfigError, GymError
from nemo_gym.keys import RESPONSES_CREATE_PARAMS_KEY_NAME

T = TypeVar("T")

FUNCTION = "prepare"
CHECK_SECONDS = 60.0
"""An import that takes longer does work that belongs into `prepare`."""
CHECKED_AT_ONCE = 4
STDERR = 2
"""What scripts print is talk; the standard output is for results."""


class PrepareFailed(ConfigError):
    """A benchmark's own script did not do what it is for."""


@dataclass(frozen=True)
class Preparation:
    """One benchmark to prepare: the agent it measures, its script, and the files its rows may be in."""

    agent: str
    dataset: BenchmarkDatasetConfig
    script: Path
    targets: tuple[Path, ...]

    @property
    def module(self) -> str:
        """The name under which the script is imported: its path with dots."""
        return ".".join(self.dataset.prepare_script.with_suffix("").parts)

    @property
    def cached(self) -> Path | None:
        """The rows of an earlier preparation."""
        return next((path for path in self.targets if path.is_file()), None)


@dataclass(frozen=True)
class Prepared:
    """A benchmark whose rows are there."""

    agent: str
    name: str
    path: Path
    rows: int
    cached: bool = False


def preparations(config: Mapping[str, Any], roots: Sequence[Path]) -> list[Preparation]:
    """What a resolved configuration asks to be prepared: one benchmark for each agent that has any.

    Raises:
        ConfigError: there is none, an agent has several, or a script is not there; everything at once.
    """
    found: list[Preparation] = []
    problems: list[str] = []
    for agent, datasets in _benchmarks(config):
        if len(datasets) > 1:
            problems.append(f"{agent} has {len(datasets)} datasets of type '{BENCHMARK}'; it can have one")
            continue
        try:
            found.append(_preparation(agent, datasets[0], roots))
        except ConfigError as error:
            problems.append(f"{agent}: {error.problem}")
    if problems:
        raise ConfigError("; ".join(problems))
    if not found:
        raise ConfigError(
            f"no agent has a dataset of type '{BENCHMARK}'", fix="name a benchmark with --benchmark or --config"
        )
    return found


def prepare_all(
    wanted: Sequence[Preparation], options: PrepareBenchmarkConfig, done: Callable[[Prepared], None] = lambda _: None
) -> list[Prepared]:
    """Prepare them, several at once if so configured, and tell `done` of each. Nothing is run unless all can be.

    Raises:
        ConfigError: a script cannot be imported, has no `prepare`, or does not take the arguments given.
        PrepareFailed: a script failed or wrote something else; the others were still run.
    """
    waiting = [one for one in wanted if not (options.use_cached_prepared_benchmarks and one.cached)]
    _check(waiting, options)
    problems: list[str] = []
    finished: list[Prepared] = []
    for one, result in _results(wanted, waiting, options):
        try:
            prepared = _checked(one, result, cached=one not in waiting)
        except GymError as error:
            problems.append(str(error))
        else:
            finished.append(prepared)
            done(prepared)
    if problems:
        raise PrepareFailed("; ".join(problems))
    return finished


class Scripts:
    """Runs scripts, each in a process of its own that has a time limit and takes its children along when it ends."""

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = seconds
        self._running: set[subprocess.Popen[bytes]] = set()

    def run(self, script: Path, module: str, arguments: Mapping[str, Any]) -> Any:
        """What the script's `prepare` returned. What it prints goes where our messages go.

        Raises:
            PrepareFailed: it failed, or took too long and was ended.
        """
        return self._told(script, module, arguments, f"{FUNCTION}()", only_check=False)

    def check(self, script: Path, module: str, arguments: Mapping[str, Any]) -> None:
        """See that the script can be imported and its `prepare` takes these arguments.

        Raises:
            PrepareFailed: it cannot, does not, or took too long to be imported.
        """
        self._told(script, module, arguments, f"importing it (work belongs into {FUNCTION}())", only_check=True)

    def _told(self, script: Path, module: str, arguments: Mapping[str, Any], what: str, *, only_check: bool) -> Any:
        asked = {"script": str(script), "module": module, "arguments": dict(arguments), "path": sys.path}
        request = {**asked, "only_check": only_check}
        with tempfile.TemporaryFile() as answer:
            child = subprocess.Popen(
                [sys.executable, script_child.__file__, str(answer.fileno())],
                stdin=subprocess.PIPE,
                stdout=STDERR,
                pass_fds=(answer.fileno(),),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
                process_group=0,
            )
            self._running.add(child)
            try:
                child.communicate(orjson.dumps(request), timeout=self._seconds)
            except subprocess.TimeoutExpired:
                raise PrepareFailed(
                    f"{what} was not done within {self._seconds:g} s and was ended",
                    where=str(script),
                    fix="allow more with --timeout, or find out what it waits for",
                ) from None
            finally:
                self._end(child)
            answer.seek(0)
            text = answer.read()
        if not text:
            raise PrepareFailed(f"its process ended with status {child.returncode}", where=str(script))
        told = orjson.loads(text)
        if "problem" in told:
            raise PrepareFailed(told["problem"], where=str(script))
        return told["result"]

    def stop(self) -> None:
        """End every script that is running, and what it started."""
        for child in list(self._running):
            self._end(child)

    def _end(self, child: "subprocess.Popen[bytes]") -> None:
        if child.returncode is None:  # nobody waited for it yet, so the number is still its own
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        self._running.discard(child)


def _benchmarks(config: Mapping[str, Any]) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    for agent, block in config.items():
        implementations = block.get(AGENTS) if isinstance(block, Mapping) else None
        for settings in implementations.values() if isinstance(implementations, Mapping) else ():
            datasets = settings.get("datasets") if isinstance(settings, Mapping) else None
            mine = [one for one in datasets or () if isinstance(one, Mapping) and one.get("type") == BENCHMARK]
            if mine:
                yield str(agent), mine


def _preparation(agent: str, dataset: Mapping[str, Any], roots: Sequence[Path]) -> Preparation:
    try:
        declared = BenchmarkDatasetConfig.model_validate(dict(dataset))
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors())
        raise ConfigError(f"its dataset: {told}") from None
    script = next(
        (root / declared.prepare_script for root in roots if (root / declared.prepare_script).is_file()), None
    )
    if script is None:
        raise ConfigError(f"there is no {declared.prepare_script} in {', '.join(map(str, roots))}")
    targets = tuple(
        dict.fromkeys((root / declared.jsonl_fpath).resolve() for root in [_root(script, declared), *roots])
    )
    return Preparation(agent, declared, script.resolve(), targets)


def _root(script: Path, declared: BenchmarkDatasetConfig) -> Path:
    """The root a script was found in: rows are looked for there first."""
    depth = 0 if declared.prepare_script.is_absolute() else len(declared.prepare_script.parts)
    return script.parents[depth - 1] if depth else script.parent


def _check(waiting: Sequence[Preparation], options: PrepareBenchmarkConfig) -> None:
    """See whether every script can be run; each is imported in a process of its own, for it may do anything then."""
    scripts = Scripts(CHECK_SECONDS)

    def found(one: Preparation) -> str | None:
        try:
            scripts.check(one.script, one.module, options.prepare_script_args)
        except PrepareFailed as error:
            return f"{one.script}: {error.problem}"
        return None

    problems = [problem for _, problem in _for_each(waiting, found, scripts, CHECKED_AT_ONCE) if problem is not None]
    if problems:
        raise ConfigError("; ".join([*problems, "nothing was prepared"]))


def _for_each(
    waiting: Sequence[Preparation], work: Callable[[Preparation], T], scripts: Scripts, at_once: int
) -> Iterator[tuple[Preparation, T]]:
    """Each benchmark with what `work` found, which waits for a process of its own; none is left when this ends."""
    with ThreadPoolExecutor(at_once) as pool:
        begun = [(one, pool.submit(work, one)) for one in waiting]
        try:
            yield from ((one, future.result()) for one, future in begun)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            scripts.stop()
            raise


def _results(
    wanted: Sequence[Preparation], waiting: Sequence[Preparation], options: PrepareBenchmarkConfig
) -> Iterator[tuple[Preparation, Any]]:
    """Each benchmark with what its script returned, or the error it ended with; cached ones first."""
    for one in wanted:
        if one not in waiting:
            yield one, one.cached
    scripts = Scripts(options.prepare_timeout_seconds)

    def result(one: Preparation) -> Any:
        try:
            return scripts.run(one.script, one.module, options.prepare_script_args)
        except PrepareFailed as error:
            return error

    yield from _for_each(waiting, result, scripts, options.num_prepare_benchmark_processes)


def _checked(one: Preparation, result: Any, *, cached: bool) -> Prepared:
    """The benchmark, if what its script returned is the file that the configuration names, and has rows."""
    if isinstance(result, GymError):
        raise result
    if not isinstance(result, str | Path):
        raise PrepareFailed(f"{FUNCTION}() returned {result!r:.80} instead of a path", where=str(one.script))
    path = Path(result).resolve()
    if path not in one.targets:
        raise ConfigError(
            f"{FUNCTION}() wrote {path}, but jsonl_fpath is {one.dataset.jsonl_fpath}", where=str(one.script)
        )
    return Prepared(one.agent, one.dataset.name, path, _count_rows(path, one), cached)


def _count_rows(path: Path, one: Preparation) -> int:
    """How many rows a file has; each must be an object, with an input unless a prompt makes one."""
    if not path.is_file():
        raise PrepareFailed(f"{FUNCTION}() returned {path}, which is not there", where=str(one.script))
    count = 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.isspace():
                continue
            try:
                row = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise PrepareFailed(f"not JSON: {error}", where=f"{path}:{number}") from None
            if not isinstance(row, dict):
                raise PrepareFailed("not a JSON object", where=f"{path}:{number}")
            if one.dataset.prompt_config is None and RESPONSES_CREATE_PARAMS_KEY_NAME not in row:
                raise PrepareFailed(
                    f"no {RESPONSES_CREATE_PARAMS_KEY_NAME} and no prompt_config", where=f"{path}:{number}"
                )
            count += 1
    if not count:
        raise PrepareFailed("there are no rows in it", where=str(path))
    return count
