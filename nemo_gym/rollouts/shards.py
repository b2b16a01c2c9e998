"""Outputs of several runs as one, in the order of their tasks."""

import glob
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import orjson

from nemo_gym.errors import ConfigError, ConfigPathNotFoundError
from nemo_gym.rollouts.foreign import foreign_row
from nemo_gym.rollouts.job import Row
from nemo_gym.rollouts.key import RolloutKey
from nemo_gym.rollouts.paths import FAILURES_ENDING, MATERIALIZED_ENDING, PREVIOUS_ENDING

PROFILE_ENDING = "_reward_profiling.jsonl"
COLLATED_FOLDER = "preprocessed_datasets"


def find_shards(patterns: str, *, output: Path | None = None) -> list[Path]:
    """The files that comma-separated glob patterns match, each once and sorted.

    Left out are the files that lie beside outputs (failures, inputs, profiles), earlier runs that were moved aside,
    and `output` itself, unless it is the only one.

    Raises:
        ConfigPathNotFoundError: nothing matches.
    """
    wanted = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    matched = {Path(match) for pattern in wanted for match in glob.glob(pattern, recursive=True)}  # noqa: PTH207 - patterns may be absolute
    found = sorted(path for path in matched if path.is_file() and not _belongs_to_another(path))
    shards = [path for path in found if output is None or path.resolve() != output.resolve()] or found
    if not shards:
        raise ConfigPathNotFoundError(f"no rollouts match {patterns!r}", fix="check input_glob")
    return shards


def _belongs_to_another(path: Path) -> bool:
    return (
        path.name.endswith((FAILURES_ENDING, MATERIALIZED_ENDING, PROFILE_ENDING))
        or path.parent.name.endswith(PREVIOUS_ENDING)
        or path.parent.name == COLLATED_FOLDER
    )


class Shards:
    """Reads every record once, in the order of the files, and remembers where it is; a record is not kept."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = list(paths)
        self.foreign: list[str] = []
        """Where lines are that have NaN or Infinity in them, which is no JSON."""
        self._index: list[tuple[int, int, int, int]] = []

    def records(self, *, indexed: bool = True) -> Iterator[Row]:
        """Every record. What a crash tore at the end of a file is none. Only `indexed` ones can be sorted afterwards.

        Raises:
            ConfigError: a line is not a rollout, or, if it matters, does not say which.
        """
        self._index.clear()
        self.foreign.clear()
        for number, path in enumerate(self.paths):
            offset = 0
            with path.open("rb") as file:
                for place, line in enumerate(file, start=1):
                    record = self._record(line, path, place)
                    if record is not None:
                        if indexed:
                            self._index.append((*_place(record, path, place), number, offset))
                        yield record
                    offset += len(line)

    def sorted_lines(self) -> Iterator[bytes]:
        """The lines of what `records` gave, sorted by (task, rollout).

        Raises:
            ConfigError: two records have the same place.
        """
        self._index.sort()
        for before, after in pairwise(self._index):
            if before[:2] == after[:2]:
                raise ConfigError(
                    f"task {after[0]}, rollout {after[1]} is there twice",
                    where=", ".join(sorted({str(self.paths[before[2]]), str(self.paths[after[2]])})),
                    fix="give shards disjoint inputs with their own _ng_task_index",
                )
        files = [path.open("rb") for path in self.paths]
        try:
            for _, _, number, offset in self._index:
                files[number].seek(offset)
                line = files[number].readline().removesuffix(b"\n")
                row = foreign_row(line) if self.foreign else None
                yield (line if row is None else orjson.dumps(row)) + b"\n"
        finally:
            for opened in files:
                opened.close()

    def _record(self, line: bytes, path: Path, number: int) -> Row | None:
        """The record on a line; None if there is none, or if the file was cut here."""
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            if line.isspace() or not line.endswith(b"\n"):
                return None
            record = foreign_row(line)
            if record is None:
                raise ConfigError(
                    f"this line is not a rollout: {error}", where=f"{path}:{number}", fix="remove or mend the line"
                ) from error
            self.foreign.append(f"{path}:{number}")
        if not isinstance(record, dict):
            raise ConfigError("this line is not a rollout: it is not an object", where=f"{path}:{number}")
        return record


def merged(paths: Sequence[Path]) -> Iterator[Row]:
    """The records of all shards sorted by (task, rollout). Memory is an index of them, not the records.

    Raises:
        ConfigError: a record has no place, or two have the same one.
    """
    shards = Shards(paths)
    deque(shards.records(), maxlen=0)
    return map(orjson.loads, shards.sorted_lines())


def _place(record: Row, path: Path, number: int) -> tuple[int, int]:
    try:
        return RolloutKey.of(record).place
    except ValueError as error:
        raise ConfigError(f"this line is not a rollout: {error}", where=f"{path}:{number}") from error
