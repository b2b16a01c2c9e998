"""One file to or from a registry: its checksums, downloads that continue where they stopped, the errors of both.

Nothing here waits for ever: each wait for a byte has a limit of `PATIENCE` seconds, and a transfer that breaks is
taken up again a few times, then given up with what it has kept for the next attempt.
"""

import contextlib
import fcntl
import hashlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

from nemo_gym.errors import ConfigPathNotFoundError, GymError

PATIENCE = 60.0
"""Seconds without a byte from the other side after which a request has failed."""
ATTEMPTS = 5
LONGEST_PAUSE = 30.0
ENOUGH_PROGRESS = 1 << 20
"""An attempt that moved this many bytes was a good one: counting starts again."""
_BLOCK = 1 << 20

T = TypeVar("T")

Meter = Callable[[int, int | None], None]
"""Told how many bytes are done, and of how many if that is known."""


def no_meter(_done: int, _total: int | None) -> None:
    """Nobody watches."""


class RegistryError(GymError):
    """A registry did not do what it was asked for."""

    exit_status = 3


class ChecksumMismatch(RegistryError):
    """What arrived is not what was sent."""

    exit_status = 1


class Unwritable(GymError):
    """What arrives cannot be kept: no room, or no right to write there."""

    exit_status = 3


class TransferBroken(Exception):
    """The other side went silent, broke off or asked for patience: worth another attempt."""


@dataclass(frozen=True, slots=True)
class Digest:
    """What identifies a file's content."""

    size: int
    sha256: str
    git: str
    """The name git gives the content, which is what the Hub knows about small files."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The body of a file from byte `start` on. `total` is the size of the whole file, if the other side says."""

    start: int
    total: int | None
    chunks: Iterator[bytes]


Ask = Callable[[int], AbstractContextManager[Answer]]
"""Asks for a file from an offset on; the other side may begin earlier. Raises `TransferBroken` or `RegistryError`."""


def local_file(path: str | Path) -> Path:
    """`path`, which must be a file.

    Raises:
        ConfigPathNotFoundError: it is not.
    """
    found = Path(path).expanduser()
    if not found.is_file():
        raise ConfigPathNotFoundError(f"there is no file {str(path)!r}", fix="check the path; it is relative to here")
    return found


def digest_of(path: Path) -> Digest:
    """The checksums of a file, read once."""
    size = path.stat().st_size
    sha256, git = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            sha256.update(block)
            git.update(block)
    return Digest(size, sha256.hexdigest(), git.hexdigest())


def remote_sha256(ask: Ask, *, where: str, pause: float = 1.0) -> str:
    """The SHA-256 of what the other side hands out, read without keeping it."""

    def whole() -> str:
        sha256 = hashlib.sha256()
        with ask(0) as answer:
            seen = 0
            for chunk in answer.chunks:
                sha256.update(chunk)
                seen += len(chunk)
            if answer.total is not None and seen < answer.total:
                raise TransferBroken(f"the file ended after {seen:,} of {answer.total:,} bytes")
        return sha256.hexdigest()

    return again(whole, where=where, pause=pause)


def download(
    ask: Ask,
    target: Path,
    *,
    key: str,
    where: str,
    check: Callable[[Digest], str | None],
    meter: Meter = no_meter,
    pause: float = 1.0,
) -> Digest:
    """Fetch a file to `target`, which appears only when `check` finds nothing wrong with it.

    What has arrived waits beside `target` under a name that contains `key`, the content's tag, and the next call for
    the same content continues there. What fails the check is removed.

    Raises:
        RegistryError: it cannot be had, or not now.
        ChecksumMismatch: it arrived and is not what it should be.
    """
    partial = target.with_name(f".{target.name}.{key[:16]}.part")
    with _opened(partial) as file:
        _claim(file, where, target)
        again(lambda: _append(ask, file, meter), where=where, pause=pause, progress=file.tell, kept=True)
        file.flush()
        digest = digest_of(partial)
        problem = check(digest)
        if problem is None:
            partial.replace(target)
            return digest
        partial.unlink()
    raise ChecksumMismatch(problem, where=where, fix="try again; what had arrived is removed")


def _opened(partial: Path) -> BinaryIO:
    try:
        partial.parent.mkdir(parents=True, exist_ok=True)
        return partial.open("ab")
    except OSError as error:
        raise _unwritable(partial, error) from None


def _unwritable(path: Path, error: OSError) -> Unwritable:
    return Unwritable(f"cannot write: {error.strerror or error}", where=str(path), fix="choose another output")


def _claim(file: BinaryIO, where: str, target: Path) -> None:
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fix = "wait for it, or choose another output"
        raise RegistryError(f"another process is downloading {target.name} right now", where=where, fix=fix) from None


def _append(ask: Ask, file: BinaryIO, meter: Meter) -> None:
    """Take the rest of the file, or all of it where the other side does not continue."""
    with ask(file.tell()) as answer:
        if answer.start != file.tell():
            file.truncate(answer.start)
            file.seek(answer.start)
        meter(file.tell(), answer.total)
        for chunk in answer.chunks:
            try:
                file.write(chunk)
            except OSError as error:  # a full disk is no broken connection
                raise _unwritable(Path(file.name), error) from None
            meter(file.tell(), answer.total)
        if answer.total is not None and file.tell() < answer.total:
            raise TransferBroken(f"the file ended after {file.tell():,} of {answer.total:,} bytes")


def again(
    attempt: Callable[[], T],
    *,
    where: str,
    pause: float,
    attempts: int = ATTEMPTS,
    progress: Callable[[], int] = lambda: 0,
    kept: bool = False,
) -> T:
    """What `attempt` gives, tried again when it breaks, with growing pauses, at most `attempts` times without progress.

    Raises:
        RegistryError: it broke each time. With `kept`, it says that the next command goes on from here.
    """
    failed, reached = 0, progress()
    while True:
        try:
            return attempt()
        except TransferBroken as broken:
            failed = 1 if progress() - reached >= ENOUGH_PROGRESS else failed + 1
            reached = progress()
            if failed >= attempts:
                fix = "run the same command again: it continues where it stopped" if kept else "try again later"
                raise RegistryError(f"gave up after {failed} attempts: {broken}", where=where, fix=fix) from None
        time.sleep(min(LONGEST_PAUSE, pause * 2 ** (failed - 1)) * random.uniform(0.5, 1.0))


@contextmanager
def watched(path: Path, meter: Meter) -> Iterator[None]:
    """Tell `meter`, for the length of a block, how far somebody in this process has read `path`.

    The libraries that upload open the file themselves and say nothing; where the system does not either, neither do
    we.
    """
    done, total = threading.Event(), path.stat().st_size

    def watch() -> None:
        while not done.wait(0.2):
            meter(_read_position(path) or 0, total)

    watcher = threading.Thread(target=watch, name="upload-meter", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join(timeout=5)


def _read_position(path: Path) -> int | None:
    """The furthest position of this process's open descriptors of `path`, where the system tells (Linux)."""
    found = None
    own = path.resolve()
    with contextlib.suppress(OSError):
        for descriptor in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError, ValueError):
                if descriptor.readlink() == own:
                    facts = Path("/proc/self/fdinfo", descriptor.name).read_text(encoding="ascii")
                    found = max(found or 0, int(facts.split("pos:")[1].split()[0]))
    return found
