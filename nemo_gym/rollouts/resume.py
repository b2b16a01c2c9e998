"""From what was asked for to the jobs to run: a new run, or the rest of an earlier one."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.identity import Identity, RowHash, read_identity, same_rows, seen_file, write_identity
from nemo_gym.rollouts.job import Job
from nemo_gym.rollouts.plan import Line, PlanOptions, added_repeats, plan, plan_more, read_lines
from nemo_gym.rollouts.plan import check as check_rows
from nemo_gym.rollouts.planned import Planned
from nemo_gym.rollouts.store import RolloutStore

logger = logging.getLogger("nemo_gym.rollouts")

_LISTED = 20
_LOOK_EVERY = 2048

Watch = Callable[[int, int], None]
"""Told now and then how many rows, and bytes, were read so far; what it raises ends the reading."""


class ResumeRefused(ConfigError, ValueError):
    """What shall be resumed is not the run that was begun."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked for."""

    source: Path
    source_name: str
    """As the user wrote it, for messages."""
    limit: int | None
    options: PlanOptions
    identity: Identity
    """Of the run as it would be begun now; its rows are hashed here."""
    resume: bool = False
    force: bool = False
    overwrite: bool = False
    max_attempts: int = 3
    limits: Mapping[str, int | None] | None = None
    """Of one rollout, by what they limit: one that ended at a lower limit is run again."""

    watch: Watch = lambda _rows, _bytes: None

    def lines(self) -> Iterator[Line]:
        return _watched(read_lines(self.source, self.limit), self.watch)


def _watched(lines: Iterable[Line], watch: Watch) -> Iterator[Line]:
    size = 0
    for count, line in enumerate(lines, start=1):
        size += len(line[1])
        yield line
        if not count % _LOOK_EVERY:
            watch(count, size)


@dataclass(frozen=True)
class Prepared:
    """The jobs to run, and what is known about them."""

    planned: Planned
    jobs: Iterator[Job]
    tokens: int = 0
    """Spent by what is resumed."""


def prepare(store: RolloutStore, request: Request) -> Prepared:
    """Make the store ready and return the jobs to run, one at a time. The store must be held.

    Raises:
        ConfigError: the rows cannot be sent as they are; nothing was removed.
        ResumeRefused: what shall be resumed is another run.
        StoreError: the files cannot be read or written.
    """
    if request.resume and store.can_resume():
        return _resumed(store, request)
    notes = [f"nothing to resume: {store.materialized} or {store.output} is missing; starting over"]
    return _begun(store, request, notes if request.resume else [])


async def prepare_apart(store: RolloutStore, request: Request) -> Prepared:
    """`prepare` on a thread: a million rows take a while, and whoever shares the loop shall hear an interrupt.

    Being cancelled ends it at the next look it takes, and waits for that: the files it writes are in use until then.
    """
    cancelled = threading.Event()

    def watch(rows: int, read: int) -> None:
        if cancelled.is_set():
            raise asyncio.CancelledError
        request.watch(rows, read)

    working = asyncio.ensure_future(asyncio.to_thread(prepare, store, replace(request, watch=watch)))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        cancelled.set()
        await asyncio.wait({working})
        if not working.cancelled():
            working.exception()  # looked at, so that nobody reports it as lost
        raise


def check(store: RolloutStore, request: Request) -> None:
    """Raise what `prepare` would refuse. Nothing is changed; the store must be held.

    For those who start servers first: a minute later the answer would be the same. The rows are read for it, unless
    they were planned by the run that shall be resumed.
    """
    if request.resume and store.can_resume():
        known = read_identity(store.run)
        if known is not None:
            _compared(store, request, known[0])
        return
    _check_source(store, request)
    check_rows(request.lines(), request.options, source=request.source_name)


def _check_source(store: RolloutStore, request: Request) -> None:
    if request.source.resolve() in (store.output.resolve(), store.failures.resolve()):
        raise ConfigError(
            f"the rows of {request.source_name} would be replaced by the results",
            where=str(store.output),
            fix="choose another output",
        )


def _begun(store: RolloutStore, request: Request, notes: list[str]) -> Prepared:
    _check_source(store, request)
    rows = RowHash()
    seen = seen_file(request.source)
    jobs = plan(rows.over(request.lines()), request.options, source=request.source_name)
    kept = store.begin(jobs, keep=not request.overwrite)
    write_identity(store.run, replace(request.identity, rows=rows.text(), seen=seen))
    store.open()
    total = store.planned()
    if kept is not None:
        notes.append(f"the files of the run before are kept in {kept}")
    for note in notes:
        logger.info(note)
    return Prepared(Planned(total, to_run=total, kept=kept, notes=notes), store.jobs())


