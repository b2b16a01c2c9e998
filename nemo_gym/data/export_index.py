"""Index the scored rollouts of JSONL files for an export: task, reward and byte offset, about 40 bytes each."""

import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import orjson

from nemo_gym.data.file_transfer import existing_file
from nemo_gym.journal import scan_rows
from nemo_gym.keys import ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME
from nemo_gym.wire.stored_rollout import StoredRollout

OnRead = Callable[[int, int | None], None]

FAILED, UNSCORED, MASKED, REPEATED = "failed", "without a finite reward", "masked by the agent", "given twice"
MASK_KEY = "mask_sample"


@dataclass
class ScoredRollouts:
    """The scored rollouts of some files, numbered from 0, and counts of the rollouts that were left out."""

    files: list[Path]
    tasks: "array[int]" = field(default_factory=lambda: array("q"))
    """The task of each rollout; tasks are numbered in order of appearance."""
    rollouts: "array[int]" = field(default_factory=lambda: array("q"))
    rewards: "array[float]" = field(default_factory=lambda: array("d"))
    sources: "array[int]" = field(default_factory=lambda: array("i"))
    """The file of each rollout, as a position in `files`."""
    offsets: "array[int]" = field(default_factory=lambda: array("q"))
    task_numbers: list[int] = field(default_factory=list)
    """For each task, its task index in the file, or -1 if the file has none."""
    left_out: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.tasks)

    def source(self, number: int) -> Path:
        """Return the file of a rollout."""
        return self.files[self.sources[number]]

    def groups(self) -> Iterator[list[int]]:
        """Yield the rollouts of each task, best first; equal rewards in rollout order. A repeated rollout counts once.

        Tasks are sorted by their index, so that the result does not depend on the order in which rollouts finished.
        """
        order = sorted(range(len(self)), key=self._sort_key)
        for _, group in groupby(order, key=self.tasks.__getitem__):
            unique: dict[int, int] = {}
            for number in group:
                rollout = self.rollouts[number]
                if unique.setdefault(rollout if rollout >= 0 else ~number, number) != number:
                    self.left_out[REPEATED] += 1
            yield sorted(unique.values(), key=lambda n: (-self.rewards[n], self.rollouts[n], n))

    def _sort_key(self, rollout: int) -> tuple[int, int, int]:
        task = self.tasks[rollout]
        number = self.task_numbers[task]
        return self.sources[rollout], number if number >= 0 else sys.maxsize, task


def index_rollouts(files: Sequence[str | Path], on_read: OnRead) -> ScoredRollouts:
    """Index the rollouts of some files.

    Raises:
        ConfigPathNotFoundError: a file is missing.
        StoreError: a line is damaged; only an incomplete last line is skipped.
    """
    index = ScoredRollouts([existing_file(path) for path in files])
    total = sum(path.stat().st_size for path in index.files)
    tasks: dict[tuple[int, str, int], int] = {}
    done = 0
    for source, path in enumerate(index.files):
        for begin, _, record in scan_rows(path):
            on_read(done + begin, total)
            stored = StoredRollout(record)
            reward = stored.reward
            if stored.failure_class is not None or stored.is_cancelled:
                index.left_out[FAILED] += 1
            elif reward is None:
                index.left_out[UNSCORED] += 1
            elif record.get(MASK_KEY):
                index.left_out[MASKED] += 1
            else:
                number, rollout = record.get(TASK_INDEX_KEY_NAME), record.get(ROLLOUT_INDEX_KEY_NAME)
                # Without a task index, rollouts of equal requests belong to the same task.
                key = number if isinstance(number, int) else hash(orjson.dumps(dict(stored.request)))
                task = tasks.setdefault((source, stored.agent or "", key), len(tasks))
                if task == len(index.task_numbers):
                    index.task_numbers.append(number if isinstance(number, int) else -1)
                index.tasks.append(task)
                index.rollouts.append(rollout if isinstance(rollout, int) else -1)
                index.rewards.append(reward)
                index.sources.append(source)
                index.offsets.append(begin)
        done += path.stat().st_size
    return index
