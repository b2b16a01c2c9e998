"""Write and read the files of one run. This is the only module that writes them."""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

from nemo_gym.journal import (
    Entry,
    IndexWriter,
    LineIndex,
    PeriodicSync,
    StoreError,
    index_entry,
    read_rows,
    select_rows,
    write_lines,
)
from nemo_gym.rollouts import run_files
from nemo_gym.rollouts.lock import RunLock
from nemo_gym.rollouts.outcome import (
    FAILURE_KINDS,
    REFUSAL_STATUS,
    CancelledRollout,
    FailureKind,
    Job,
    Outcome,
    ScoredRollout,
    outcome_record,
)
from nemo_gym.rollouts.output_guard import GuardedWriter, RestorableFile
from nemo_gym.wire.call_reply import encode_json
from nemo_gym.wire.stored_rollout import RolloutKey, Row, StoredRollout, mark_invalid_reward


class SyncObserver(Protocol):
    """Learns on the sync thread which records are on the disk: those written before `before_sync` was called."""

    def before_sync(self) -> None: ...

    def after_sync(self) -> None: ...


@dataclass
class RunHistory:
    """The stored rollouts of an output, for resume.

    Task and rollout index are packed into one integer, which needs a fraction of a tuple's memory.
    """

    finished: set[int] = field(default_factory=set)
    failures: dict[int, int] = field(default_factory=dict)
    """Number of failures that count as attempts."""
    uncounted: dict[int, int] = field(default_factory=dict)
    """Number of failures that do not count as attempts, because the rollout did not cause them."""
    terminal: set[int] = field(default_factory=set)
    """Rollouts with a failure after which they are not run again."""
    final: set[int] = field(default_factory=set)
    """Those of them that no number of attempts changes: an agent declared it, or a limit ended them."""
    tokens: int = 0
    """Tokens of all stored rollouts, failed ones included."""

    def is_finished(self, key: RolloutKey | Entry) -> bool:
        return _packed_key(key) in self.finished

    def failed_attempts(self, key: RolloutKey | Entry) -> int:
        return self.failures.get(_packed_key(key), 0)

    def is_given_up(self, key: RolloutKey | Entry, max_attempts: int) -> bool:
        return _packed_key(key) in self.terminal or self.failed_attempts(key) >= max_attempts

    def failure_counts(self, key: RolloutKey | Entry) -> tuple[int, int]:
        """Return the number of counted and of uncounted failures."""
        packed = _packed_key(key)
        return self.failures.get(packed, 0), self.uncounted.get(packed, 0)

    def count_given_up(self, max_attempts: int) -> int:
        """Count the unfinished rollouts that failed `max_attempts` times or with a terminal failure."""
        exhausted = {key for key, count in self.failures.items() if count >= max_attempts}
        return len((self.terminal | exhausted) - self.finished)


class _Journal:
    """A JSONL file to which outcomes are appended, with its index. Opening it repairs a torn last line."""

    def __init__(self, path: Path, index_path: Path) -> None:
        self._writer = GuardedWriter(path)
        self._index = LineIndex(index_path, path)
        self._index_writer: IndexWriter | None = None
        self.sync = self._writer.sync

    def entries(self) -> Iterator[Entry]:
        if self._index_writer is not None:
            self._index_writer.flush()
        return self._index.entries()

    def add(self, key: RolloutKey, record: Row) -> None:
        if self._index_writer is None:
            self._index_writer = self._index.writer()
        end = self._writer.append(encode_json(record) + b"\n")
        self._index_writer.add(index_entry(key, record, end))

    def close(self) -> None:
        try:
            if self._index_writer is not None:
                self._index_writer.flush()
        finally:
            self._writer.close()


