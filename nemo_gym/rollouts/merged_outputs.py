"""Read the outputs of several runs as one, sorted by task."""

import glob
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import orjson

from nemo_gym.errors import ConfigError, ConfigPathNotFoundError
from nemo_gym.journal import RolloutReader, line_location, parse_lenient, scan_lines
from nemo_gym.rollouts.run_files import PREVIOUS_ENDING, is_output
from nemo_gym.wire.stored_rollout import RolloutId, RolloutKey, Row, mark_invalid_reward


def find_outputs(patterns: str, *, output: Path | None = None) -> list[Path]:
    """Return the files that comma-separated glob patterns match, each once and sorted.

    Left out are the side files of outputs (failures, inputs, profiles), the outputs of earlier runs that were moved
    aside, prepared datasets, and `output` itself, unless it is the only match.

    Raises:
        ConfigPathNotFoundError: nothing matches.
    """
    globs = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    matches = {Path(match) for pattern in globs for match in glob.glob(pattern, recursive=True)}  # noqa: PTH207 - patterns may be absolute
    paths = sorted(
        path
        for path in matches
        if path.is_file() and is_output(path) and not path.parent.name.endswith(PREVIOUS_ENDING)
    )
    outputs = [path for path in paths if output is None or path.resolve() != output.resolve()] or paths
    if not outputs:
        raise ConfigPathNotFoundError(f"no rollouts match {patterns!r}", fix="check input_glob")
    return outputs


class MergedOutputs:
    """The records of several outputs, read in the order of the files. Memory holds their positions, not the records."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = list(paths)
        self.lenient_lines: list[str] = []
        """Locations of lines that contain NaN or Infinity, which is not JSON."""
        self._positions: list[tuple[int, int, int, int]] = []
        """Task, rollout, number of the file in `paths`, and offset in that file, of each indexed record."""

    def records(self, *, indexed: bool = True) -> Iterator[Row]:
        """Yield every record; a torn last line is skipped. With `indexed`, `sorted_lines` can be called afterwards.

        Raises:
            ConfigError: a line is not a rollout or, if indexed, has no key.
        """
        self._positions.clear()
        self.lenient_lines.clear()
        for file_number, path in enumerate(self.paths):
            for begin, line in scan_lines(path):
                record = self._parse_record(line, path, begin)
                if record is not None:
                    if indexed:
                        self._positions.append((*_rollout_id(record, path, begin), file_number, begin))
                    yield record

    def sorted_lines(self) -> Iterator[bytes]:
        """Yield the lines of the records, sorted by (task, rollout).

        Raises:
            ConfigError: two records have the same key.
        """
        self._positions.sort()
        for (task, rollout, file, _), (next_task, next_rollout, next_file, _) in pairwise(self._positions):
            if (task, rollout) == (next_task, next_rollout):
                raise ConfigError(
                    f"task {task}, rollout {rollout} occurs twice",
                    where=", ".join(sorted({str(self.paths[file]), str(self.paths[next_file])})),
                    fix="give shards disjoint inputs with their own _ng_task_index",
                )
        with RolloutReader(self.paths) as reader:
            for _, _, file, begin in self._positions:
                line = reader.line(begin, file).removesuffix(b"\n")
                yield (_strict_line(line) if self.lenient_lines else line) + b"\n"

    def _parse_record(self, line: bytes, path: Path, begin: int) -> Row | None:
        """Parse the record on a line; None for a torn last line."""
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            record = parse_lenient(line)
            if record is None and not line.endswith(b"\n"):
                return None
            if record is None:
                raise _not_a_rollout(error, path, begin) from error
            self.lenient_lines.append(line_location(path, begin))
        if not isinstance(record, dict):
            raise _not_a_rollout("it is not an object", path, begin)
        return mark_invalid_reward(record)


def _strict_line(line: bytes) -> bytes:
    """Return a line unchanged if it is JSON, else its record encoded as JSON (without NaN and Infinity)."""
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return orjson.dumps(parse_lenient(line))
    return line


def _rollout_id(record: Row, path: Path, begin: int) -> RolloutId:
    try:
        return RolloutKey.of(record).rollout_id
    except ValueError as error:
        raise _not_a_rollout(error, path, begin) from error


def _not_a_rollout(reason: object, path: Path, begin: int) -> ConfigError:
    where = line_location(path, begin)
    return ConfigError(f"this line is not a rollout: {reason}", where=where, fix="remove or mend the line")
