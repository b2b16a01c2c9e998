"""Prepare dataset rows for collation: split files into chunks; check, measure and encode the rows of each."""

import itertools
import json
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from nemo_gym.catalog.row_problems import RowProblem, RowProblems
from nemo_gym.catalog.rows import Row, RowChecker, exact_row, read_line, row_line, row_problems
from nemo_gym.data.prompt import PromptConfig, fill_row, load_prompt_config
from nemo_gym.data.row_metrics import Metrics, MetricsCollector, token_counter
from nemo_gym.errors import GymError
from nemo_gym.keys import AGENT_REF_KEY_NAME, AGENTS, TASK_SOURCE_KEY_NAME
from nemo_gym.keys import RESPONSES_CREATE_PARAMS_KEY_NAME as PARAMS
from nemo_gym.processes import exit_with_parent, has_single_thread


class WorkerFailed(GymError):
    """A worker process exited unexpectedly."""

    exit_status = 3


@dataclass(frozen=True, slots=True)
class FileSpan:
    """The bytes of a file from `start` to `end` (exclusive), and the number of lines before them."""

    path: Path
    start: int
    end: int
    lines_before: int = 0

    @property
    def size(self) -> int:
        return self.end - self.start

    def lines(self) -> list[bytes]:
        """Read the lines, without their line feeds."""
        with self.path.open("rb") as stream:
            stream.seek(self.start)
            content = stream.read(self.size)
        return content.removesuffix(b"\n").split(b"\n") if content else []

    def chunks(self, size: int) -> "Iterator[FileSpan]":
        """Split the span into chunks of whole lines, of about `size` bytes. Their `lines_before` stays 0."""
        with self.path.open("rb") as stream:
            start = self.start
            while start < self.end:
                end = min(start + size, self.end)
                if end < self.end:  # extend the chunk to the end of its last line
                    stream.seek(end - 1)
                    stream.readline()
                    end = min(stream.tell(), self.end)
                yield FileSpan(self.path, start, end)
                start = end


def line_span(path: Path, first: int | None = None, end: int | None = None) -> FileSpan:
    """Return the span of the lines from `first` up to but excluding `end`, counted from 0; default: all lines."""
    end_offset = path.stat().st_size
    first = first or 0
    with path.open("rb") as stream:
        lines_before = sum(1 for _ in itertools.islice(stream, first))
        start_offset = stream.tell()
        if end is not None:
            end_offset = start_offset + sum(map(len, itertools.islice(stream, max(end - first, 0))))
    return FileSpan(path, start_offset, end_offset, lines_before)


@dataclass(frozen=True, slots=True)
class ChunkSpec:
    """A chunk with the settings for preparing its rows."""

    chunk: FileSpan
    agent: str
    repeats: int = 1
    prompt: Path | None = None
    max_errors: int | None = None
    """Stop after this many invalid rows."""
    source: int = 0
    """Position of the dataset among those that are collated together."""
    task_source: str | None = None
    """The resources server that declares the dataset; None if the agent does."""


@dataclass(slots=True)
class PreparedChunk:
    """The rows of a chunk, checked, measured and encoded."""

    lines: int = 0
    """Number of lines that were read."""
    written: bytes = b""
    """The encoded rows, to be written to the collated file; empty if a row is invalid."""
    metrics: Metrics = field(default_factory=Metrics)
    problems: RowProblems = field(default_factory=RowProblems)
    other_agents: Counter[str] = field(default_factory=Counter)
    """Number of rows per agent reference that was replaced by the agent of the dataset."""


class ChunkPreparer:
    """Prepares chunks one after the other; all chunks share the caches of the row checker and the metrics.

    With `measure=False`, rows are checked and encoded, but not measured.
    """

    def __init__(self, *, measure: bool = True) -> None:
        self._checker = RowChecker()
        self._metrics = MetricsCollector() if measure else None

    def prepare(self, spec: ChunkSpec) -> PreparedChunk:
        """Prepare the rows of a chunk; stop after `max_errors` invalid rows."""
        result = PreparedChunk()
        prompt = load_prompt_config(spec.prompt) if spec.prompt else None
        stamp = AgentStamp(spec.agent, spec.task_source)
        encoded = []
        for raw in spec.chunk.lines():
            result.lines += 1
            line, problems = self._prepare_line(raw, prompt, stamp, spec.repeats)
            if problems:
                result.problems.add(result.lines, problems)
                if spec.max_errors is not None and result.problems.rows >= spec.max_errors:
                    break
            encoded.append(line)
        if not result.problems:
            result.written = b"".join(encoded)
        if self._metrics is not None:
            result.metrics = self._metrics.take()
        result.other_agents = stamp.replaced
        return result

    def _prepare_line(
        self, raw: bytes, prompt: PromptConfig | None, stamp: "AgentStamp", repeats: int
    ) -> tuple[bytes, list[RowProblem]]:
        """Check and measure one row; return its encoded lines, one for each repeat, or its problems."""
        row, problems = read_line(raw)
        if row is None:
            return b"", problems
        filled: Row | None = None
        if prompt is not None:
            # `exact_row` needs a line without problems; a row with problems is filled only to find further ones.
            result = fill_row(row if problems else exact_row(raw), prompt)
            if isinstance(result, RowProblem):
                return b"", [*problems, result]
            filled = result
            # Integers beyond 64 bits are written exactly, but checked as floats, because servers parse them as floats.
            params = row.get(PARAMS)
            row = {**row, PARAMS: {**(params if isinstance(params, dict) else {}), "input": filled[PARAMS]["input"]}}
        request = self._checker.parse_request(row)
        if request is None:
            problems += row_problems(row)
        if problems or request is None:
            return b"", problems
        if self._metrics is not None:
            self._metrics.add(row, request, repeats)
        line = stamp.stamp_line(raw, row) if filled is None else stamp.stamp_row(filled)
        return (line if repeats == 1 else line * repeats), []


