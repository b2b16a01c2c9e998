"""The profile of a run, read from its files: inputs and rollouts each once, one line at a time."""

from collections.abc import Iterator
from pathlib import Path

import orjson

from nemo_gym.errors import ConfigPathNotFoundError
from nemo_gym.metrics.profile import Profile
from nemo_gym.rollouts.job import Row
from nemo_gym.rollouts.jsonl import damaged, read_rows, row_of


class RunProfile:
    """What was asked for beside what came out. Memory is the numbers of the rollouts and where each task's input is."""

    def __init__(self, inputs: Path, rollouts: Path) -> None:
        """Read both files.

        Raises:
            ConfigPathNotFoundError: one is not there.
            StoreError: a line is damaged.
            RolloutRowsError: the same rollout is there twice.
        """
        missing = [path for path in (inputs, rollouts) if not path.is_file()]
        if missing:
            raise ConfigPathNotFoundError(
                "there is no such file", where=", ".join(map(str, missing)), fix="check --inputs and --rollouts"
            )
        self.profile = Profile()
        self._inputs = inputs
        self._begin_of: dict[int, int] = {}
        for begin, row in rows_with_offsets(inputs):
            self._begin_of.setdefault(self.profile.expect(row), begin)
        for row in read_rows(rollouts):
            self.profile.add(row)

    def groups(self) -> Iterator[Row]:
        """One entry per task that has a scored rollout, in order, with the input row it is about."""
        with self._inputs.open("rb") as file:

            def sample_of(task: int) -> Row:
                file.seek(self._begin_of[task])
                row: Row = orjson.loads(file.readline())
                return row

            yield from self.profile.groups(sample_of)


def rows_with_offsets(path: Path) -> Iterator[tuple[int, Row]]:
    """The rows of a file, each with the offset where its line begins. A torn last line is left out.

    Raises:
        StoreError: a line that is not the last one is damaged.
    """
    begin = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            row = row_of(line)
            if row is not None:
                yield begin, row
            elif line.endswith(b"\n") and not line.isspace():
                raise damaged(f"{path}:{number}")
            begin += len(line)
