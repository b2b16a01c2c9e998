"""Prepare a run: a new one, or the rest of an earlier one. Resume matching compares the identities of both."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.identity import Identity, RowHash, file_stat, has_same_rows, read_identity, write_identity
from nemo_gym.rollouts.outcome import Job
from nemo_gym.rollouts.plan import Line, PlanOptions, PlanSummary, added_repeats, plan_jobs, plan_more, read_lines
from nemo_gym.rollouts.plan import check_rows as check_planned_rows
from nemo_gym.rollouts.store import RolloutStore

logger = logging.getLogger("nemo_gym.rollouts")

_LISTED = 20
_LINES_PER_REPORT = 2048

OnRead = Callable[[int, int], None]
"""Called periodically with the rows and bytes read so far; an exception it raises ends the reading."""


class ResumeRefused(ConfigError, ValueError):
    """The stored run differs from the requested one."""


@dataclass(frozen=True, kw_only=True)
class CollectionRequest:
    """The requested run."""

    source: Path
    source_name: str
    """The path as the user wrote it, for messages."""
    limit: int | None
    options: PlanOptions
    identity: Identity
    """Identity of a new run, without the hash of its rows."""
    resume: bool = False
    force: bool = False
    overwrite: bool = False
    max_attempts: int = 3
    limits: Mapping[str, int | None] | None = None
    """Limits of one rollout by name: a rollout that ended at a lower limit is run again."""
    on_read: OnRead = lambda _rows, _bytes: None

    def lines(self) -> Iterator[Line]:
        return _report_reading(read_lines(self.source, self.limit), self.on_read)


def _report_reading(lines: Iterable[Line], on_read: OnRead) -> Iterator[Line]:
    size = 0
    for count, line in enumerate(lines, start=1):
        size += len(line[1])
        yield line
        if not count % _LINES_PER_REPORT:
            on_read(count, size)


@dataclass(frozen=True)
class PreparedRun:
    """The jobs to run."""

    summary: PlanSummary
    jobs: Iterator[Job]
    tokens: int = 0
    """Tokens used by the resumed run so far."""


def prepare_run(store: RolloutStore, request: CollectionRequest) -> PreparedRun:
    """Make the store ready and return the jobs to run. The store must be held.

    Raises:
        ConfigError: the rows cannot be sent as they are; nothing was removed.
        ResumeRefused: the stored run is another one.
        StoreError: the files cannot be read or written.
    """
    if request.resume and store.can_resume():
        return _resume_run(store, request)
    notes = [f"nothing to resume: {store.materialized} or {store.output} is missing; starting over"]
    return _start_run(store, request, notes if request.resume else [])


async def prepare_run_in_thread(store: RolloutStore, request: CollectionRequest) -> PreparedRun:
    """Run `prepare_run` on a thread: a million rows take a while, and the event loop must handle interrupts.

    A cancellation ends the work at its next report and waits for that: the files it writes are in use until then.
    """
    is_cancelled = threading.Event()

    def on_read(rows: int, size: int) -> None:
        if is_cancelled.is_set():
            raise asyncio.CancelledError
        request.on_read(rows, size)

    work = asyncio.ensure_future(asyncio.to_thread(prepare_run, store, replace(request, on_read=on_read)))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        is_cancelled.set()
        await asyncio.wait({work})
        if not work.cancelled():
            work.exception()  # retrieved, so that asyncio does not report it as lost
        raise


def check_request(store: RolloutStore, request: CollectionRequest) -> None:
    """Raise the errors that `prepare_run` would raise, without changing anything. The store must be held.

    Commands call this before they start servers. Rows are read, unless the run to resume has planned them.
    """
    if request.resume and store.can_resume():
        stored = read_identity(store.run)
        if stored is not None:
            _match_identity(store, request, stored[0])
        return
    _check_source(store, request)
    check_planned_rows(request.lines(), request.options, source=request.source_name)


def _check_source(store: RolloutStore, request: CollectionRequest) -> None:
    if request.source.resolve() in (store.output.resolve(), store.failures.resolve()):
        raise ConfigError(
            f"the rows of {request.source_name} would be replaced by the results",
            where=str(store.output),
            fix="choose another output",
        )


def _start_run(store: RolloutStore, request: CollectionRequest, notes: list[str]) -> PreparedRun:
    _check_source(store, request)
    rows = RowHash()
    stat = file_stat(request.source)
    jobs = plan_jobs(rows.over(request.lines()), request.options, source=request.source_name)
    kept = store.begin(jobs, keep=not request.overwrite)
    write_identity(store.run, replace(request.identity, rows=rows.text(), file_stat=stat))
    store.open()
    total = store.planned_count()
    if kept is not None:
        notes.append(f"the files of the run before are kept in {kept}")
    for note in notes:
        logger.info(note)
    return PreparedRun(PlanSummary(total, to_run=total, kept=kept, notes=notes), store.jobs())


def _resume_run(store: RolloutStore, request: CollectionRequest) -> PreparedRun:
    notes = _update_identity(store, request)
    history = store.history(request.limits)
    total, finished = store.planned_count(), len(history.finished)
    given_up = history.count_given_up(request.max_attempts)
    to_run = max(0, total - finished - given_up)
    logger.info("resuming: %d rollouts, %d finished, %d given up, %d to run", total, finished, given_up, to_run)
    for note in notes:
        logger.info(note)
    summary = PlanSummary(total, finished, given_up, to_run, resumed=True, notes=notes)
    return PreparedRun(summary, store.unfinished_jobs(history, request.max_attempts), history.tokens)


def _update_identity(store: RolloutStore, request: CollectionRequest) -> list[str]:
    """Check that the stored run is the requested one, store accepted changes and return notes about them."""
    stored = read_identity(store.run)
    if stored is None:
        if request.source.is_file():  # from now on it can be checked
            now = replace(request.identity, file_stat=file_stat(request.source))
            write_identity(store.run, _with_row_hash(now, request))
        return [f"{store.run} was missing, so it was not checked that this is the same run"]
    before, content = stored
    now, notes, has_more_repeats = _match_identity(store, request, before)
    if has_more_repeats:
        jobs = plan_more(request.lines, request.options, before=before.repeats, source=request.source_name)
        added = store.extend(jobs)
        notes.append(f"num_repeats: {before.repeats} -> {request.identity.repeats}; {added} rollouts added")
    if dict(before.limits) != dict(now.limits):
        names = sorted({*before.limits, *now.limits})
        old, new = before.limits, now.limits
        changes = [f"{name} {old.get(name)} -> {new.get(name)}" for name in names if old.get(name) != new.get(name)]
        notes.append(f"limits that apply from now on: {', '.join(changes)}")
    if notes or before != now:
        write_identity(store.run, now, content, "; ".join(notes))
    return notes


def _match_identity(
    store: RolloutStore, request: CollectionRequest, before: Identity
) -> tuple[Identity, list[str], bool]:
    """Return the identity from now on, notes about it, and whether it has more repeats than `before`.

    Raises:
        ResumeRefused: the stored run differs, and `force` is not set.
    """
    now, notes = _current_identity(before, request)
    differences = before.differences(now)
    more = added_repeats(before.repeats, request.identity.repeats)
    if any(count < 0 for count in more.values()):
        differences.append(f"num_repeats: {before.repeats} -> {request.identity.repeats} (only more are accepted)")
    if not differences:
        return now, notes, any(more.values())
    listed = differences[:_LISTED]
    if len(differences) > _LISTED:
        listed.append(f"… and {len(differences) - _LISTED} more")
    if not request.force:
        raise ResumeRefused(
            "this is not the run that was begun; what differs:" + "".join(f"\n    {line}" for line in listed),
            where=str(store.run),
            fix="leave out --resume to start over (the earlier files are kept), "
            "or add --force-resume (+force_resume=true) to go on with the rows and parameters that were planned",
        )
    notes.append(f"resumed by force although these differ: {'; '.join(listed)}")
    # The rows are still those that were planned.
    kept = replace(now, rows=before.rows, plan=before.plan, file_stat=before.file_stat, repeats=before.repeats)
    return kept, notes, False


def _current_identity(before: Identity, request: CollectionRequest) -> tuple[Identity, list[str]]:
    """Return the identity of the request; rows are hashed only if the input file changed."""
    now = replace(request.identity, file_stat=file_stat(request.source))
    if not now.file_stat:
        note = f"{request.source_name} is gone; the rows are those that were planned"
        return replace(now, rows=before.rows, file_stat=before.file_stat), [note]
    if has_same_rows(before, now):
        return replace(now, rows=before.rows), []
    return _with_row_hash(now, request), []


def _with_row_hash(identity: Identity, request: CollectionRequest) -> Identity:
    rows = RowHash()
    for _ in rows.over(request.lines()):
        pass
    return replace(identity, rows=rows.text())
