"""Write and read rollouts with their samples: one row for each sample, as JSON lines, Parquet or an Arrow table.

A row has the fields of its sample and those of its rollout. A rollout without samples has one row without tokens.
"""

import importlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.data.export_files import arrow_table, import_pyarrow, writing_export
from nemo_gym.errors import GymError
from nemo_gym.training.types import Rollout, Sample, Span, VersionRange

_JSON_COLUMNS = ("spans", "routed_experts", "reward_components", "left_out", "timings")


class SampleFileError(GymError, ValueError):
    """A file of samples cannot be read."""


def sample_rows(rollout: Rollout) -> list[dict[str, Any]]:
    """Return the rows of a rollout: one for each sample, or one without tokens."""
    fields = {
        "rollout_id": rollout.rollout_id,
        "task": rollout.task,
        "group": rollout.group,
        "attempt": rollout.attempt,
        "agent": rollout.agent,
        "outcome": rollout.outcome,
        "reward": rollout.reward,
        "reward_components": dict(rollout.reward_components),
        "step_rewards": rollout.step_rewards,
        "trainable": rollout.trainable,
        "why_not": rollout.why_not,
        "breaks": rollout.breaks,
        "left_out": dict(rollout.left_out),
        "timings": dict(rollout.timings),
    }
    empty = Sample([], [], [], 0, [])
    return [
        {
            **fields,
            "sample": number if rollout.samples else None,
            "trace": sample.trace,
            "token_ids": sample.token_ids,
            "loss_mask": sample.loss_mask,
            "logprobs": sample.logprobs,
            "prompt_len": sample.prompt_len,
            "spans": [asdict(span) for span in sample.spans],
            "routed_experts": sample.routed_experts,
        }
        for number, sample in enumerate(rollout.samples or [empty])
    ]


def rollouts_from_rows(rows: Iterable[Mapping[str, Any]]) -> Iterator[Rollout]:
    """Build rollouts from rows; the rows of a rollout follow each other.

    Raises:
        SampleFileError: a row is not the row of a sample.
    """
    numbered = enumerate(rows, start=1)
    for _, group in groupby(numbered, key=lambda pair: (pair[1].get("rollout_id"), pair[1].get("attempt"))):
        members = list(group)
        number = members[0][0]
        try:
            yield _rollout_from_rows([row for _, row in members])
        except (KeyError, TypeError, ValueError) as error:
            problem = f"row {number} is not the row of a sample: {type(error).__name__} {error}"
            raise SampleFileError(problem) from None


def write_samples(path: str | Path, rollouts: Iterable[Rollout]) -> int:
    """Write rollouts to a file that ends in .jsonl or .parquet; return the number of rows.

    Raises:
        ConfigError: pyarrow is missing (Parquet only).
    """
    rows = 0
    with writing_export(Path(path)) as write:
        for rollout in rollouts:
            for row in sample_rows(rollout):
                write(row)
                rows += 1
    return rows


def read_samples(path: str | Path) -> Iterator[Rollout]:
    """Read the rollouts of a file that `write_samples` wrote. Their `result` is empty.

    Raises:
        SampleFileError: the file has a row that is not the row of a sample.
        ConfigError: pyarrow is missing (Parquet only).
    """
    path = Path(path)
    try:
        yield from rollouts_from_rows(_parquet_rows(path) if path.suffix == ".parquet" else _json_rows(path))
    except SampleFileError as error:
        raise SampleFileError(error.problem, where=str(path)) from None


def samples_table(rollouts: Iterable[Rollout]) -> Any:
    """Return rollouts as a `pyarrow.Table` with the columns of the files.

    Raises:
        ConfigError: pyarrow is missing.
    """
    return arrow_table(row for rollout in rollouts for row in sample_rows(rollout))


def _json_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                row = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise SampleFileError(f"line {number} is not JSON: {error}") from None
            if not isinstance(row, dict):
                raise SampleFileError(f"line {number} is not an object")
            yield row


def _parquet_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a Parquet file, one row group in memory at a time."""
    import_pyarrow()
    parquet = importlib.import_module("pyarrow.parquet")
    with parquet.ParquetFile(path) as file:
        for number in range(file.num_row_groups):
            for row in file.read_row_group(number).to_pylist():
                for name in _JSON_COLUMNS:
                    row[name] = orjson.loads(row[name]) if isinstance(row.get(name), str) else row.get(name)
                yield row


def _rollout_from_rows(rows: list[Mapping[str, Any]]) -> Rollout:
    first = rows[0]
    return Rollout(
        rollout_id=first["rollout_id"],
        task=first["task"],
        group=first["group"],
        attempt=first["attempt"],
        agent=first["agent"],
        outcome=first["outcome"],
        reward=first["reward"],
        samples=[_sample_from_row(row) for row in rows if row["sample"] is not None],
        trainable=first["trainable"],
        why_not=first["why_not"],
        reward_components=first["reward_components"] or {},
        step_rewards=first["step_rewards"] or [],
        breaks=first["breaks"],
        left_out=first["left_out"] or {},
        timings=first["timings"] or {},
    )


def _sample_from_row(row: Mapping[str, Any]) -> Sample:
    spans = [Span(**(span | {"weight_version": _version(span["weight_version"])})) for span in row["spans"]]
    return Sample(
        row["token_ids"],
        row["loss_mask"],
        row["logprobs"],
        row["prompt_len"],
        spans,
        row["rollout_id"],
        row["trace"],
        row["routed_experts"],
    )


def _version(value: Any) -> VersionRange | None:
    return None if value is None else (value[0], value[1])
