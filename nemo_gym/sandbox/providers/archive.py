"""Move files into and out of sandboxes as tar archives; archives from a sandbox are untrusted."""

import asyncio
import contextlib
import fnmatch
import io
import os
import shutil
import stat
import tarfile
import tempfile
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO

from nemo_gym.sandbox.providers.base import SandboxProvider
from nemo_gym.sandbox.spec import SandboxCreateError, SandboxError, SandboxHandle, SandboxSpec

MAX_ENTRIES = 100_000

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_MODE = 0o755
"""All permissions that an unpacked entry may have: not setuid and not writable by other users."""


class ArchiveProvider(SandboxProvider):
    """A provider that sends and receives files as tar archives."""

    max_transfer_bytes: int

    @abstractmethod
    async def _send_archive(self, handle: SandboxHandle, packed: IO[bytes], operation: str) -> None:
        """Unpack a tar archive at the root of the sandbox; error messages call this operation `operation`."""

    @abstractmethod
    async def _receive_archive(self, handle: SandboxHandle, origin: str, packed: IO[bytes]) -> bool:
        """Write a tar archive of `origin` to `packed`; return False if it exceeds `max_transfer_bytes`."""

    @abstractmethod
    def _workdir(self, handle: SandboxHandle) -> str | None:
        """Return the working directory of the sandbox, to which paths are relative."""

    async def upload_file(self, handle: SandboxHandle, source: Path, target: str) -> None:
        target = path_inside(target, self._workdir(handle))
        await self._upload_files(handle, {target: Path(source)}, f"upload to {target}")

    async def download_file(self, handle: SandboxHandle, source: str, target: Path) -> None:
        origin = path_inside(source, self._workdir(handle))
        with tempfile.TemporaryFile() as packed:
            if not await self._receive_archive(handle, origin, packed):
                raise SandboxError(f"more than {self.max_transfer_bytes} bytes", where=origin)
            packed.seek(0)
            await asyncio.to_thread(unpack, packed, origin, Path(target), max_bytes=self.max_transfer_bytes)

    async def read_files(
        self, handle: SandboxHandle, source: str, *, ignored: Sequence[str], max_bytes: int
    ) -> dict[str, bytes]:
        """Return the contents of the regular files below a directory by path, without links and ignored names.

        Raises:
            SandboxError: the directory is missing, or its files are larger than `max_bytes`.
        """
        origin = path_inside(source, self._workdir(handle))
        with tempfile.TemporaryFile() as packed:
            if not await self._receive_archive(handle, origin, packed):
                raise SandboxError(f"more than {self.max_transfer_bytes:,} bytes", where=origin)
            packed.seek(0)
            root = PurePosixPath(origin).name
            return await asyncio.to_thread(
                regular_files, packed, origin, root=root, ignored=ignored, max_bytes=max_bytes
            )

    async def _write_spec_files(self, handle: SandboxHandle, spec: SandboxSpec) -> None:
        """Write the spec's files into a new sandbox; on failure remove the sandbox and raise."""
        try:
            if spec.files:
                await self._upload_files(handle, spec.files, "writing the spec's files")
        except BaseException as error:
            await asyncio.shield(self.close(handle))
            if isinstance(error, SandboxError | OSError):
                problem = f"a file of the spec could not be written: {error}"
                raise SandboxCreateError(problem, where=handle.sandbox_id) from error
            raise

    async def _upload_files(
        self, handle: SandboxHandle, files: Mapping[str, str | bytes | Path], operation: str
    ) -> None:
        """Upload files (path in the sandbox: content, local file or local directory) in one archive."""
        workdir = self._workdir(handle)
        by_absolute_path = {path_inside(target, workdir): content for target, content in files.items()}
        with tempfile.TemporaryFile() as packed:
            await asyncio.to_thread(pack, by_absolute_path, packed)
            packed.seek(0)
            await self._send_archive(handle, packed, operation)


