"""The files of one run, and the only code that writes them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from nemo_gym.keys import NG_TERMINAL_KEY
from nemo_gym.rollouts.job import Job, Row
from nemo_gym.rollouts.jsonl import LineWriter, StoreError, read_rows, write_rows
from nemo_gym.rollouts.key import RolloutKey
from nemo_gym.rollouts.outcome import Cancelled, Outcome, Scored, record_of
from nemo_gym.rollouts.paths import aggregate_metrics_path_for, failures_path_for, materialized_path_for


@dataclass
class History:
    """What earlier runs of the same output left: who is done, who failed how often, who will not be tried again."""

    finished: set[int] = field(default_factory=set)
    failures: dict[int, int] = field(default_factory=dict)
    terminal: set[int] = field(default_factory=set)

    def is_finished(self, key: RolloutKey) -> bool:
        return _packed(key) in self.finished

    def failed_attempts(self, key: RolloutKey) -> int:
        return self.failures.get(_packed(key), 0)

    def is_given_up(self, key: RolloutKey, max_attempts: int) -> bool:
        return _packed(key) in self.terminal or self.failed_attempts(key) >= max_attempts

    def given_up(self, max_attempts: int) -> int:
        """How many rollouts failed too often, or in a way that trying again does not mend."""
        tired = {packed for packed, count in self.failures.items() if count >= max_attempts}
        return len((self.terminal | tired) - self.finished)


class RolloutStore:
    """One output: scored records, failures, and the rows that were to be sent. One process writes it at a time."""

    def __init__(self, output: str | Path) -> None:
        self.output = Path(output)
        self.failures = failures_path_for(output)
        self.materialized = materialized_path_for(output)
        self.aggregate_metrics = aggregate_metrics_path_for(output)
        self._scored: LineWriter | None = None
        self._failed: LineWriter | None = None

    def __enter__(self) -> Self:
        self._scored = LineWriter(self.output)
        self._failed = LineWriter(self.failures)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for writer in (self._scored, self._failed):
            if writer is not None:
                writer.close()
        self._scored = self._failed = None

    def can_resume(self) -> bool:
        """Whether an earlier run left what resuming needs: its rows and its output."""
        return self.materialized.is_file() and self.output.is_file()

    def begin(self, jobs: Iterable[Job]) -> int:
        """Start over: write the rows to be sent, remove earlier results, and return how many rows there are.

        Nothing is removed unless every row could be planned.
        """
        # Removed before the new rows appear: a crash in between must not pair new rows with old results.
        return write_rows(self.materialized, (job.row for job in jobs), first=self._remove_results)

    def jobs(self) -> Iterator[Job]:
        """Every job of the run, one at a time, in order."""
        return map(Job.of, read_rows(self.materialized))

    def unfinished(self, history: History, max_attempts: int) -> Iterator[Job]:
        """The jobs that are neither finished nor given up, one at a time, with their attempt number."""
        for job in self.jobs():
            if not history.is_finished(job.key) and not history.is_given_up(job.key, max_attempts):
                yield job.again(history.failed_attempts(job.key))

    def planned(self) -> int:
        """How many rollouts the run consists of."""
        with self.materialized.open("rb") as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))

    def history(self) -> History:
        """What is on disk already. Memory is a few dozen bytes per stored rollout."""
        history = History()
        history.finished.update(packed for packed, _ in _places(self.output))
        for packed, record in _places(self.failures):
            history.failures[packed] = history.failures.get(packed, 0) + 1
            if record.get(NG_TERMINAL_KEY):
                history.terminal.add(packed)
        return history

    def write(self, outcome: Outcome) -> None:
        """Store an outcome: a scored one in the output, a failed one beside it, a cancelled one nowhere.

        Raises:
            StoreError: it is not stored; everything before it is.
        """
        if isinstance(outcome, Cancelled):
            return
        writer = self._scored if isinstance(outcome, Scored) else self._failed
        if writer is None:
            raise RuntimeError("the store is not open; use it in a with block")
        writer.append(record_of(outcome))

    def _remove_results(self) -> None:
        for path in (self.output, self.failures, self.aggregate_metrics):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise StoreError(f"cannot remove: {error.strerror}", where=str(path)) from error

    def records(self) -> Iterator[Row]:
        """The scored records, in the order they were stored."""
        return read_rows(self.output)


def _places(path: Path) -> Iterator[tuple[int, Row]]:
    for number, record in enumerate(read_rows(path), start=1):
        try:
            yield _packed(RolloutKey.of(record)), record
        except ValueError as error:
            raise StoreError(
                f"this record does not say which rollout it is: {error}",
                where=f"{path} (record {number})",
                fix="start over without resuming, or remove the record",
            ) from error


def _packed(key: RolloutKey) -> int:
    """A key's place as one number: a fraction of a tuple's memory when there are a million."""
    return key.task << 32 | key.rollout