def _resumed(store: RolloutStore, request: Request) -> Prepared:
    notes = _agree(store, request)
    history = store.history(request.limits)
    total = store.planned()
    given_up = history.given_up(request.max_attempts)
    finished = len(history.finished)
    planned = Planned(
        total,
        finished=finished,
        given_up=given_up,
        to_run=max(0, total - finished - given_up),
        resumed=True,
        notes=notes,
    )
    logger.info("resuming: %d rollouts, %d finished, %d given up, %d to run", total, finished, given_up, planned.to_run)
    for note in notes:
        logger.info(note)
    return Prepared(planned, store.unfinished(history, request.max_attempts), history.tokens)


@dataclass(frozen=True)
class _Compared:
    """The identity to go by from now on, what there is to say about it, and the repeats it has more."""

    now: Identity
    notes: list[str]
    more: bool = False


def _agree(store: RolloutStore, request: Request) -> list[str]:
    """Check that it is the same run, take over accepted changes, and return what there is to say about it."""
    known = read_identity(store.run)
    if known is None:
        if request.source.is_file():  # from now on it can be checked
            write_identity(store.run, _with_rows(replace(request.identity, seen=seen_file(request.source)), request))
        return [f"{store.run} was missing, so nobody checked that this is the same run"]
    before, content = known
    found = _compared(store, request, before)
    notes = found.notes
    if found.more:
        added = store.extend(
            plan_more(request.lines, request.options, before=before.repeats, source=request.source_name)
        )
        notes.append(f"num_repeats: {before.repeats} -> {request.identity.repeats}; {added} rollouts added")
    if dict(before.limits) != dict(found.now.limits):
        changed = ", ".join(_changed_limits(before.limits, found.now.limits))
        notes.append(f"limits that apply from now on: {changed}")
    if notes or before != found.now:
        write_identity(store.run, found.now, content, "; ".join(notes))
    return notes


def _compared(store: RolloutStore, request: Request, before: Identity) -> _Compared:
    """What becomes of the run `before`.

    Raises:
        ResumeRefused: it is another one, and nobody insists.
    """
    now, notes = _now(before, request)
    differing = before.differences(now)
    more = added_repeats(before.repeats, request.identity.repeats)
    if any(count < 0 for count in more.values()):
        differing.append(f"num_repeats: {before.repeats} -> {request.identity.repeats} (only more are accepted)")
    if not differing:
        return _Compared(now, notes, more=any(more.values()))
    _refuse_or_note(store, request, differing, notes)
    # By force, but the rows are still those that were planned.
    return _Compared(replace(now, rows=before.rows, plan=before.plan, seen=before.seen, repeats=before.repeats), notes)


def _now(before: Identity, request: Request) -> tuple[Identity, list[str]]:
    """The identity of what is asked for; the rows are only hashed when the file was touched."""
    now = replace(request.identity, seen=seen_file(request.source))
    if not now.seen:
        return replace(now, rows=before.rows, seen=before.seen), [
            f"{request.source_name} is gone; the rows are those that were planned"
        ]
    if same_rows(before, now.seen, now.plan):
        return replace(now, rows=before.rows), []
    return _with_rows(now, request), []


def _with_rows(identity: Identity, request: Request) -> Identity:
    rows = RowHash()
    for _ in rows.over(request.lines()):
        pass
    return replace(identity, rows=rows.text())


def _refuse_or_note(store: RolloutStore, request: Request, differing: list[str], notes: list[str]) -> None:
    listed = differing[:_LISTED] + ([f"… and {len(differing) - _LISTED} more"] if len(differing) > _LISTED else [])
    if not request.force:
        text = "".join(f"\n    {line}" for line in listed)
        raise ResumeRefused(
            f"this is not the run that was begun; what differs:{text}",
            where=str(store.run),
            fix="leave out --resume to start over (the earlier files are kept), "
            "or add --force-resume (+force_resume=true) to go on with the rows and parameters that were planned",
        )
    notes.append(f"resumed by force although these differ: {'; '.join(listed)}")


def _changed_limits(before: Any, now: Any) -> Iterator[str]:
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            yield f"{name} {before.get(name)} -> {now.get(name)}"
