"""Parts of a file that begin and end with whole lines, so that each can be worked on by itself."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO


@dataclass(frozen=True, slots=True)
class Chunk:
    """The bytes of a file from `start` up to `end`; `end` follows a line feed or is where reading ends."""

    path: Path
    start: int
    end: int

    def lines(self) -> list[bytes]:
        """The lines, without their line feeds."""
        with self.path.open("rb") as stream:
            stream.seek(self.start)
            content = stream.read(self.end - self.start)
        return content.removesuffix(b"\n").split(b"\n") if content else []


@dataclass(frozen=True, slots=True)
class Span:
    """The part of a file that is used: its bytes, and how many lines come before."""

    path: Path
    start: int
    end: int
    lines_before: int = 0

    @property
    def size(self) -> int:
        return self.end - self.start

    def chunks(self, size: int) -> Iterator[Chunk]:
        """Chunks of about `size` bytes, more where a line is longer than that."""
        with self.path.open("rb") as stream:
            start = self.start
            while start < self.end:
                end = min(start + size, self.end)
                if end < self.end:
                    stream.seek(end - 1)
                    stream.readline()
                    end = min(stream.tell(), self.end)
                yield Chunk(self.path, start, end)
                start = end


def span_of(path: Path, first: int | None = None, end: int | None = None) -> Span:
    """The lines `first` up to `end`, counted from 0; all of them unless said otherwise."""
    size = path.stat().st_size
    if first is None and end is None:
        return Span(path, 0, size)
    with path.open("rb") as stream:
        before, start = _skip(stream, first or 0)
        stop = size if end is None else start + _skip(stream, max(end - (first or 0), 0))[1]
    return Span(path, start, stop, before)


def _skip(stream: BinaryIO, count: int) -> tuple[int, int]:
    """How many lines (at most `count`) and how many bytes they have."""
    lines = size = 0
    for line in islice(stream, count):
        lines += 1
        size += len(line)
    return lines, size
