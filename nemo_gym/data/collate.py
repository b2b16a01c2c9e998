"""From the datasets of agents to the files a trainer reads: every row checked and measured in one pass.

Nothing is written where anybody looks until all rows of all datasets are good and agree with the metrics that are
kept beside them; then every file appears at once.
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from nemo_gym.catalog.files import whole_file
from nemo_gym.data.chunks import Span, span_of
from nemo_gym.data.measure import Metrics, Report
from nemo_gym.data.prepare import Prepared, Task
from nemo_gym.data.problems import DataError, Problems, counted
from nemo_gym.data.sidecar import State, compared, metrics_text
from nemo_gym.data.sources import Source, Watch, described
from nemo_gym.data.staged import StagedFiles
from nemo_gym.data.tokens import EXTRA_NOTE
from nemo_gym.data.workers import MOST, PARALLEL_FROM, prepare_all, usable_processors

CHUNK = 2 * 1024 * 1024
"""Bytes that a chunk has when it is written; rows that are repeated are read in smaller ones."""
SMALLEST_CHUNK = 4096


class RowsRefused(DataError):
    """Rows that cannot be used; nothing was written."""

    def __init__(self, files: Sequence[tuple[Source, Problems]], *, stopped: bool) -> None:
        self.files = list(files)
        self.stopped = stopped
        rows = sum(problems.rows for _, problems in files)
        super().__init__(f"{counted(rows)} cannot be used; nothing was written")

    def __str__(self) -> str:
        parts = [self.problem]
        for source, problems in self.files:
            parts.append(f"{source.path} ({source.agent}): {counted(problems.rows)}")
            parts += [f"  {line}" for line in str(problems).splitlines()]
        if self.stopped:
            parts.append("reading stopped here (--max-errors); there may be more")
        return "\n".join(parts)


class MetricsConflict(DataError):
    """The rows are not those that the metrics beside them were made from."""

    def __init__(self, conflicts: Sequence[tuple[Source, Sequence[str]]]) -> None:
        self.conflicts = list(conflicts)
        files = [str(path) for source, _ in conflicts for path in (source.metrics_path, source.conflict_path)]
        super().__init__(
            "the rows are not those that these metrics were made from; nothing else was written",
            fix=f"put the rows back; or, if they are right, --overwrite-metrics (or rm {' '.join(files)})",
        )

    def __str__(self) -> str:
        parts = [self.problem]
        for source, differences in self.conflicts:
            parts.append(f"{source.metrics_path} (the new ones: {source.conflict_path.name})")
            parts += [f"  {difference}" for difference in differences]
        return "\n".join([*parts, f"  try: {self.fix}"])


@dataclass(frozen=True, slots=True)
class CollatedDataset:
    """What was found about one dataset."""

    source: Source
    examples: int
    metrics: dict[str, Any]
    state: State
    """How the metrics file beside it compared; a conflict was overwritten."""


@dataclass(frozen=True, slots=True)
class CollatedType:
    """One file of rows for training or validation, and what was measured about it."""

    type: str
    path: Path
    metrics_path: Path
    metrics: Metrics
    report: Report


@dataclass(slots=True)
class Collated:
    """What was written."""

    datasets: list[CollatedDataset] = field(default_factory=list)
    types: list[CollatedType] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Reading:
    """A source while its rows come in."""

    source: Source
    span: Span
    status: tuple[int, int]
    metrics: Metrics = field(default_factory=Metrics)
    problems: Problems = field(default_factory=Problems)
    other_agents: Counter[str] = field(default_factory=Counter)
    lines: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is done at once, and after how many rows that cannot be used reading stops."""

    max_errors: int | None = None
    processes: int | None = None


def collate(
    sources: Sequence[Source], output: Path, *, overwrite: bool = False, limits: Limits | None = None, watch: Watch
) -> Collated:
    """Check, measure and write the rows of all sources; their files must be there.

    Raises:
        RowsRefused: with every row that cannot be used.
        MetricsConflict: a metrics file says something else, and `overwrite` is not set.
        DataError: a dataset has no rows, changed while it was read, or a file cannot be written.
    """
    _check_outputs(sources, output)
    readings = [_reading(source) for source in sources]
    try:
        with StagedFiles() as staged:
            stopped = _read(readings, output, staged, limits or Limits(), watch)
            _check(readings, stopped=stopped)
            collated = _compared(readings, staged, overwrite=overwrite)
            _write_types(readings, output, staged, collated)
            staged.commit()
    except OSError as error:
        where = str(error.filename or output)
        raise DataError(f"cannot be read or written: {error.strerror or error}", where=where) from error
    for reading in readings:
        reading.source.conflict_path.unlink(missing_ok=True)
    return collated


def _reading(source: Source) -> _Reading:
    span = span_of(source.path, *source.rows)
    return _Reading(source, span, _status(source.path))


