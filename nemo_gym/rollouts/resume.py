"""Prepare a run: start a new one, or resume the stored one if it is the same run (its identity matches)."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.outcome import Job
from nemo_gym.rollouts.plan import Line, PlanOptions, PlanSummary, added_repeats, plan_jobs, plan_more
from nemo_gym.rollouts.plan import check_rows as check_planned_rows
from nemo_gym.rollouts.row_selection import RowSelection
from nemo_gym.rollouts.run_identity import (
    Identity,
    RowHash,
    describe_planned_rows,
    file_stat,
    has_same_rows,
    read_identity,
    write_identity,
)
from nemo_gym.rollouts.run_identity import check_planned_rows as check_stored_rows
from nemo_gym.rollouts.store import RolloutStore

logger = logging.getLogger("nemo_gym.rollouts")

_LISTED = 20
_LINES_PER_REPORT = 2048

OnRead = Callable[[int, float], None]
"""Called periodically with the rows and the fraction of the file read so far; its exceptions end the reading."""


class ResumeRefused(ConfigError, ValueError):
    """The stored run differs from the requested one."""


@dataclass(frozen=True, kw_only=True)
class CollectionRequest:
    """The request to collect rollouts into an output: a new run, or with `resume` the rest of the stored run."""

    source: Path
    source_name: str
    """The path as the user wrote it, for messages."""
    selection: RowSelection
    options: PlanOptions
    identity: Identity
    """Identity of the requested run, without the hash of its rows."""
    resume: bool = False
    force: bool = False
    overwrite: bool = False
    max_attempts: int = 3
    retry_terminal: bool = False
    """Also retry rollouts whose failure was final; true if the user set the maximum number of attempts."""
    limits: Mapping[str, int | None] | None = None
    """Limits of one rollout by name; a rollout that ended at a lower limit is run again."""
    on_read: OnRead = lambda _rows, _fraction: None

    def lines(self) -> Iterator[Line]:
        """Yield the lines of the input that are used, and call `on_read` periodically."""
        bytes_read = 0
        for count, line in enumerate(self.selection.lines(self.source), start=1):
            bytes_read += len(line[1])
            yield line
            if not count % _LINES_PER_REPORT:
                self.on_read(count, min(1.0, bytes_read / self.source.stat().st_size))


@dataclass(frozen=True)
class PreparedRun:
    """The jobs to run, with a summary."""

    summary: PlanSummary
    jobs: Iterator[Job]
    tokens: int = 0
    """Tokens that the resumed run has used so far."""
    answered_job: Job | None = None
    """A rollout that the resumed run has scored."""


def prepare_run(store: RolloutStore, request: CollectionRequest) -> PreparedRun:
    """Start or resume a run: write the planned rows and the identity, and return the jobs. The store must be locked.

    Raises:
        ConfigError: the rows cannot be sent; the files are unchanged.
        ResumeRefused: the stored run differs from the requested one.
        StoreError: the files cannot be read or written.
    """
    if request.resume and store.can_resume():
        return _resume_run(store, request)
    note = f"nothing to resume: {store.materialized} or {store.output} is missing; starting over"
    return _start_run(store, request, [note] if request.resume else [])


async def prepare_run_in_thread(store: RolloutStore, request: CollectionRequest) -> PreparedRun:
    """Run `prepare_run` on a thread, so that the event loop can handle interrupts while many rows are read.

    A cancellation ends the thread at its next call of `on_read`. It is waited for, because the thread writes files.
    """
    is_cancelled = threading.Event()

    def on_read(rows: int, fraction: float) -> None:
        if is_cancelled.is_set():
            raise asyncio.CancelledError
        request.on_read(rows, fraction)

    preparation = asyncio.ensure_future(asyncio.to_thread(prepare_run, store, replace(request, on_read=on_read)))
    try:
        return await asyncio.shield(preparation)
    except asyncio.CancelledError:
        is_cancelled.set()
        await asyncio.wait({preparation})
        if not preparation.cancelled():
            preparation.exception()  # retrieved, so that asyncio does not log it as never retrieved
        raise


def check_request(store: RolloutStore, request: CollectionRequest) -> None:
    """Raise the errors of rows and identity that `prepare_run` would raise, without changing a file.

    The store must be locked. Commands call this before they start servers.
    """
    if request.resume and store.can_resume():
        stored = read_identity(store.run)
        if stored is not None:
            _match_identity(store, request, stored[0])
        _check_stored_rows(store, stored[0] if stored is not None else None)
        return
    _check_source(store, request)
    check_planned_rows(request.lines(), request.options, source=request.source_name)


def _check_source(store: RolloutStore, request: CollectionRequest) -> None:
    """Raise ConfigError if the input file is one of the files that will be written."""
    if request.source.resolve() in (store.output.resolve(), store.failures.resolve()):
        raise ConfigError(
            f"the results would replace the input rows in {request.source_name}",
            where=str(store.output),
            fix="choose another output",
        )


def _start_run(store: RolloutStore, request: CollectionRequest, notes: list[str]) -> PreparedRun:
    """Plan a new run; an earlier run's files are moved aside, or removed with `overwrite`."""
    _check_source(store, request)
    row_hash = RowHash()
    stat = file_stat(request.source)
    jobs = plan_jobs(row_hash.hashing(request.lines()), request.options, source=request.source_name)
    previous_folder = store.begin(jobs, keep=not request.overwrite)
    planned = describe_planned_rows(store.materialized)
    write_identity(store.run, request.identity.with_values(rows=row_hash.text(), file_stat=stat, planned=planned))
    store.open()
    total = store.planned_count()
    if previous_folder is not None:
        notes.append(f"the files of the earlier run were moved to {previous_folder}")
    for note in notes:
        logger.info(note)
    return PreparedRun(PlanSummary(total, to_run=total, kept=previous_folder, notes=notes), store.jobs())


