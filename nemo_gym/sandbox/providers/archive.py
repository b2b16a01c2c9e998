"""Files in and out of a sandbox as tar streams, without trusting what comes out."""

import contextlib
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from nemo_gym.sandbox.spec import SandboxError

MAX_ENTRIES = 100_000

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MODE = 0o755
"""The most an entry may ask for: nothing that comes out is setuid or writable for others."""


def pack(source: Path, target: str, into: IO[bytes]) -> None:
    """Write `source` to `into` as a tar whose entries are absolute-less paths below `/`, ending at `target`.

    A file becomes `target`; a directory's contents go below it. Links are stored as links.
    """
    inside = PurePosixPath(target).as_posix().lstrip("/")
    with tarfile.open(fileobj=into, mode="w|") as archive:
        archive.add(source, arcname=inside, filter=_anonymous)


def unpack(stream: IO[bytes], source: str, target: Path, *, max_bytes: int) -> None:
    """Write the tar that the engine made of `source` to `target`: one file, or a directory's contents.

    What ran in the sandbox chose the names, links and sizes, so nothing is written outside `target`: every step is
    taken from an open folder and follows no link, so that neither names nor links made on the way lead out. Absolute
    names, `..`, links that lead out and device files are refused, and the total size is bounded.

    Raises:
        SandboxError: an entry is not acceptable, or there is nothing in it.
    """
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            _unpack_entries(archive, source, target, max_bytes)
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
        raise SandboxError(f"the engine sent a broken archive: {error}", where=source) from error


def _unpack_entries(archive: tarfile.TarFile, source: str, target: Path, max_bytes: int) -> None:
    total = 0
    root: str | None = None
    for count, entry in enumerate(archive):
        total += entry.size
        if total > max_bytes or count >= MAX_ENTRIES:
            raise SandboxError(f"more than {max_bytes} bytes or {MAX_ENTRIES} entries", where=source)
        if root is None:
            root = entry.name.rstrip("/")
            if not entry.isdir():
                _write_single(archive, entry, source, target)
                return
            target.mkdir(parents=True, exist_ok=True)
            continue
        _place(archive, entry, root, source, target)
    if root is None:
        raise SandboxError("there is nothing to download", where=source)


def _place(archive: tarfile.TarFile, entry: tarfile.TarInfo, root: str, source: str, target: Path) -> None:
    """Write one entry below `target`."""
    *parents, name = _below(entry.name, root, source) or (".",)
    if entry.isdir():
        with _folder(target, (*parents, name), source):
            return
    with _folder(target, parents, source) as folder:
        if entry.isreg():
            content = archive.extractfile(entry)
            assert content is not None
            _make_way(folder, name)
            with os.fdopen(os.open(name, _NEW_FILE, entry.mode & _MODE | 0o600, dir_fd=folder), "wb") as file:
                shutil.copyfileobj(content, file)
        elif entry.issym() and _stays_inside(entry.linkname, len(parents)):
            _make_way(folder, name)
            os.symlink(entry.linkname, name, dir_fd=folder)
        elif entry.islnk():
            *elsewhere, original = _below(entry.linkname, root, source) or (".",)
            with _folder(target, elsewhere, source) as other:
                if not stat.S_ISREG(os.stat(original, dir_fd=other, follow_symlinks=False).st_mode):
                    raise _refused(entry.name, source)
                _make_way(folder, name)
                os.link(original, name, src_dir_fd=other, dst_dir_fd=folder, follow_symlinks=False)
        else:
            raise _refused(entry.name, source)


def _below(name: str, root: str, source: str) -> tuple[str, ...]:
    """The parts of a name from below `root`: the engine's names start with the directory's own, ours do not."""
    try:
        parts = PurePosixPath(name).relative_to(root or ".").parts
    except ValueError:
        raise _refused(name, source) from None
    if ".." in parts:
        raise _refused(name, source)
    return parts


@contextlib.contextmanager
def _folder(target: Path, parts: "tuple[str, ...] | list[str]", source: str) -> Iterator[int]:
    """An open folder below `target`, made if need be, reached without following a link."""
    opened = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, _MODE, dir_fd=opened)
            try:
                inner = os.open(part, _FOLDER, dir_fd=opened)
            except NotADirectoryError:
                raise _refused("/".join(parts), source) from None
            os.close(opened)
            opened = inner
        yield opened
    finally:
        os.close(opened)


def _stays_inside(link: str, depth: int) -> bool:
    """Whether a link in a folder `depth` levels below the target stays below it.

    Only its first steps may go up: one that goes up after going down could have gone down through another link.
    """
    parts = PurePosixPath(link).parts
    upward = next((count for count, part in enumerate(parts) if part != ".."), len(parts))
    return bool(parts) and not link.startswith("/") and upward <= depth and ".." not in parts[upward:]


def _make_way(folder: int, name: str) -> None:
    """Remove what has that name, so that the new file is a new one."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def _refused(name: str, source: str) -> SandboxError:
    return SandboxError(f"refused an entry that leads out of the target: {name!r}", where=source)


def _write_single(archive: tarfile.TarFile, entry: tarfile.TarInfo, source: str, target: Path) -> None:
    content = archive.extractfile(entry) if entry.isreg() else None
    if content is None:
        raise SandboxError("only files and directories can be downloaded", where=source)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        shutil.copyfileobj(content, file)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """The entry without the names and numbers of this machine's users."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
