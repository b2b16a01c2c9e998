"""Public entry point: `evaluate` runs an evaluation from Python and returns its results.

```python
result = nemo_gym.evaluate("arithmetic", "gpt-4o-mini", limit=20, num_repeats=4)
result.scores["arithmetic_simple_agent"]["reward"]   # {"mean": 0.95, "ci95": [0.83, 0.99], …}
result.to_pandas()
```

The evaluation runs in a separate process, so it works in scripts, tests and notebooks, with or without an event loop.
The process ends with this one.
"""

import asyncio
import importlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.errors import ConfigError, GymError
from nemo_gym.journal import read_rows
from nemo_gym.metrics.column_statistics import rollout_numbers
from nemo_gym.rollouts.run_files import aggregate_metrics_path_for, failures_path_for
from nemo_gym.rollouts.store import RolloutStore
from nemo_gym.wire.stored_rollout import Row, StoredRollout

INCOMPLETE = 1
"""Exit status of an evaluation in which some rollouts have no score."""
STOP_SECONDS = 60.0
"""Longest time that an interrupted evaluation takes to store its results and to stop its servers."""
PROGRAM = (
    "import os, sys; from nemo_gym.processes import exit_with_parent; exit_with_parent(); "
    "parent = int(sys.argv.pop(1)); os.getppid() == parent or sys.exit(1); "
    "from nemo_gym.cli.main import main; sys.exit(main())"
)
"""Runs a command of `gym` that ends with its parent, whose process id is the first argument."""

Names = str | Sequence[str]


class EvaluationFailed(GymError):
    """An evaluation could not run; the message is what `gym eval run` printed."""


