"""Files in and out of a sandbox as tar streams, without trusting what comes out."""

import shutil
import tarfile
from pathlib import Path, PurePosixPath
from typing import IO

from nemo_gym.sandbox.spec import SandboxError

MAX_ENTRIES = 100_000


def pack(source: Path, target: str, into: IO[bytes]) -> None:
    """Write `source` to `into` as a tar whose entries are absolute-less paths below `/`, ending at `target`.

    A file becomes `target`; a directory's contents go below it. Links are stored as links.
    """
    inside = PurePosixPath(target).as_posix().lstrip("/")
    with tarfile.open(fileobj=into, mode="w|") as archive:
        archive.add(source, arcname=inside, filter=_anonymous)


def unpack(stream: IO[bytes], source: str, target: Path, *, max_bytes: int) -> None:
    """Write the tar that the engine made of `source` to `target`: one file, or a directory's contents.

    What ran in the sandbox chose the names, links and sizes, so nothing is written outside `target`: absolute
    names, `..`, links that lead out and device files are refused, and the total size is bounded.

    Raises:
        SandboxError: an entry is not acceptable, or there is nothing in it.
    """
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            _unpack_entries(archive, source, target, max_bytes)
    except tarfile.FilterError as error:
        raise SandboxError(f"refused an entry that leads out of the target: {error}", where=source) from error
    except tarfile.TarError as error:
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
                _write_file(archive, entry, source, target)
                return
            target.mkdir(parents=True, exist_ok=True)
            continue
        archive.extract(_below(entry, root, source), target, filter="data")
    if root is None:
        raise SandboxError("there is nothing to download", where=source)


def _below(entry: tarfile.TarInfo, root: str, source: str) -> tarfile.TarInfo:
    """The entry named from below `root`: the engine's names start with the directory's own, ours do not."""
    try:
        name = PurePosixPath(entry.name).relative_to(root or ".").as_posix()
        link = PurePosixPath(entry.linkname).relative_to(root or ".").as_posix() if entry.islnk() else entry.linkname
    except ValueError:
        raise SandboxError(f"refused an entry that leads out of the target: {entry.name}", where=source) from None
    return entry.replace(name=name, linkname=link, deep=False)


def _write_file(archive: tarfile.TarFile, entry: tarfile.TarInfo, source: str, target: Path) -> None:
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