def path_inside(path: str, workdir: str | None) -> str:
    """Return `path` as an absolute path in the sandbox; a relative path is resolved against `workdir`.

    Raises:
        SandboxError: the path is empty or contains `..` or a zero byte.
    """
    pure = PurePosixPath(workdir or "/") / path
    if not path or "\0" in path or ".." in pure.parts:
        raise SandboxError(f"not a path in the sandbox: {path!r}", fix="use a path without '..'")
    return pure.as_posix()


def pack(files: Mapping[str, str | bytes | Path], into: IO[bytes]) -> None:
    """Write a tar archive of `files` (absolute path in the sandbox: content, local file or local directory) to `into`.

    Names in the archive have no leading slash. Links are stored as links.
    """
    with tarfile.open(fileobj=into, mode="w|") as archive:
        for target, content in files.items():
            name = PurePosixPath(target).as_posix().lstrip("/")
            if isinstance(content, Path):
                archive.add(content, arcname=name, filter=_without_owner)
            else:
                data = content.encode(errors="replace") if isinstance(content, str) else content
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))


def _without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove the user and group of this machine from an entry."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def unpack(stream: IO[bytes], source: str, target: Path, *, max_bytes: int) -> None:
    """Extract the tar archive that the engine made of `source` to `target`: one file, or a directory's contents.

    Programs in the sandbox choose the names, links and sizes, so entries are written relative to open folder
    descriptors without following links: no name and no link can lead outside `target`. Absolute names, `..`, links
    that lead outside and device files are rejected, and the total size is bounded.

    Raises:
        SandboxError: an entry is rejected, or the archive is empty, broken or too large.
    """
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            _unpack_entries(archive, source, target, max_bytes)
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
        raise SandboxError(f"the engine sent a broken archive: {error}", where=source) from error


def _unpack_entries(archive: tarfile.TarFile, source: str, target: Path, max_bytes: int) -> None:
    """Write all entries; the first one is the file or directory that was requested."""
    total = 0
    root: str | None = None
    for count, entry in enumerate(archive):
        total += entry.size
        if total > max_bytes or count >= MAX_ENTRIES:
            raise SandboxError(f"more than {max_bytes} bytes or {MAX_ENTRIES} entries", where=source)
        if root is None:
            root = entry.name.rstrip("/")
            if not entry.isdir():
                _write_single_file(archive, entry, source, target)
                return
            target.mkdir(parents=True, exist_ok=True)
            continue
        _write_entry(archive, entry, root, source, target)
    if root is None:
        raise SandboxError("the archive is empty", where=source)


def regular_files(
    stream: IO[bytes], source: str, *, root: str, ignored: Sequence[str], max_bytes: int
) -> dict[str, bytes]:
    """Return the contents of the regular files of the tar archive of a directory `root`, by path below it.

    Nothing is written to a disk. Links that lead anywhere, devices and names that match `ignored` are left out. A hard
    link has the content of its file. Bytes of a name that are not UTF-8 become escapes.

    Raises:
        SandboxError: the archive is broken, or the files are larger than `max_bytes`.
    """
    files: dict[str, bytes] = {}
    total = 0
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for count, entry in enumerate(archive):
                parts = _parts_below(entry.name, root, source)
                if not parts or any(matches_pattern(part, ignored) for part in parts):
                    continue
                content = _content_of(archive, entry, root, source, files, max_bytes - total)
                if content is not None:
                    total += len(content)
                    files[_portable_name(parts)] = content
                if total > max_bytes or count >= MAX_ENTRIES:
                    raise SandboxError(f"more than {max_bytes:,} bytes or {MAX_ENTRIES:,} files", where=source)
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
        raise SandboxError(f"the engine sent a broken archive: {error}", where=source) from error
    return files


def _content_of(
    archive: tarfile.TarFile,
    entry: tarfile.TarInfo,
    root: str,
    source: str,
    files: Mapping[str, bytes],
    max_bytes: int,
) -> bytes | None:
    """Return the content of a regular file or a hard link, at most one byte more than `max_bytes`; else None."""
    if entry.islnk():
        return files.get(_portable_name(_parts_below(entry.linkname, root, source)))
    content = archive.extractfile(entry) if entry.isreg() else None
    return None if content is None else content.read(max_bytes + 1)


