"""Transfer one file to or from a registry: checksums, resumable downloads, retries, errors.

Every wait has a limit: a request fails after `TIMEOUT` seconds without data. An interrupted transfer is resumed a few
times; then it fails and the received part is kept for the next command. The client libraries do not do this:
huggingface_hub deletes the received part on failure and does not verify checksums, MLflow does not resume.
"""

import contextlib
import fcntl
import hashlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

from nemo_gym.errors import ConfigPathNotFoundError, FileProblem, GymError

TIMEOUT = 60.0
"""Seconds without data from the registry after which a request fails."""
ATTEMPTS = 5
"""Maximum failed attempts in a row without enough progress."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds before the second attempt, and maximum before later attempts."""
ENOUGH_PROGRESS = 1 << 20
"""Bytes an attempt must transfer to reset the count of failed attempts."""
RETRYABLE_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
_BLOCK = 1 << 20

T = TypeVar("T")

Meter = Callable[[int, int | None], None]
"""Called with the number of bytes transferred and the total, if known."""


def ignore_progress(_done: int, _total: int | None) -> None:
    """Do nothing: the default `Meter`."""


class RegistryError(GymError):
    """A registry rejected a request or could not be reached."""

    exit_status = 3


class ChecksumMismatch(RegistryError):
    """The checksum of the transferred content is wrong."""

    exit_status = 1


class TransferInterrupted(Exception):
    """The transfer failed temporarily and should be retried: timeout, broken connection or overload."""


@dataclass(frozen=True, slots=True)
class Digest:
    """Size and checksums of a file."""

    size: int
    sha256: str
    git: str
    """The git blob id; for small files the Hub provides no other checksum."""

    def matches(self, checksum: str | None) -> bool:
        """Return whether the file has `checksum`, a SHA-256 or a git blob id; None matches every file."""
        return checksum in (None, self.sha256, self.git)


@dataclass(frozen=True, slots=True)
class FileStream:
    """The content of a file from byte `start` on. `total` is the size of the whole file, if known."""

    start: int
    total: int | None
    chunks: Iterator[bytes]


OpenStream = Callable[[int], AbstractContextManager[FileStream]]
"""Opens a remote file at an offset; the stream may start earlier. Raises `TransferInterrupted` or `RegistryError`."""