def _resume_run(store: RolloutStore, request: CollectionRequest) -> PreparedRun:
    """Check that the stored run is the requested one, and return its unfinished rollouts as jobs."""
    notes = _update_identity(store, request)
    history = store.history(request.limits, retry_terminal=request.retry_terminal)
    total, finished = store.planned_count(), len(history.finished)
    given_up = history.count_given_up(request.max_attempts)
    to_run = max(0, total - finished - given_up)
    logger.info("resuming: %d rollouts, %d finished, %d given up, %d to run", total, finished, given_up, to_run)
    for note in notes:
        logger.info(note)
    final = len(history.final - history.finished)
    summary = PlanSummary(total, finished, given_up, final, to_run, resumed=True, notes=notes)
    jobs = store.unfinished_jobs(history, request.max_attempts)
    return PreparedRun(summary, jobs, history.tokens, store.finished_job(history))


def _update_identity(store: RolloutStore, request: CollectionRequest) -> list[str]:
    """Check that the stored run is the requested one, store accepted changes and return notes about them."""
    stored = read_identity(store.run)
    if stored is None:
        _check_stored_rows(store, None)
        if request.source.is_file():  # write the missing identity, for the next resume
            planned = describe_planned_rows(store.materialized)
            current = request.identity.with_values(file_stat=file_stat(request.source), planned=planned)
            write_identity(store.run, _with_row_hash(current, request))
        return [f"{store.run} was missing, so it was not checked that this is the same run"]
    earlier, content = stored
    current, notes, has_more_repeats = _match_identity(store, request, earlier)
    _check_stored_rows(store, earlier)
    current = current.with_values(planned=earlier.planned)
    if has_more_repeats:
        jobs = plan_more(request.lines, request.options, earlier_repeats=earlier.repeats, source=request.source_name)
        added = store.extend(jobs)
        current = current.with_values(planned=describe_planned_rows(store.materialized))
        notes.append(f"num_repeats: {earlier.repeats} -> {request.identity.repeats}; {added} rollouts added")
    old, new = earlier.limits, current.limits
    if old != new:
        names = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
        changes = ", ".join(f"{name} {old.get(name)} -> {new.get(name)}" for name in names)
        notes.append(f"changed limits: {changes}")
    if notes or earlier != current:
        write_identity(store.run, current, content, "; ".join(notes))
    return notes


def _check_stored_rows(store: RolloutStore, stored: Identity | None) -> None:
    """Raise StoreError if the planned rows are damaged; without a stored hash, if a rollout is planned twice."""
    if stored is not None and stored.planned:
        check_stored_rows(store.materialized, stored.planned)
    else:
        store.check_planned_once()


def _match_identity(
    store: RolloutStore, request: CollectionRequest, earlier: Identity
) -> tuple[Identity, list[str], bool]:
    """Return the identity of the resumed run, notes about it, and whether it has more repeats than `earlier`.

    Raises:
        ResumeRefused: the stored run differs, and `force` is not set.
    """
    current, notes = _current_identity(earlier, request)
    differences = earlier.differences(current)
    added = added_repeats(earlier.repeats, request.identity.repeats)
    if any(count < 0 for count in added.values()):
        differences.append(f"num_repeats: {earlier.repeats} -> {request.identity.repeats} (only more are accepted)")
    if not differences:
        return current, notes, any(added.values())
    listed = differences[:_LISTED]
    if len(differences) > _LISTED:
        listed.append(f"… and {len(differences) - _LISTED} more")
    if not request.force:
        raise ResumeRefused(
            "the stored run is a different one; differences:" + "".join(f"\n    {line}" for line in listed),
            where=str(store.run),
            fix="leave out --resume to start over (the earlier files are kept), "
            "or add --force-resume (+force_resume=true) to continue with the planned rows and parameters",
        )
    notes.append(f"resumed by force although these differ: {'; '.join(listed)}")
    # The planned rows stay, so the stored properties that describe them stay, too, and no repeats are added.
    row_properties = earlier.model_dump(include={"rows", "plan", "file_stat", "repeats"})
    return current.with_values(**row_properties), notes, False


def _current_identity(earlier: Identity, request: CollectionRequest) -> tuple[Identity, list[str]]:
    """Return the identity of the request, with the hash of its rows, and notes; unchanged rows are not hashed again."""
    current = request.identity.with_values(file_stat=file_stat(request.source))
    if not current.file_stat:
        note = f"{request.source_name} is missing; the planned rows are used"
        return current.with_values(rows=earlier.rows, file_stat=earlier.file_stat), [note]
    if has_same_rows(earlier, current):
        return current.with_values(rows=earlier.rows), []
    return _with_row_hash(current, request), []


def _with_row_hash(identity: Identity, request: CollectionRequest) -> Identity:
    row_hash = RowHash()
    for _ in row_hash.hashing(request.lines()):
        pass  # iterating computes the hash
    return identity.with_values(rows=row_hash.text())
