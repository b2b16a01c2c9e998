"""Annotations that people give to rollouts, in a file next to the output: was the verdict right, and a note.

Each line is one annotation; a later line about a rollout replaces the earlier one, and a line without verdict and note
removes it. Lines are only appended, each with one write under a lock, so that several viewers can write at once.
"""

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.errors import GymError
from nemo_gym.journal import parse_line, scan_lines, unwritable_file
from nemo_gym.rollouts.run_files import annotations_path_for
from nemo_gym.wire.stored_rollout import RolloutId

LONGEST_NOTE = 4000
MAX_FILE_BYTES = 64_000_000
VERDICTS = ("good", "wrong_verdict", "unsure")
"""The verdict of the verifier is right, it is wrong, or the reader cannot tell."""


class InvalidAnnotation(GymError, ValueError):
    """An annotation has an unknown verdict, a note that is too long, or no valid rollout."""

    exit_status = 2


@dataclass(frozen=True, slots=True)
class Annotation:
    """The annotation of one rollout."""

    task: int
    rollout: int
    verdict: str = ""
    note: str = ""
    at: str = ""
    """When it was written, ISO 8601."""

    @property
    def rollout_id(self) -> RolloutId:
        return self.task, self.rollout

    @property
    def is_removal(self) -> bool:
        """True if it removes the annotation of the rollout."""
        return not self.verdict and not self.note

    @classmethod
    def parse(cls, fields: Any, *, now: bool = False) -> "Annotation":
        """Check the fields of an annotation; with `now` it is stamped with the present time.

        Raises:
            InvalidAnnotation: a field is missing, unknown or too long.
        """
        if not isinstance(fields, dict):
            raise InvalidAnnotation("an annotation is a JSON object")
        task, rollout = fields.get("task"), fields.get("rollout")
        if not isinstance(task, int) or not isinstance(rollout, int) or not all(map(_is_index, (task, rollout))):
            raise InvalidAnnotation("task and rollout must be whole numbers from 0")
        verdict, note = fields.get("verdict", ""), fields.get("note", "")
        if verdict not in ("", *VERDICTS):
            raise InvalidAnnotation(f"unknown verdict {verdict!r}", fix=f"one of {', '.join(VERDICTS)}")
        if not isinstance(note, str) or len(note) > LONGEST_NOTE:
            raise InvalidAnnotation(f"a note is a text of at most {LONGEST_NOTE} characters")
        at = datetime.now(UTC).isoformat(timespec="seconds") if now else str(fields.get("at", ""))[:40]
        return cls(task, rollout, verdict=verdict, note=note.encode("utf-8", "replace").decode(), at=at)


def read_annotations(output: Path) -> dict[RolloutId, Annotation]:
    """Return the current annotation of each rollout of a run; lines that are no annotations are skipped."""
    path = annotations_path_for(output)
    annotations: dict[RolloutId, Annotation] = {}
    if not _is_small_file(path):
        return annotations
    for _, line in scan_lines(path):
        try:
            annotation = Annotation.parse(parse_line(line))
        except InvalidAnnotation:
            continue
        if annotation.is_removal:
            annotations.pop(annotation.rollout_id, None)
        else:
            annotations[annotation.rollout_id] = annotation
    return annotations


def append_annotation(output: Path, annotation: Annotation) -> None:
    """Append an annotation to the file of a run; a torn last line of a crash is ended first.

    Raises:
        StoreError: the file cannot be written, or is a link.
    """
    path = annotations_path_for(output)
    try:
        with _locked_file(path) as descriptor:
            line = orjson.dumps(asdict(annotation)) + b"\n"
            size = os.fstat(descriptor).st_size
            is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            os.write(descriptor, b"\n" + line if is_torn else line)
            os.fsync(descriptor)
    except OSError as error:
        raise unwritable_file(path, error) from error


@contextmanager
def _locked_file(path: Path) -> Iterator[int]:
    """Open a file for appending, locked. A link is not followed: it may point out of the folder of the run."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _is_index(number: int) -> bool:
    return not isinstance(number, bool) and 0 <= number < 2**63


def _is_small_file(path: Path) -> bool:
    """Return whether a path is a regular file of at most MAX_FILE_BYTES."""
    try:
        facts = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(facts.st_mode) and facts.st_size <= MAX_FILE_BYTES
