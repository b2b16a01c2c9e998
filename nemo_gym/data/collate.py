"""Collate the datasets of agents into the files for a trainer; check and measure every row in one pass.

Files are written only if all rows of all datasets are valid and their metrics agree with the metrics files next to the
datasets.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_gym.catalog.atomic_files import StagedFiles, whole_file
from nemo_gym.catalog.row_problems import DataError, RowProblems, row_count_text
from nemo_gym.data.chunks import ChunkSpec, FileSpan, line_span, prepare_chunks
from nemo_gym.data.row_metrics import NO_TOKENIZER_NOTE, Metrics, MetricsState, Report, compare_metrics, encode_metrics
from nemo_gym.data.sources import DatasetSource, Watch

CHUNK = 2 * 1024 * 1024
"""Size in bytes of the rows of a chunk, with all their repeats."""
SMALLEST_CHUNK = 4096
MIN_PARALLEL_BYTES = 16 * 1024 * 1024
"""Minimum size of the data, in bytes, for which worker processes are started."""
MAX_PROCESSES = 8
"""Default maximum number of worker processes; each uses about 100 MB."""


class RowsRefused(DataError):
    """Some rows are invalid; no file was written."""

    def __init__(self, files: Sequence[tuple[DatasetSource, RowProblems]], *, stopped: bool) -> None:
        self.files = list(files)
        self.stopped = stopped
        rows = sum(problems.rows for _, problems in files)
        super().__init__(f"{row_count_text(rows)} cannot be used; no file was written")

    def __str__(self) -> str:
        parts = [self.problem]
        for source, problems in self.files:
            parts.append(f"{source.path} ({source.agent}): {row_count_text(problems.rows)}")
            parts += [f"  {line}" for line in str(problems).splitlines()]
        if self.stopped:
            parts.append("stopped at --max-errors; there may be more invalid rows")
        return "\n".join(parts)


class MetricsConflict(DataError):
    """The metrics of the rows differ from the metrics files next to the datasets."""

    def __init__(self, conflicts: Sequence[tuple[DatasetSource, Sequence[str]]]) -> None:
        self.conflicts = list(conflicts)
        files = [str(path) for source, _ in conflicts for path in (source.metrics_path, source.conflict_path)]
        super().__init__(
            "the metrics of the rows differ from these metrics files; no rows were written",
            fix=f"restore the rows; or, if the rows are right, use --overwrite-metrics (or rm {' '.join(files)})",
        )

    def __str__(self) -> str:
        parts = [self.problem]
        for source, differences in self.conflicts:
            parts.append(f"{source.metrics_path} (new metrics: {source.conflict_path.name})")
            parts += [f"  {difference}" for difference in differences]
        return "\n".join([*parts, f"  try: {self.fix}"])


@dataclass(frozen=True, slots=True)
class CollatedDataset:
    """The metrics of one dataset."""

    source: DatasetSource
    examples: int
    metrics: dict[str, Any]
    state: MetricsState
    """Result of comparing with the existing metrics file; a file in conflict was overwritten."""


@dataclass(frozen=True, slots=True)
class CollatedType:
    """The file of rows of one dataset type, and its metrics."""

    type: str
    path: Path
    metrics_path: Path
    metrics: Metrics
    report: Report


@dataclass(slots=True)
class CollationResult:
    """The collated datasets, the files of each dataset type, and notes for the user."""

    datasets: list[CollatedDataset] = field(default_factory=list)
    types: list[CollatedType] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Scan:
    """One source while it is read, with the results so far."""

    source: DatasetSource
    span: FileSpan
    file_state: tuple[int, int]
    """Size and modification time of the file when reading began."""
    metrics: Metrics = field(default_factory=Metrics)
    problems: RowProblems = field(default_factory=RowProblems)
    other_agents: Counter[str] = field(default_factory=Counter)
    lines: int = 0


def collate(
    sources: Sequence[DatasetSource],
    output: Path,
    *,
    overwrite: bool = False,
    max_errors: int | None = None,
    processes: int | None = None,
    watch: Watch,
) -> CollationResult:
    """Check, measure and write the rows of all sources; their files must exist.

    Reading stops after `max_errors` invalid rows. By default, the size of the data determines the number of processes.

    Raises:
        RowsRefused: rows are invalid; the error lists the problems of the rows that were read.
        MetricsConflict: a metrics file differs and `overwrite` is not set.
        DataError: a dataset has no rows, changed while it was read, or a file cannot be written.
    """
    _check_outputs(sources, output)
    scans = [_Scan(source, line_span(source.path, *source.row_range), _file_state(source.path)) for source in sources]
    try:
        with StagedFiles() as staged:
            stopped = _stage_rows(scans, output, staged, max_errors, processes, watch)
            _check_scans(scans, stopped=stopped)
            result = _stage_metrics(scans, staged, overwrite=overwrite)
            _stage_types(scans, output, staged, result)
            staged.commit()
    except OSError as error:
        location = str(error.filename or output)
        raise DataError(f"cannot be read or written: {error.strerror or error}", where=location) from error
    for source in sources:
        source.conflict_path.unlink(missing_ok=True)  # written by an earlier collation
    return result


def _file_state(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _stage_rows(
    scans: Sequence[_Scan],
    output: Path,
    staged: StagedFiles,
    max_errors: int | None,
    processes: int | None,
    watch: Watch,
) -> bool:
    """Read all rows and stage the files of rows; return whether reading stopped at `max_errors`."""
    total = sum(scan.span.size for scan in scans)
    done = invalid = 0
    kinds = dict.fromkeys(scan.source.config.type for scan in scans)
    collated = {kind: staged.create(output / f"{kind}.jsonl") for kind in kinds}
    prepared = [staged.create(scan.source.prepared_path) for scan in scans]
    if processes is None:
        processes = min(_usable_processors(), MAX_PROCESSES) if total >= MIN_PARALLEL_BYTES else 1
    with closing(prepare_chunks(list(_chunk_specs(scans, max_errors)), processes=processes)) as chunks:
        for spec, chunk in chunks:
            scan = scans[spec.source]
            scan.metrics.merge(chunk.metrics)
            scan.problems.merge(chunk.problems, after=scan.span.lines_before + scan.lines)
            scan.other_agents += chunk.other_agents
            scan.lines += chunk.lines
            prepared[spec.source].write(chunk.written)
            collated[scan.source.config.type].write(chunk.written)
            done += spec.chunk.size
            invalid += chunk.problems.rows
            watch("collating", done, total)
            if max_errors is not None and invalid >= max_errors:
                surplus = invalid - max_errors  # the last chunk may have more invalid rows than the limit allows
                scan.problems = scan.problems.first(scan.problems.rows - surplus)
                return True
    return False


def _chunk_specs(scans: Sequence[_Scan], max_errors: int | None) -> Iterator[ChunkSpec]:
    """Yield the chunks of all files with the settings of their datasets."""
    for number, scan in enumerate(scans):
        source = scan.source
        repeats = source.config.num_repeats
        for chunk in scan.span.chunks(max(CHUNK // repeats, SMALLEST_CHUNK)):
            yield ChunkSpec(chunk, source.agent, repeats, source.prompt, max_errors, number, source.task_source)


def _usable_processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check_scans(scans: Sequence[_Scan], *, stopped: bool) -> None:
    """Raise if rows are invalid, a file changed while it was read, or a dataset is empty."""
    invalid = [(scan.source, scan.problems) for scan in scans if scan.problems]
    if invalid:
        raise RowsRefused(invalid, stopped=stopped)
    for scan in scans:
        path = scan.source.path
        if _file_state(path) != scan.file_state:
            raise DataError("the file changed while it was read", where=str(path), fix="collate again")
        if not scan.metrics.examples:
            first, end = scan.source.row_range
            rows = "" if first is None and end is None else f" between start_idx {first or 0} and end_idx {end}"
            raise DataError(f"the dataset has no rows{rows}", where=str(path))


def _stage_metrics(scans: Sequence[_Scan], staged: StagedFiles, *, overwrite: bool) -> CollationResult:
    """Compare each source's metrics with its metrics file; stage the files that change.

    The new metrics of a conflict are also written to a separate file, so that the user can compare both.

    Raises:
        MetricsConflict: a metrics file differs and `overwrite` is not set.
    """
    result = CollationResult()
    conflicts = []
    for scan in scans:
        source = scan.source
        metrics = source.config.model_dump(mode="json") | scan.metrics.report()
        state, differences, content = compare_metrics(source.metrics_path, metrics)
        if state == "conflict" and not overwrite:
            conflicts.append((source, differences))
            with whole_file(source.conflict_path) as stream:
                stream.write(encode_metrics(content))
        if state != "same":
            staged.write(source.metrics_path, encode_metrics(content))
        result.datasets.append(CollatedDataset(source, scan.metrics.examples, content, state))
        result.notes += _notes(scan, differences)
    if conflicts:
        raise MetricsConflict(conflicts)
    if not any(scan.metrics.tokens for scan in scans):
        result.notes.append(NO_TOKENIZER_NOTE)
    return result


def _notes(scan: _Scan, differences: Sequence[str]) -> list[str]:
    """Describe replaced agent references and an overwritten metrics file."""
    source = scan.source
    notes = [
        f"{source.path}: {row_count_text(count)} referred to the agent {name!r}, now to {source.agent!r}"
        for name, count in scan.other_agents.items()
    ]
    if differences:
        notes.append(f"{source.metrics_path} was overwritten: {len(differences)} figures differed")
    return notes


def _stage_types(scans: Sequence[_Scan], output: Path, staged: StagedFiles, result: CollationResult) -> None:
    """Merge the metrics of each dataset type and stage its metrics file."""
    merged: dict[str, Metrics] = {}
    for scan in scans:
        merged.setdefault(scan.source.config.type, Metrics()).merge(scan.metrics)
    for kind, metrics in merged.items():
        report, path = metrics.report(), output / f"{kind}_metrics.json"
        staged.write(path, encode_metrics(report))
        result.types.append(CollatedType(kind, output / f"{kind}.jsonl", path, metrics, report))


def _check_outputs(sources: Sequence[DatasetSource], output: Path) -> None:
    """Raise if an output file is an input file, or if the output folder is a file."""
    inputs = {source.path.resolve() for source in sources}
    kinds = dict.fromkeys(source.config.type for source in sources)
    fix = "use another --output-dir"
    for path in [output / f"{kind}.jsonl" for kind in kinds] + [source.prepared_path for source in sources]:
        if path.resolve() in inputs:
            raise DataError("the collated rows would overwrite this dataset", where=str(path), fix=fix)
    if output.exists() and not output.is_dir():
        raise DataError("the output folder is a file", where=str(output), fix=fix)