class AgentStamp:
    """Writes the reference to an agent into rows and counts the references to other agents that it replaced.

    With `task_source`, rows also name the resources server that declares their dataset.
    """

    def __init__(self, agent: str, task_source: str | None = None) -> None:
        self.replaced: Counter[str] = Counter()
        self._ref = {"type": AGENTS, "name": agent}
        self._fields: Row = {AGENT_REF_KEY_NAME: self._ref}
        if task_source is not None:
            self._fields[TASK_SOURCE_KEY_NAME] = task_source
        encoded = json.dumps(self._fields, ensure_ascii=False)
        self._ending = f", {encoded[1:]}\n".encode()
        """The last fields of a row and its closing brace."""

    def stamp_line(self, raw: bytes, row: Row) -> bytes:
        """Return the line `raw`, which encodes `row`, with the reference; encode the row again only if necessary."""
        if self._fields.keys().isdisjoint(row):
            return raw.strip().removesuffix(b"}") + self._ending
        if all(row.get(name) == value for name, value in self._fields.items()):
            return raw.strip() + b"\n"
        return self.stamp_row(exact_row(raw))

    def stamp_row(self, row: Row) -> bytes:
        """Encode the row with the reference to the agent; count a replaced reference in `replaced`."""
        reference = row.get(AGENT_REF_KEY_NAME)
        if reference is not None and reference != self._ref:
            name = reference.get("name") if isinstance(reference, dict) else None
            self.replaced[str(name)] += 1
        return row_line({**row, **self._fields})


def prepare_chunks(
    specs: Sequence[ChunkSpec], *, processes: int
) -> Generator[tuple[ChunkSpec, PreparedChunk], None, None]:
    """Yield every spec with its prepared chunk, in the order of `specs`.

    The worker processes are forks of this process, so they need no imports and know the specs. A process with several
    threads prepares all chunks itself, because a fork would copy the locks that its other threads hold.
    """
    if processes <= 1 or not has_single_thread():
        preparer = ChunkPreparer()
        yield from ((spec, preparer.prepare(spec)) for spec in specs)
        return
    token_counter()  # loads the tokenizer before the forks, which then share its memory
    context = multiprocessing.get_context("fork")
    workers: list[tuple[BaseProcess, Connection]] = []
    try:
        for number in range(processes):
            reader, writer = context.Pipe(duplex=False)
            worker = context.Process(target=_run_worker, args=(specs[number::processes], writer))
            worker.start()
            writer.close()  # so that reading ends when the worker has ended
            workers.append((worker, reader))
        # Worker n has the specs n, n + processes, …, so the results of all workers are read in turn.
        for spec, (_, reader) in zip(specs, itertools.cycle(workers), strict=False):
            yield spec, _receive_chunk(reader, spec)
    finally:
        for process, reader in workers:
            process.kill()  # workers have no state to save
            process.join()
            reader.close()


def _receive_chunk(reader: Connection, spec: ChunkSpec) -> PreparedChunk:
    """Return the next result of a worker, or raise the exception that it sent."""
    try:
        result: PreparedChunk | Exception = reader.recv()
    except (EOFError, OSError):
        problem = f"the worker process of {spec.chunk.path} ended unexpectedly"
        raise WorkerFailed(problem, fix="check the free memory, or use fewer processes") from None
    if isinstance(result, Exception):
        raise result
    return result


def _run_worker(specs: Sequence[ChunkSpec], writer: Connection) -> None:
    """Prepare chunks in a worker process. A full pipe blocks the worker until its results are needed."""
    exit_with_parent()
    os.setpgid(0, 0)  # Ctrl-C goes to the parent, which then kills its workers
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    preparer = ChunkPreparer()
    for spec in specs:
        try:
            writer.send(preparer.prepare(spec))
        except (GymError, OSError) as error:
            writer.send(error)