@dataclass(frozen=True)
class EvaluationResult:
    """The results of an evaluation. Rollouts are read from the output when they are first used."""

    output: Path
    """The file of the scored rollouts; the other files of the run are next to it."""
    report: dict[str, Any]
    """The report of `gym eval run --json`."""

    @property
    def is_complete(self) -> bool:
        """True if every rollout is scored."""
        return not self.report["missing"]

    @property
    def mean_reward(self) -> float | None:
        value: float | None = self.report["mean_reward"]
        return value

    @cached_property
    def scores(self) -> dict[str, dict[str, Any]]:
        """By agent and metric: mean, standard error and 95 % interval (`ci95`); for the reward also pass@k."""
        path = aggregate_metrics_path_for(self.output)
        entries = orjson.loads(path.read_bytes()) if path.exists() else []
        return {entry["agent_ref"]["name"]: entry["scores"] for entry in entries}

    @cached_property
    def rollouts(self) -> list[Row]:
        """The records of the scored rollouts, by task and repeat."""
        return sorted(RolloutStore(self.output).records(), key=lambda record: StoredRollout(record).key)

    @cached_property
    def failures(self) -> list[Row]:
        """The records of failed attempts, in the order of their end."""
        path = failures_path_for(self.output)
        return list(read_rows(path)) if path.exists() else []

    def to_pandas(self) -> Any:
        """Return `table_rows` as a pandas.DataFrame."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError as error:
            raise ConfigError("pandas is not installed", fix="pip install pandas") from error
        return pandas.DataFrame(self.table_rows())

    def table_rows(self) -> list[dict[str, Any]]:
        """Return a row for each scored rollout and each failed attempt: key, agent, outcome and all numbers."""
        return [_table_row(record) for record in (*self.rollouts, *self.failures)]


def _table_row(record: Row) -> dict[str, Any]:
    stored = StoredRollout(record)
    outcome = stored.failure_class or "scored"
    key = stored.key
    facts = {"task": key.task, "repeat": key.rollout, "attempt": key.attempt, "agent": stored.agent, "outcome": outcome}
    return {**facts, **rollout_numbers(record), "seconds": stored.seconds}


def evaluate(
    environment: Names | None = None,
    model: str | None = None,
    *,
    model_type: str | None = "openai_model",
    rows: str | Path | Iterable[Mapping[str, Any]] | None = None,
    output: str | Path | None = None,
    overrides: Sequence[str] = (),
    show_progress: bool = False,
    **options: Any,
) -> EvaluationResult:
    """Evaluate a model on an environment, as `gym eval run` does, and return the results.

    `model` is the name of the model, `rows` a file or a list of rows in place of the environment's own. `options` are
    the other flags: `limit=20`, `num_repeats=4`, `where="level > 3"`, `benchmark="…"`, `resume=True`,
    `config=["a.yaml", "b.yaml"]`, `model_url`, `model_api_key`; `overrides` are those of the configuration (`+a.b=1`).

    Raises:
        EvaluationFailed: the evaluation could not run; rollouts without a score are no error.
    """
    with _command(environment, model, model_type, rows, output, overrides, show_progress, options) as command:
        stderr = None if show_progress else subprocess.PIPE
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr) as process:
            try:
                out, log = process.communicate()
            except BaseException:
                _stop(process)
                raise
        return _result(process.returncode, out, log)


async def evaluate_async(
    environment: Names | None = None,
    model: str | None = None,
    *,
    model_type: str | None = "openai_model",
    rows: str | Path | Iterable[Mapping[str, Any]] | None = None,
    output: str | Path | None = None,
    overrides: Sequence[str] = (),
    show_progress: bool = False,
    **options: Any,
) -> EvaluationResult:
    """Do the same as `evaluate` without blocking the event loop. A cancellation stops the evaluation."""
    with _command(environment, model, model_type, rows, output, overrides, show_progress, options) as command:
        stderr = None if show_progress else asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=stderr)
        try:
            out, log = await process.communicate()
        except BaseException:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), STOP_SECONDS)
            if process.returncode is None:
                process.kill()
            raise
        assert process.returncode is not None
        return _result(process.returncode, out, log)


@contextmanager
def _command(
    environment: Names | None,
    model: str | None,
    model_type: str | None,
    rows: Any,
    output: str | Path | None,
    overrides: Sequence[str],
    show_progress: bool,
    options: Mapping[str, Any],
) -> Iterator[list[str]]:
    """Yield the command of an evaluation. Temporary files hold rows and the key, which other users must not see."""
    with tempfile.TemporaryDirectory(prefix="nemo-gym-evaluate-") as folder:
        flags = dict(options)
        if (key := flags.pop("model_api_key", None)) is not None:
            flags["config"] = [*_text_list(flags.get("config")), str(_write_key(Path(folder), key))]
        if rows is not None and not isinstance(rows, str | Path):
            path = Path(folder, "rows.jsonl")
            path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
            rows = path
        flags |= {"environment": environment, "model": model, "model_type": model_type, "input": rows, "output": output}
        words = [word for name, value in flags.items() for word in _flag_words(name, value)]
        quiet = [] if show_progress else ["--quiet"]
        yield [sys.executable, "-c", PROGRAM, str(os.getpid()), "eval", "run", "--json", *quiet, *words, *overrides]


def _write_key(folder: Path, key: str) -> Path:
    path = folder / "key.yaml"  # the folder is readable by this user only
    path.write_bytes(b"policy_api_key: " + orjson.dumps(key) + b"\n")
    return path


def _text_list(value: Any) -> list[str]:
    return [] if value is None else [str(value)] if isinstance(value, str | Path) else [str(item) for item in value]


def _flag_words(name: str, value: Any) -> list[str]:
    """Return the words of a flag: none for None and False, the flag alone for True, repeated for a list."""
    flag = "--" + name.replace("_", "-")
    if value is True:
        return [flag]
    if isinstance(value, list | tuple) and name == "ids":
        value = ",".join(map(str, value))
    values = [] if value is False else [value] if isinstance(value, int | float) else _text_list(value)
    return [word for item in values for word in (flag, str(item))]


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Interrupt an evaluation, wait until it has stored its results, and end it if it does not end."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def _result(status: int, out: bytes, log: bytes | None) -> EvaluationResult:
    """Return the results in the output of the command.

    Raises:
        EvaluationFailed: the command reports an error.
    """
    try:
        report = orjson.loads(out)
    except orjson.JSONDecodeError:
        text = (log or b"").decode("utf-8", errors="replace").strip()
        raise EvaluationFailed(text.removeprefix("Error: ") or f"gym eval run ended with status {status}") from None
    error = report.get("error")
    if status > INCOMPLETE or "rollouts" not in report:
        if isinstance(error, dict):
            raise EvaluationFailed(error["problem"], where=error["where"], fix=error["fix"])
        raise EvaluationFailed(str(error or f"gym eval run ended with status {status}"))
    return EvaluationResult(Path(report["rollouts"]).absolute(), report)
