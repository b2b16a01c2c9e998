"""Outputs of several runs as one, in the order of their tasks."""

import glob
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import orjson

from nemo_gym.errors import ConfigError, ConfigPathNotFoundError
from nemo_gym.rollouts.job import Row
from nemo_gym.rollouts.key import RolloutKey
from nemo_gym.rollouts.paths import FAILURES_ENDING, MATERIALIZED_ENDING


def find_shards(patterns: str, *, output: Path) -> list[Path]:
    """The files that comma-separated glob patterns match, each once and sorted.

    The output itself and the files that lie beside outputs (failures, inputs) are left out.

    Raises:
        ConfigPathNotFoundError: nothing matches.
    """
    wanted = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    matched = {Path(match) for pattern in wanted for match in glob.glob(pattern, recursive=True)}  # noqa: PTH207 - patterns may be absolute
    shards = sorted(
        path
        for path in matched
        if path.is_file()
        and path.resolve() != output.resolve()
        and not path.name.endswith((FAILURES_ENDING, MATERIALIZED_ENDING))
    )
    if not shards:
        raise ConfigPathNotFoundError(f"no rollouts match {patterns!r}", fix="check input_glob")
    return shards


def merged(shards: Sequence[Path]) -> Iterator[Row]:
    """The records of all shards sorted by (task, rollout). Memory is an index of them, not the records.

    Raises:
        ConfigError: a record has no place, or two have the same one.
    """
    index: list[tuple[int, int, int, int]] = []
    for number, path in enumerate(shards):
        with path.open("rb") as file:
            offset = 0
            for line in file:
                if line.endswith(b"\n") or _parses(line):  # what a crash tore is not a record
                    index.append((*_place(line, path), number, offset))
                offset += len(line)
    index.sort()
    for before, after in pairwise(index):
        if before[:2] == after[:2]:
            raise ConfigError(
                f"task {after[0]}, rollout {after[1]} is there twice",
                where=f"{shards[before[2]]}, {shards[after[2]]}",
                fix="give shards disjoint inputs with their own _ng_task_index",
            )
    files = [path.open("rb") for path in shards]
    try:
        for _, _, number, offset in index:
            files[number].seek(offset)
            yield orjson.loads(files[number].readline())
    finally:
        for opened in files:
            opened.close()


def _place(line: bytes, path: Path) -> tuple[int, int]:
    try:
        return RolloutKey.of(orjson.loads(line)).place
    except (ValueError, AttributeError) as error:  # JSONDecodeError is a ValueError
        raise ConfigError(f"a line is not a rollout: {error}", where=str(path)) from error


def _parses(line: bytes) -> bool:
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return True