def _portable_name(parts: Sequence[str]) -> str:
    return "/".join(parts).encode(errors="surrogateescape").decode(errors="backslashreplace")


def matches_pattern(name: str, patterns: Sequence[str]) -> bool:
    """Return whether the name of a file or folder matches a pattern."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _write_entry(archive: tarfile.TarFile, entry: tarfile.TarInfo, root: str, source: str, target: Path) -> None:
    """Write one entry below `target`; reject it if it is neither a file nor a folder nor a link that stays inside."""
    *parents, name = _parts_below(entry.name, root, source) or (".",)
    if entry.isdir():
        with _open_folder(target, (*parents, name), source):  # creates the folder
            return
    with _open_folder(target, parents, source) as folder:
        if entry.isreg():
            content = archive.extractfile(entry)
            assert content is not None
            _remove_existing(folder, name)
            mode = entry.mode & _MAX_MODE | 0o600  # always readable and writable by the owner
            with os.fdopen(os.open(name, _NEW_FILE_FLAGS, mode, dir_fd=folder), "wb") as file:
                shutil.copyfileobj(content, file)
        elif entry.issym() and _stays_inside(entry.linkname, len(parents)):
            _remove_existing(folder, name)
            os.symlink(entry.linkname, name, dir_fd=folder)
        elif entry.islnk():  # a hard link
            *original_parents, original = _parts_below(entry.linkname, root, source) or (".",)
            with _open_folder(target, original_parents, source) as original_folder:
                if not stat.S_ISREG(os.stat(original, dir_fd=original_folder, follow_symlinks=False).st_mode):
                    raise _rejected_entry(entry.name, source)
                _remove_existing(folder, name)
                os.link(original, name, src_dir_fd=original_folder, dst_dir_fd=folder, follow_symlinks=False)
        else:
            raise _rejected_entry(entry.name, source)


def _parts_below(name: str, root: str, source: str) -> tuple[str, ...]:
    """Return the parts of a name below `root`, the downloaded directory; raise SandboxError if it is not below."""
    try:
        parts = PurePosixPath(name).relative_to(root or ".").parts
    except ValueError:
        raise _rejected_entry(name, source) from None
    if ".." in parts:
        raise _rejected_entry(name, source)
    return parts


@contextlib.contextmanager
def _open_folder(target: Path, parts: Sequence[str], source: str) -> Iterator[int]:
    """Open the folder `target`/`parts` without following links below `target`; create missing folders."""
    descriptor = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, _MAX_MODE, dir_fd=descriptor)
            try:
                child = os.open(part, _FOLDER_FLAGS, dir_fd=descriptor)
            except NotADirectoryError:
                raise _rejected_entry("/".join(parts), source) from None
            os.close(descriptor)
            descriptor = child
        yield descriptor
    finally:
        os.close(descriptor)


def _stays_inside(link: str, depth: int) -> bool:
    """Return whether a link in a folder `depth` levels below the target resolves to a path below the target.

    `..` is accepted only at the start: after a name, which may be a link itself, it could lead anywhere.
    """
    parts = PurePosixPath(link).parts
    levels_up = next((count for count, part in enumerate(parts) if part != ".."), len(parts))
    return bool(parts) and not link.startswith("/") and levels_up <= depth and ".." not in parts[levels_up:]


def _remove_existing(folder: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def _rejected_entry(name: str, source: str) -> SandboxError:
    problem = "rejected an archive entry that is outside the target, or neither file, folder nor link"
    return SandboxError(f"{problem}: {name!r}", where=source)


def _write_single_file(archive: tarfile.TarFile, entry: tarfile.TarInfo, source: str, target: Path) -> None:
    """Write the first entry of an archive, which must be a file, to `target`."""
    content = archive.extractfile(entry) if entry.isreg() else None
    if content is None:
        raise SandboxError("only files and directories can be downloaded", where=source)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        shutil.copyfileobj(content, file)
