"""Which rollouts a file holds: task, reward and place of each, a hundred bytes or so however long the rollout is."""

import math
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from nemo_gym.data.hub_transfer import local_file
from nemo_gym.data.problems import DataError
from nemo_gym.keys import (
    AGENT_REF_KEY_NAME,
    NG_FAILURE_CLASS_KEY,
    NG_NO_PERSIST_KEY,
    RESPONSES_CREATE_PARAMS_KEY_NAME,
    ROLLOUT_INDEX_KEY_NAME,
    TASK_INDEX_KEY_NAME,
)

Record = dict[str, Any]
Watch = Callable[[int, int | None], None]

FAILED, UNSCORED, MASKED, REPEATED = "failed", "without a finite reward", "masked by the agent", "given twice"
MASK_KEY = "mask_sample"


@dataclass
class Index:
    """The scored rollouts of some files, each a number; and what else the files hold."""

    files: list[Path]
    tasks: "array[int]" = field(default_factory=lambda: array("q"))
    """Which task each belongs to; tasks are numbered in the order they are met."""
    rollouts: "array[int]" = field(default_factory=lambda: array("q"))
    rewards: "array[float]" = field(default_factory=lambda: array("d"))
    sources: "array[int]" = field(default_factory=lambda: array("i"))
    places: "array[int]" = field(default_factory=lambda: array("q"))
    task_numbers: list[int] = field(default_factory=list)
    """What the file calls each task; -1 if it does not say."""
    left_out: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.tasks)

    def groups(self) -> Iterator[list[int]]:
        """The rollouts of each task, best first; of equal ones, the earlier first. One given twice counts once.

        Tasks come in the order of their numbers, so that the order in which rollouts finished changes nothing.
        """
        order = sorted(range(len(self)), key=self._position)
        for _, group in groupby(order, key=self.tasks.__getitem__):
            single: dict[int, int] = {}
            for number in group:
                rollout = self.rollouts[number]
                if single.setdefault(rollout if rollout >= 0 else ~number, number) != number:
                    self.left_out[REPEATED] += 1
            yield sorted(single.values(), key=lambda n: (-self.rewards[n], self.rollouts[n], n))

    def _position(self, rollout: int) -> tuple[int, int, int]:
        task = self.tasks[rollout]
        number = self.task_numbers[task]
        return self.sources[rollout], number if number >= 0 else sys.maxsize, task


def read_index(files: Sequence[str | Path], watch: Watch) -> Index:
    """Look through files of rollouts.

    Raises:
        ConfigPathNotFoundError: a file is not there.
        DataError: a line is damaged. A torn last line, which a crash leaves, is not.
    """
    index = Index([local_file(path) for path in files])
    total = sum(path.stat().st_size for path in index.files)
    known: dict[tuple[int, str, Any], int] = {}
    done = 0
    for source, path in enumerate(index.files):
        for place, record in _records(path):
            watch(done + place, total)
            reason = _left_out(record)
            if reason:
                index.left_out[reason] += 1
            else:
                _add(index, record, source, place, known)
        done += path.stat().st_size
    return index


def _records(path: Path) -> Iterator[tuple[int, Record]]:
    place = 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.isspace():
                try:
                    record = orjson.loads(line)
                except orjson.JSONDecodeError as error:
                    if not line.endswith(b"\n"):
                        return
                    raise DataError(f"the line is not JSON: {error}", where=f"{path}:{number}") from None
                if not isinstance(record, dict):
                    raise DataError("the line is not a JSON object", where=f"{path}:{number}")
                yield place, record
            place += len(line)


def _left_out(record: Mapping[str, Any]) -> str | None:
    if record.get(NG_FAILURE_CLASS_KEY) is not None or record.get(NG_NO_PERSIST_KEY):
        return FAILED
    reward = record.get("reward")
    if not isinstance(reward, int | float) or not math.isfinite(reward):
        return UNSCORED
    return MASKED if record.get(MASK_KEY) else None


def _add(index: Index, record: Record, source: int, place: int, known: dict[tuple[int, str, Any], int]) -> None:
    number, rollout = record.get(TASK_INDEX_KEY_NAME), record.get(ROLLOUT_INDEX_KEY_NAME)
    # Without a number, rollouts of equal requests belong together.
    what = number if isinstance(number, int) else hash(orjson.dumps(record.get(RESPONSES_CREATE_PARAMS_KEY_NAME)))
    task = known.setdefault((source, agent_of(record) or "", what), len(known))
    if task == len(index.task_numbers):
        index.task_numbers.append(number if isinstance(number, int) else -1)
    index.tasks.append(task)
    index.rollouts.append(rollout if isinstance(rollout, int) else -1)
    index.rewards.append(float(record["reward"]))
    index.sources.append(source)
    index.places.append(place)


def agent_of(record: Mapping[str, Any]) -> str | None:
    """The agent that a record names."""
    ref = record.get(AGENT_REF_KEY_NAME)
    name = ref.get("name") if isinstance(ref, Mapping) else None
    return str(name) if name is not None else None


class Shelf:
    """Gets rollouts of an index out of their files."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._open: dict[int, BinaryIO] = {}

    def record(self, number: int) -> Record:
        """One rollout, read again."""
        source = self._index.sources[number]
        if source not in self._open:
            self._open[source] = self._index.files[source].open("rb")
        file = self._open[source]
        file.seek(self._index.places[number])
        record: Record = orjson.loads(file.readline())
        return record

    def close(self) -> None:
        for file in self._open.values():
            file.close()
