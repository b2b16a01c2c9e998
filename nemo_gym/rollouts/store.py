"""The files of one run, and the only code that writes them."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from nemo_gym.keys import NG_FAILURE_DETAIL_KEY
from nemo_gym.rollouts import previous
from nemo_gym.rollouts.index import Entry, IndexWriter, LineIndex, entry_of, pick
from nemo_gym.rollouts.job import Job, Row
from nemo_gym.rollouts.jsonl import LineWriter, read_rows, write_rows
from nemo_gym.rollouts.key import RolloutKey
from nemo_gym.rollouts.lock import RunLock
from nemo_gym.rollouts.outcome import Cancelled, Outcome, Scored, record_of
from nemo_gym.rollouts.paths import (
    aggregate_metrics_path_for,
    failures_path_for,
    index_folder_for,
    lock_path_for,
    materialized_path_for,
    run_path_for,
)
from nemo_gym.rollouts.syncing import Syncing


@dataclass
class History:
    """What earlier runs of the same output left: who is done, who failed how often, who will not be tried again."""

    finished: set[int] = field(default_factory=set)
    failures: dict[int, int] = field(default_factory=dict)
    terminal: set[int] = field(default_factory=set)
    tokens: int = 0
    """Spent by all of them, failed ones included."""

    def is_finished(self, key: RolloutKey | Entry) -> bool:
        return _packed(key) in self.finished

    def failed_attempts(self, key: RolloutKey | Entry) -> int:
        return self.failures.get(_packed(key), 0)

    def is_given_up(self, key: RolloutKey | Entry, max_attempts: int) -> bool:
        return _packed(key) in self.terminal or self.failed_attempts(key) >= max_attempts

    def given_up(self, max_attempts: int) -> int:
        """How many rollouts failed too often, or in a way that trying again does not mend."""
        tired = {packed for packed, count in self.failures.items() if count >= max_attempts}
        return len((self.terminal | tired) - self.finished)


class Journal:
    """A file that outcomes are added to, with its index. Opening it repairs what a crash left."""

    def __init__(self, lines: Path, index: Path) -> None:
        self._writer = LineWriter(lines)
        self._lines = LineIndex(index, lines)
        self._index: IndexWriter | None = None

    def entries(self) -> Iterator[Entry]:
        """What is stored, in order."""
        if self._index is not None:
            self._index.flush()
        return self._lines.entries()

    def add(self, key: RolloutKey, record: Row) -> None:
        if self._index is None:
            self._index = self._lines.writer()
        end = self._writer.append(record)
        self._index.add(entry_of(key, record, end))

    def sync(self) -> None:
        """Force what was added so far onto the disk; on any thread."""
        self._writer.sync()

    def close(self) -> None:
        with contextlib.ExitStack() as closing:
            closing.callback(self._writer.close)
            if self._index is not None:
                closing.callback(self._index.close)


class RolloutStore:
    """One output: scored records, failures, and the rows that were to be sent.

    Inside `with` it is this process's alone: a second collector is refused. Reading `records` needs no such claim.
    What is written is forced onto the disk every `sync_seconds`, beside the work, and at the end.
    """

    def __init__(self, output: str | Path, *, sync_seconds: float | None = None) -> None:
        self.output = Path(output)
        self.failures = failures_path_for(output)
        self.materialized = materialized_path_for(output)
        self.aggregate_metrics = aggregate_metrics_path_for(output)
        self.run = run_path_for(output)
        self._index = index_folder_for(output)
        self._lock = RunLock(lock_path_for(output))
        self._held = False
        self._scored: Journal | None = None
        self._failed: Journal | None = None
        self._planned: int | None = None
        self._sync_seconds = sync_seconds
        self._syncing: Syncing | None = None

    def __enter__(self) -> Self:
        previous.check_ours(self.output)
        self._lock.acquire()
        self._held = True
        self._planned = None  # somebody else may have added rows since
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        journals, syncing = (self._scored, self._failed), self._syncing
        self._held = False
        self._scored = self._failed = self._syncing = None
        if syncing is not None:
            syncing.stop()  # before the files it knows are closed
        with contextlib.ExitStack() as closing:
            closing.callback(self._lock.release)
            for journal in journals:
                if journal is not None:
                    closing.callback(journal.close)

    def can_resume(self) -> bool:
        """Whether an earlier run left what resuming needs: its rows and its output."""
        return self.materialized.is_file() and self.output.is_file()

    def begin(self, jobs: Iterable[Job], *, keep: bool = True) -> Path | None:
        """Start over: write the rows to be sent and take earlier results away; returns where those are kept, if so.

        Nothing is taken away unless every row could be planned. Without `keep` earlier results are removed.
        """
        self._check_held()
        kept: Path | None = None

        def clear() -> None:
            # Before the new rows appear: a crash in between must not pair new rows with old results.
            nonlocal kept
            if keep:
                kept = previous.put_aside(self.output)
            else:
                previous.remove(self.output)

        self._write_inputs((job.row for job in jobs), clear)
        return kept

    def extend(self, jobs: Iterable[Job]) -> int:
        """Add the jobs that the run does not have yet to its rows, and return how many those are."""
        self._check_held()
        known = {_packed(entry) for entry in self._inputs.entries()}
        added = 0

        def rows() -> Iterator[Row]:
            nonlocal added
            yield from read_rows(self.materialized)
            for job in jobs:
                if _packed(job.key) not in known:
                    added += 1
                    yield job.row

        self._write_inputs(rows(), lambda: None)
        return added

    def open(self) -> None:
        """Open the files outcomes are added to; what a crash cut off is removed from them. Both exist from then on."""
        self._check_held()
        if self._scored is None:
            self._scored = Journal(self.output, self._index / "scored")
        if self._failed is None:
            self._failed = Journal(self.failures, self._index / "failed")
        if self._sync_seconds is not None and self._syncing is None:
            self._syncing = Syncing([self._scored.sync, self._failed.sync], self._sync_seconds)

    def jobs(self) -> Iterator[Job]:
        """Every job of the run, one at a time, in order."""
        return map(Job.of, read_rows(self.materialized))

    def unfinished(self, history: History, max_attempts: int) -> Iterator[Job]:
        """The jobs that are neither finished nor given up, one at a time, with their attempt number."""

        def is_open(entry: Entry) -> bool:
            return not history.is_finished(entry) and not history.is_given_up(entry, max_attempts)

        for row in pick(self.materialized, self._inputs.entries(), is_open):
            job = Job.of(row)
            yield job.again(history.failed_attempts(job.key))

    def planned(self) -> int:
        """How many rollouts the run consists of."""
        if self._planned is None:
            self._planned = sum(1 for _ in self._inputs.entries())
        return self._planned

    def history(self, limits: Mapping[str, int | None] | None = None) -> History:
        """What is stored already, from the index. Memory is a few dozen bytes per stored rollout.

        With `limits`, by what they limit, rollouts that ended at a lower one are not given up.
        """
        self.open()
        assert self._scored is not None and self._failed is not None
        history = History()
        for entry in self._scored.entries():
            history.finished.add(_packed(entry))
            history.tokens += entry.tokens
        for entry in self._failed.entries():
            packed = _packed(entry)
            history.failures[packed] = history.failures.get(packed, 0) + 1
            history.tokens += entry.tokens
            if entry.is_terminal:
                history.terminal.add(packed)
        if limits is not None:
            self._free_limited(history, limits)
        return history

    def _free_limited(self, history: History, limits: Mapping[str, int | None]) -> None:
        """Only the lines of those that a limit ended are read."""
        assert self._failed is not None
        for row in pick(self.failures, self._failed.entries(), lambda entry: entry.is_limited):
            packed = _packed(RolloutKey.of(row))
            if _is_higher_now(row.get(NG_FAILURE_DETAIL_KEY), limits):
                history.terminal.discard(packed)
            else:
                history.terminal.add(packed)  # it was run again and ended at this one

    def write(self, outcome: Outcome) -> None:
        """Store an outcome: a scored one in the output, a failed one beside it, a cancelled one nowhere.

        Raises:
            StoreError: it is not stored; everything before it is.
        """
        if isinstance(outcome, Cancelled):
            return
        if self._scored is None or self._failed is None:
            self.open()
        journal = self._scored if isinstance(outcome, Scored) else self._failed
        assert journal is not None
        journal.add(outcome.job.key, record_of(outcome))

    def records(self) -> Iterator[Row]:
        """The scored records, in the order they were stored."""
        return read_rows(self.output)

    @property
    def _inputs(self) -> LineIndex:
        return LineIndex(self._index / "inputs", self.materialized)

    def _write_inputs(self, rows: Iterable[Row], first: Callable[[], None]) -> None:
        staged = self.materialized.with_name(f"{self.materialized.name}.index")
        index = IndexWriter(staged)

        def settle() -> None:
            first()
            index.close()
            with contextlib.suppress(OSError):  # without an index the rows are read instead
                self._index.mkdir(exist_ok=True)
                staged.replace(self._inputs.path)

        try:
            self._planned = None
            self._planned = write_rows(
                self.materialized,
                rows,
                first=settle,
                written=lambda row, end: index.add(entry_of(RolloutKey.of(row), row, end)),
            )
        finally:
            index.close()
            with contextlib.suppress(OSError):
                staged.unlink(missing_ok=True)

    def _check_held(self) -> None:
        if not self._held:
            raise RuntimeError("the store is not open; use it in a with block")


def _is_higher_now(detail: Any, limits: Mapping[str, int | None]) -> bool:
    """Whether the limit that a failure tells of is higher now, or gone."""
    which, most = (detail.get("which"), detail.get("most")) if isinstance(detail, dict) else (None, None)
    if not isinstance(which, str) or which not in limits or not isinstance(most, int):
        return False
    now = limits[which]
    return now is None or now > most


def _packed(key: RolloutKey | Entry) -> int:
    """A key's place as one number: a fraction of a tuple's memory when there are a million."""
    return key.task << 32 | key.rollout