def _status(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _read(readings: Sequence[_Reading], output: Path, staged: StagedFiles, limits: Limits, watch: Watch) -> bool:
    """Read all rows and write them to where they will appear; whether reading stopped before the end."""
    total = sum(reading.span.size for reading in readings)
    done = bad = 0
    owners: deque[tuple[_Reading, int]] = deque()
    kinds = dict.fromkeys(reading.source.config.type for reading in readings)
    collated = {kind: staged.create(output / f"{kind}.jsonl") for kind in kinds}
    current: _Reading | None = None
    beside: BinaryIO | None = None
    tasks = _tasks(readings, owners, limits.max_errors)
    with closing(prepare_all(tasks, processes=_processes(limits, total))) as results:
        for found in results:
            reading, size = owners.popleft()
            if reading is not current:
                current, beside = reading, staged.create(reading.source.prepared_path)
            assert beside is not None
            _take(reading, found)
            beside.write(found.written)
            collated[reading.source.config.type].write(found.written)
            done += size
            bad += found.problems.rows
            watch("collating", done, total)
            if limits.max_errors is not None and bad >= limits.max_errors:
                over = bad - limits.max_errors
                reading.problems = reading.problems.first(reading.problems.rows - over)
                return True
    return False


def _tasks(
    readings: Sequence[_Reading], owners: "deque[tuple[_Reading, int]]", max_errors: int | None
) -> Iterator[Task]:
    """The work on all files; whose a task is, and how many bytes it has, is put on `owners`."""
    for reading in readings:
        source = reading.source
        repeats = source.config.num_repeats
        for chunk in reading.span.chunks(max(CHUNK // repeats, SMALLEST_CHUNK)):
            owners.append((reading, chunk.end - chunk.start))
            yield Task(chunk, source.agent, repeats, source.prompt, max_errors)


def _take(reading: _Reading, found: Prepared) -> None:
    reading.metrics.merge(found.metrics)
    reading.problems.merge(found.problems, after=reading.span.lines_before + reading.lines)
    reading.other_agents += found.other_agents
    reading.lines += found.lines


def _processes(limits: Limits, size: int) -> int:
    if limits.processes is not None:
        return limits.processes
    return min(usable_processors(), MOST) if size >= PARALLEL_FROM else 1


def _check(readings: Sequence[_Reading], *, stopped: bool) -> None:
    refused = [(reading.source, reading.problems) for reading in readings if reading.problems]
    if refused:
        raise RowsRefused(refused, stopped=stopped)
    for reading in readings:
        path = reading.source.path
        if _status(path) != reading.status:
            raise DataError("the file changed while it was read", where=str(path), fix="collate again")
        if not reading.metrics.examples:
            first, end = reading.source.rows
            sliced = "" if first is None and end is None else f" between start_idx {first or 0} and end_idx {end}"
            raise DataError(f"the dataset has no rows{sliced}", where=str(path))


def _compared(readings: Sequence[_Reading], staged: StagedFiles, *, overwrite: bool) -> Collated:
    """Compare with the metrics beside each file, and stage what is to be written there."""
    collated = Collated()
    conflicts = []
    for reading in readings:
        source = reading.source
        metrics = described(source) | reading.metrics.report()
        state, differences, wanted = compared(source.metrics_path, metrics)
        if state == "conflict" and not overwrite:
            conflicts.append((source, differences))
            with whole_file(source.conflict_path) as stream:
                stream.write(metrics_text(wanted))
        if state != "same":
            staged.write(source.metrics_path, metrics_text(wanted))
        collated.datasets.append(CollatedDataset(source, reading.metrics.examples, wanted, state))
        collated.notes += _notes(reading, differences)
    if conflicts:
        raise MetricsConflict(conflicts)
    if not any(reading.metrics.tokens.seen for reading in readings):
        collated.notes.append(EXTRA_NOTE)
    return collated


def _notes(reading: _Reading, differences: Sequence[str]) -> list[str]:
    path = reading.source.path
    notes = [
        f"{path}: {counted(count)} named the agent {name!r} and {'is' if count == 1 else 'are'} now "
        f"for {reading.source.agent!r}"
        for name, count in reading.other_agents.items()
    ]
    if differences:
        notes.append(f"{reading.source.metrics_path} was overwritten: {len(differences)} figures differed")
    return notes


def _write_types(readings: Sequence[_Reading], output: Path, staged: StagedFiles, collated: Collated) -> None:
    merged: dict[str, Metrics] = {}
    for reading in readings:
        merged.setdefault(reading.source.config.type, Metrics()).merge(reading.metrics)
    for kind, metrics in merged.items():
        report, path = metrics.report(), output / f"{kind}_metrics.json"
        staged.write(path, metrics_text(report))
        collated.types.append(CollatedType(kind, output / f"{kind}.jsonl", path, metrics, report))


def _check_outputs(sources: Sequence[Source], output: Path) -> None:
    """Refuse to write over what is read."""
    read = {source.path.resolve() for source in sources}
    kinds = dict.fromkeys(source.config.type for source in sources)
    written = [output / f"{kind}.jsonl" for kind in kinds] + [source.prepared_path for source in sources]
    for path in written:
        if path.resolve() in read:
            raise DataError(
                "this dataset would be overwritten by the collated rows", where=str(path), fix="another --output-dir"
            )
    if output.exists() and not output.is_dir():
        raise DataError(
            "the output must be a folder, and this is a file", where=str(output), fix="another --output-dir"
        )