class RolloutStore:
    """The files of one output: scored records, failures, and the planned rows.

    Inside a `with` block the output is locked: a second collector gets `OutputInUse`. Reading `records` needs no lock.
    Written lines are synced to the disk every `sync_seconds`, on a thread, and at the end.
    """

    def __init__(
        self, output: str | Path, *, sync_seconds: float | None = None, on_sync: SyncObserver | None = None
    ) -> None:
        self.output = Path(output)
        self._on_sync = on_sync
        self.failures = run_files.failures_path_for(output)
        self.materialized = run_files.materialized_path_for(output)
        self.aggregate_metrics = run_files.aggregate_metrics_path_for(output)
        self.run = run_files.run_path_for(output)
        self._index_folder = run_files.index_folder_for(output)
        self._inputs = LineIndex(self._index_folder / "inputs", self.materialized)
        self._lock = RunLock(run_files.lock_path_for(output))
        self._sync_seconds = sync_seconds
        self._planned_count: int | None = None
        self._journals: tuple[_Journal, _Journal] | None = None
        self._closing: contextlib.ExitStack | None = None
        """Closes the files and releases the lock; None while the output is not locked."""

    def __enter__(self) -> Self:
        run_files.check_no_foreign_files(self.output)
        self._lock.acquire()
        self._closing = contextlib.ExitStack()
        self._closing.callback(self._lock.release)
        self._planned_count = None  # another process may have added rows since
        return self

    def __exit__(self, *_: object) -> None:
        closing = self._require_lock()
        self._closing = self._journals = None
        closing.close()  # in the reverse order of opening: sync thread, files, lock

    def can_resume(self) -> bool:
        """Return whether the files that resume needs exist: the planned rows and the output."""
        return self.materialized.is_file() and self.output.is_file()

    def begin(self, jobs: Iterable[Job], *, keep: bool = True) -> Path | None:
        """Start a new run: write the planned rows and move earlier results aside; return the folder they moved to.

        If a row cannot be planned, nothing is moved. Without `keep`, earlier results are removed instead.
        """
        self._require_lock()
        previous_folder: Path | None = None

        def clear_earlier_run() -> None:
            # Called before the new rows appear: a crash in between must not pair new rows with old results.
            nonlocal previous_folder
            if keep:
                previous_folder = run_files.move_aside(self.output)
            else:
                run_files.remove_run(self.output)

        self._write_inputs((job.row for job in jobs), clear_earlier_run)
        return previous_folder

    def extend(self, jobs: Iterable[Job]) -> int:
        """Add the jobs that are not planned yet to the planned rows, and return their number."""
        self._require_lock()
        planned = {_packed_key(entry) for entry in self._inputs.entries()}
        added = 0

        def rows() -> Iterator[Row]:
            nonlocal added
            yield from read_rows(self.materialized)
            for job in jobs:
                if _packed_key(job.key) not in planned:
                    added += 1
                    yield job.row

        self._write_inputs(rows())
        return added

    def open(self) -> tuple[_Journal, _Journal]:
        """Open the output and the failures file, repairing torn last lines. Both files exist afterwards."""
        closing = self._require_lock()
        if self._journals is None:
            scored = _Journal(self.output, self._index_folder / "scored")
            closing.callback(scored.close)
            failed = _Journal(self.failures, self._index_folder / "failed")
            closing.callback(failed.close)
            for path in filter(Path.is_file, (self.materialized, self.run)):
                restorable = RestorableFile(path)
                closing.callback(restorable.close)
                closing.callback(restorable.restore_or_save)
            if self._sync_seconds is not None:
                before = [self._on_sync.before_sync] if self._on_sync is not None else []
                after = [self._on_sync.after_sync] if self._on_sync is not None else []
                syncs = [*before, scored.sync, failed.sync, *after]
                closing.callback(PeriodicSync(syncs, self._sync_seconds).stop)
            self._journals = scored, failed
        return self._journals

    def jobs(self) -> Iterator[Job]:
        """Yield every planned job of the run in order, finished or not."""
        return map(Job.of, read_rows(self.materialized))

    def unfinished_jobs(self, history: RunHistory, max_attempts: int) -> Iterator[Job]:
        """Yield the jobs that are neither finished nor given up, with the number of their next attempt.

        Rollouts that failed more often come later: those that end their server must not delay innocent ones. Of the
        others, those that were refused more often come later: the rest shows first whether the endpoint accepts
        requests.
        """

        def is_unfinished(entry: Entry, *, counts: tuple[int, int]) -> bool:
            is_open = not history.is_finished(entry) and not history.is_given_up(entry, max_attempts)
            return is_open and history.failure_counts(entry) == counts

        all_counts = itertools.product({0, *history.failures.values()}, {0, *history.uncounted.values()})
        for counts in sorted(all_counts):
            selection = partial(is_unfinished, counts=counts)
            for row in select_rows(self.materialized, self._inputs.entries(), selection):
                job = Job.of(row)
                yield job.with_attempt(history.failed_attempts(job.key))

    def finished_job(self, history: RunHistory) -> Job | None:
        """Return a planned job that is finished; None if no job is."""
        return next(map(Job.of, select_rows(self.materialized, self._inputs.entries(), history.is_finished)), None)

    def check_planned_once(self) -> None:
        """Check that every rollout is planned once.

        Raises:
            StoreError: a rollout is planned twice.
        """
        keys: set[int] = set()
        for entry in self._inputs.entries():
            key = _packed_key(entry)
            if key in keys:
                raise StoreError(
                    f"the rollout {entry.task}-{entry.rollout} is planned twice",
                    where=str(self.materialized),
                    fix="restore the file from a copy, or start over without --resume",
                )
            keys.add(key)

    def planned_count(self) -> int:
        """Count the planned rollouts of the run."""
        if self._planned_count is None:
            self._planned_count = sum(1 for _ in self._inputs.entries())
        return self._planned_count

    def history(self, limits: Mapping[str, int | None] | None = None, *, retry_terminal: bool = False) -> RunHistory:
        """Load the stored rollouts from the index. Memory is a few dozen bytes per stored rollout.

        A terminal failure does not count if the limit that ended the rollout is higher or off in `limits` (the current
        limits by name), or if an earlier version stored it for a refusal. With `retry_terminal`, only those that an
        agent declared and those of limits count: the user allows further attempts.
        """
        scored, failed = self.open()
        history = RunHistory()
        for entry in scored.entries():
            history.finished.add(_packed_key(entry))
            history.tokens += entry.tokens
        for entry in failed.entries():
            key = _packed_key(entry)
            counts = history.failures if entry.is_counted else history.uncounted
            counts[key] = counts.get(key, 0) + 1
            history.tokens += entry.tokens
        # The index does not contain the reason of a terminal failure, so these lines are read. The last one decides.
        for row in select_rows(self.failures, failed.entries(), lambda entry: entry.is_terminal):
            key, stored = _packed_key(RolloutKey.of(row)), StoredRollout(row)
            if _is_refusal_without_status(stored):
                history.terminal.discard(key)
                if stored.is_counted:
                    history.failures[key] -= 1
                continue
            is_final = stored.failure_class not in FAILURE_KINDS
            is_limit_higher = limits is not None and _is_limit_higher_now(stored.failure, limits)
            is_terminal = not is_limit_higher and (is_final or not retry_terminal)
            (history.terminal.add if is_terminal else history.terminal.discard)(key)
            (history.final.add if is_terminal and is_final else history.final.discard)(key)
        return history

    def write(self, outcome: Outcome) -> None:
        """Store a scored outcome in the output, a failed or limited one in the failures file, a cancelled one nowhere.

        Raises:
            StoreError: the outcome is not stored; all earlier ones are.
        """
        if isinstance(outcome, CancelledRollout):
            return
        scored, failed = self.open()
        journal = scored if isinstance(outcome, ScoredRollout) else failed
        journal.add(outcome.job.key, outcome_record(outcome))

    def unscored_tasks(self) -> list[int]:
        """Return the tasks that have a planned rollout without a score, in order."""
        finished = self.history().finished
        return sorted({entry.task for entry in self._inputs.entries() if _packed_key(entry) not in finished})

    def records(self) -> Iterator[Row]:
        """Yield the records of the output in order; a record with an invalid reward is marked as a failure."""
        return map(mark_invalid_reward, read_rows(self.output))

    def _write_inputs(self, rows: Iterable[Row], before_replace: Callable[[], None] = lambda: None) -> None:
        """Write the planned rows and their index; `before_replace` is called before the new files appear."""
        partial_index = self.materialized.with_name(f"{self.materialized.name}.index")
        index = IndexWriter(partial_index)

        def lines() -> Iterator[bytes]:
            end = 0
            for row in rows:
                line = encode_json(row) + b"\n"
                end += len(line)
                index.add(index_entry(RolloutKey.of(row), row, end))
                yield line

        def replace_index() -> None:
            before_replace()
            index.flush()
            with contextlib.suppress(OSError):  # a missing index is rebuilt from the rows
                self._index_folder.mkdir(exist_ok=True)
                partial_index.replace(self._inputs.path)

        try:
            self._planned_count = None  # stays unknown if writing fails
            self._planned_count = write_lines(self.materialized, lines(), before_replace=replace_index)
        finally:
            with contextlib.suppress(OSError):
                partial_index.unlink(missing_ok=True)

    def _require_lock(self) -> contextlib.ExitStack:
        if self._closing is None:
            raise RuntimeError("the store is not open; use it in a with block")
        return self._closing


def _is_refusal_without_status(stored: StoredRollout) -> bool:
    """Return whether a failure is a refusal by a model endpoint that an earlier version stored.

    Earlier versions did not store the status, without which it is unknown whether the row or the key was refused. Their
    messages name the `/run` call that failed, unlike messages of agents.
    """
    failure = stored.failure
    may_be_refusal = stored.failure_class in (FailureKind.MODEL_REFUSED, FailureKind.JUDGE_FAILED)
    return may_be_refusal and REFUSAL_STATUS not in failure and str(failure.get("message")).startswith("/run of ")


def _is_limit_higher_now(failure: Mapping[str, Any], limits: Mapping[str, int | None]) -> bool:
    """Return whether the limit that ended a rollout is higher or off in the current `limits`."""
    limit_name, limit_value = failure.get("which"), failure.get("most")
    if not isinstance(limit_name, str) or limit_name not in limits or not isinstance(limit_value, int):
        return False
    limit = limits[limit_name]
    return limit is None or limit > limit_value


def _packed_key(key: RolloutKey | Entry) -> int:
    """Return task and rollout index, without the attempt, as one integer."""
    return key.task << 32 | key.rollout