def existing_file(path: str | Path) -> Path:
    """Return the path of an existing file, with `~` expanded.

    Raises:
        ConfigPathNotFoundError: there is no file at the path.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        fix = "check the path; it is relative to the working directory"
        raise ConfigPathNotFoundError(f"file not found: {str(path)!r}", fix=fix)
    return file


def file_digest(path: Path) -> Digest:
    """Compute the checksums of a file, reading it once."""
    size = path.stat().st_size
    sha256, git = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            sha256.update(block)
            git.update(block)
    return Digest(size, sha256.hexdigest(), git.hexdigest())


def range_headers(offset: int) -> dict[str, str]:
    """Return the HTTP headers of a request for the uncompressed bytes of a file from `offset` on."""
    return {"Accept-Encoding": "identity", **({"Range": f"bytes={offset}-"} if offset else {})}


def remote_sha256(open_stream: OpenStream, location: str) -> str:
    """Compute the SHA-256 of a remote file without storing it."""

    def read_once() -> str:
        sha256 = hashlib.sha256()
        with open_stream(0) as stream:
            size = 0
            for chunk in stream.chunks:
                sha256.update(chunk)
                size += len(chunk)
            _check_complete(size, stream.total)
        return sha256.hexdigest()

    return retry(read_once, location)


def download_file(
    open_stream: OpenStream,
    target: Path,
    *,
    checksum: str | None,
    key: str = "",
    location: str,
    meter: Meter = ignore_progress,
) -> Digest:
    """Download a file to `target`, which appears only when the download is complete and has the `checksum`.

    `checksum` is None if the registry has none: then all content is accepted. A target that has the checksum is not
    downloaded again. The received part is stored next to the target, in a file whose name contains the checksum or else
    `key`; the next call for the same content resumes it.

    Raises:
        RegistryError: the registry rejected the request, or the transfer was interrupted too often.
        ChecksumMismatch: the content has another checksum; it was deleted.
        FileProblem: the file cannot be written.
    """
    if checksum and target.is_file():
        digest = file_digest(target)
        if digest.matches(checksum):
            return digest
    part_path = target.with_name(f".{target.name}.{(checksum or key)[:16]}.part")
    try:
        part_path.parent.mkdir(parents=True, exist_ok=True)
        file = part_path.open("ab")
    except OSError as error:
        raise _unwritable(part_path, error) from None
    with file:
        _lock(file, location, target)
        retry(lambda: _append(open_stream, file, meter), location, progress=file.tell, resumable=True)
        file.flush()
        digest = file_digest(part_path)
        if digest.matches(checksum):
            part_path.replace(target)
            return digest
        part_path.unlink()
    problem = f"the received file has the SHA-256 {digest.sha256} and the git blob id {digest.git}; expected {checksum}"
    raise ChecksumMismatch(problem, where=location, fix="try again; the received part was deleted")


def retry(
    attempt: Callable[[], T],
    location: str,
    *,
    attempts: int = ATTEMPTS,
    progress: Callable[[], int] = lambda: 0,
    resumable: bool = False,
) -> T:
    """Call `attempt` until it does not raise `TransferInterrupted`, with increasing pauses.

    The count of failed attempts starts again after progress of `ENOUGH_PROGRESS` bytes.

    Raises:
        RegistryError: `attempts` attempts failed. With `resumable`, the message says that the same command resumes.
    """
    failed, last_progress = 0, progress()
    while True:
        try:
            return attempt()
        except TransferInterrupted as error:
            failed = 1 if progress() - last_progress >= ENOUGH_PROGRESS else failed + 1
            last_progress = progress()
            if failed >= attempts:
                fix = "run the same command again to resume" if resumable else "try again later"
                raise RegistryError(f"gave up after {failed} attempts: {error}", where=location, fix=fix) from None
        time.sleep(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (failed - 1)) * random.uniform(0.5, 1.0))


@contextmanager
def metering_reads(path: Path, meter: Meter) -> Iterator[None]:
    """Call `meter` periodically with the position to which this process has read `path`.

    Needed for uploads, because the client libraries report no progress.
    """
    done, total = threading.Event(), path.stat().st_size

    def report() -> None:
        while not done.wait(0.2):
            meter(_read_position(path), total)

    reporter = threading.Thread(target=report, name="upload-meter", daemon=True)
    reporter.start()
    try:
        yield
    finally:
        done.set()
        reporter.join(timeout=5)


def _unwritable(path: Path, error: OSError) -> FileProblem:
    return FileProblem(f"cannot write: {error.strerror or error}", where=str(path), fix="choose another output")


def _lock(file: BinaryIO, location: str, target: Path) -> None:
    """Lock the received part; raise if another process has locked it."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fix = "wait for it, or choose another output"
        raise RegistryError(f"another process is downloading {target.name}", where=location, fix=fix) from None


def _append(open_stream: OpenStream, file: BinaryIO, meter: Meter) -> None:
    """Append the rest of the file, or download all of it if the registry does not support ranges."""
    with open_stream(file.tell()) as stream:
        if stream.start != file.tell():  # the stream starts earlier than requested
            file.truncate(stream.start)
            file.seek(stream.start)
        meter(file.tell(), stream.total)
        for chunk in stream.chunks:
            try:
                file.write(chunk)
            except OSError as error:  # a full disk is not an interrupted transfer
                raise _unwritable(Path(file.name), error) from None
            meter(file.tell(), stream.total)
        _check_complete(file.tell(), stream.total)


def _check_complete(size: int, total: int | None) -> None:
    if total is not None and size < total:
        raise TransferInterrupted(f"the file ended after {size:,} of {total:,} bytes")


def _read_position(path: Path) -> int:
    """Return how far this process has read `path` in any open descriptor; 0 if unknown, as without /proc."""
    position, resolved = 0, path.resolve()
    with contextlib.suppress(OSError):
        for descriptor in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                if descriptor.readlink() == resolved:
                    position = max(position, os.lseek(int(descriptor.name), 0, os.SEEK_CUR))
    return position
