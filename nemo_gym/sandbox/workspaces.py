"""The workspace of a rollout: the files of the row, and what was changed in them."""

import asyncio
import base64
import binascii
import difflib
import itertools
import lzma
import os
import re
import tarfile
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from nemo_gym.config.search_roots import component_search_roots, find_file
from nemo_gym.errors import ConfigError
from nemo_gym.sandbox.api import AsyncSandbox
from nemo_gym.sandbox.providers.archive import matches_pattern
from nemo_gym.sandbox.spec import SandboxError

IGNORED = (".git", "__pycache__", "*.pyc", ".pytest_cache", "node_modules", ".venv")
"""Names of files and folders that are no changes."""
MAX_BYTES = 64 << 20
MAX_UNPACKED_BYTES = 1 << 30
"""Size of the archive of a row, unpacked."""
_MAX_NAME_BYTES = 255
_MAX_DIFF_PAIRS = 10_000_000
"""Pairs of lines that a diff may compare; beyond, a file only `differs`, because the search takes minutes."""
_MAX_DIFF_CHARACTERS = 1 << 20
"""Characters of the diff of a workspace; the contents of files are complete without it."""
_DIFF_CONTEXT = 3
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
"""A line as `patch` reads it; `splitlines` also ends lines at form feeds and carriage returns."""


def checked_path(name: str) -> str:
    """Return a relative path below the workspace.

    Raises:
        ValueError: the path is absolute, empty, or leads outside, or a name is longer than file systems allow.
    """
    path = PurePosixPath(name)
    if max(map(len, encoded_text(name, "path").split(b"/"))) > _MAX_NAME_BYTES:
        raise ValueError(f"a name in the path {name[:40]!r}… is longer than {_MAX_NAME_BYTES} bytes")
    if not name or path.is_absolute() or ".." in path.parts or "\0" in name or str(path) == ".":
        raise ValueError(f"{name!r} is not a path below the workspace")
    return str(path)


def encoded_text(text: str, subject: str) -> bytes:
    """Return a text as UTF-8.

    Raises:
        ValueError: it contains half a character, as JSON may.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the {subject} {text[:40]!r} is not valid text: {error.reason}") from None


class EncodedFile(BaseModel):
    """A file that is not text."""

    model_config = ConfigDict(extra="forbid")

    base64: str

    @field_validator("base64")
    @classmethod
    def _check_base64(cls, value: str) -> str:
        try:
            base64.b64decode(value, validate=True)
        except binascii.Error as error:
            raise ValueError(f"not base64: {error}") from None
        return value

    @property
    def content(self) -> bytes:
        return base64.b64decode(self.base64)


class Workspace(BaseModel):
    """What a row says about the workspace: files, an archive, or a git bundle, and commands."""

    model_config = ConfigDict(extra="forbid")

    files: dict[str, str | EncodedFile] = {}
    """Contents by path below the workspace; they replace files of the archive."""
    archive: str | None = None
    """A tar file, relative to `workspace_folder` of the agent."""
    git_bundle: str | None = None
    """A file written by `git bundle create`, which is cloned; `revision` is checked out."""
    revision: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./-]*$")
    setup: str | None = None
    """A shell command that prepares the workspace; if it fails, the rollout fails."""
    check: str | None = None
    """A shell command that runs after the program; its status and output are in the result."""
    setup_timeout_s: float = Field(default=300.0, gt=0)
    check_timeout_s: float = Field(default=300.0, gt=0)

    @field_validator("files")
    @classmethod
    def _check_names(cls, files: dict[str, Any]) -> dict[str, Any]:
        for content in files.values():
            if isinstance(content, str):
                encoded_text(content, "content")
        return {checked_path(name): content for name, content in files.items()}

    @field_validator("archive", "git_bundle")
    @classmethod
    def _check_source(cls, name: str | None) -> str | None:
        return None if name is None else checked_path(name)

    @model_validator(mode="after")
    def _check_sources(self) -> "Workspace":
        if self.archive and self.git_bundle:
            raise ValueError("a workspace has an `archive` or a `git_bundle`, not both")
        if self.revision and not self.git_bundle:
            raise ValueError("`revision` needs a `git_bundle`")
        return self

    def write(self, folder: Path, sources: Path | None = None, max_bytes: int = MAX_UNPACKED_BYTES) -> bool:
        """Write the archive and the files into a folder; return whether there are any. A git bundle is not written.

        `sources` is the folder with the archives of rows; by default, the folders in which components are searched.

        Raises:
            ConfigError: a file of the row does not exist, cannot be unpacked or written, or is larger than `max_bytes`.
        """
        folder.mkdir(parents=True, exist_ok=True)
        if self.archive:
            _unpack(_file_of_row(self.archive, sources, "archive"), folder, max_bytes)
        for name, content in self.files.items():
            target = folder / name
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content.encode() if isinstance(content, str) else content.content)
            except (OSError, RecursionError) as error:  # a deep path; a name that is a file and a folder
                problem = getattr(error, "strerror", None) or str(error)
                raise ConfigError(f"the file {name[:200]!r} of the workspace cannot be written: {problem}") from error
        return bool(self.archive or self.files)

    def bundle_path(self, sources: Path | None = None) -> Path | None:
        """Return the path of the git bundle; None without one."""
        return _file_of_row(self.git_bundle, sources, "git_bundle") if self.git_bundle else None


def _unpack(path: Path, folder: Path, max_bytes: int) -> None:
    """Unpack the archive of a row.

    Raises:
        ConfigError: it cannot be unpacked, or would be larger than `max_bytes`.
    """
    try:
        with tarfile.open(path) as archive:
            size = 0
            for member in archive:
                size += member.size
                if size > max_bytes:
                    raise ConfigError(f"unpacked, it has more than {max_bytes:,} bytes", where=str(path))
            archive.extractall(folder, filter="data")
    except (tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"cannot be unpacked: {error}", where=str(path)) from error


def _file_of_row(name: str, folder: Path | None, field_name: str) -> Path:
    roots = component_search_roots() if folder is None else [folder]
    return find_file(name, roots, subject=f"{field_name} of the workspace")


Snapshot = dict[str, bytes]


def read_snapshot(folder: Path, ignored: Sequence[str] = IGNORED) -> Snapshot:
    """Return the contents of the regular files of a folder by path; links are not followed, ignored names left out."""
    snapshot: Snapshot = {}
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not matches_pattern(name, ignored))
        for name in names:
            path = Path(parent, name)
            if not matches_pattern(name, ignored) and path.is_file() and not path.is_symlink():
                snapshot[path.relative_to(folder).as_posix()] = path.read_bytes()
    return snapshot


async def download_snapshot(
    sandbox: AsyncSandbox, path: str, *, ignored: Sequence[str] = IGNORED, max_bytes: int = MAX_BYTES
) -> Snapshot:
    """Return the contents of the regular files of a folder in a sandbox; links are not followed.

    Raises:
        SandboxError: the folder cannot be read, or is larger than `max_bytes`.
    """
    read_files = getattr(sandbox.provider, "read_files", None)
    if read_files is not None:
        files: Snapshot = await read_files(sandbox.handle, path, ignored=ignored, max_bytes=max_bytes)
        return files
    with tempfile.TemporaryDirectory(prefix="gym-workspace-") as name:
        target = Path(name)
        await sandbox.download(path, target)
        snapshot = await asyncio.to_thread(read_snapshot, target, ignored)
    size = sum(map(len, snapshot.values()))
    if size > max_bytes:
        raise SandboxError(f"the workspace has {size:,} bytes, more than {max_bytes:,}", where=path)
    return snapshot


@dataclass(frozen=True)
class WorkspaceChanges:
    """The difference between two snapshots."""

    files: dict[str, bytes] = field(default_factory=dict)
    """Contents of new and changed files."""
    deleted: tuple[str, ...] = ()
    diff: str = ""
    """The changes of text files as a unified diff."""

    @classmethod
    def between(cls, before: Mapping[str, bytes], after: Mapping[str, bytes]) -> "WorkspaceChanges":
        """Compare two snapshots."""
        files = {name: content for name, content in sorted(after.items()) if before.get(name) != content}
        deleted = tuple(sorted(before.keys() - after.keys()))
        names = sorted([*files, *deleted])
        diff, size = [], 0
        for name in names:
            diff.append(_file_diff(name, before.get(name), after.get(name)))
            size += len(diff[-1])
            if size > _MAX_DIFF_CHARACTERS:
                diff[-1] = f"File {name} differs; the diff ends here, because it is too large\n"
                break
        return cls(files, deleted, "".join(diff))

    def as_dict(self) -> dict[str, Any]:
        """Return the changes as JSON data; a file that is not text is `{"base64": …}`."""
        return {"files": {name: _content(data) for name, data in self.files.items()}, "deleted": list(self.deleted)} | {
            "diff": self.diff
        }


def _content(data: bytes) -> str | dict[str, str]:
    text = _as_text(data)
    return {"base64": base64.b64encode(data).decode()} if text is None else text


def _as_text(data: bytes | None) -> str | None:
    """Return the text of a file; empty for a missing file, None if it is not text."""
    try:
        text = (data or b"").decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _file_diff(name: str, before: bytes | None, after: bytes | None) -> str:
    old, new = _as_text(before), _as_text(after)
    if old is None or new is None:
        return f"Binary file {name} differs\n"
    old_lines, new_lines = _LINE.findall(old), _LINE.findall(new)
    start = max(0, _common_count(old_lines, new_lines) - _DIFF_CONTEXT)
    end = max(0, _common_count(old_lines[start:][::-1], new_lines[start:][::-1]) - _DIFF_CONTEXT)
    old_lines, new_lines = old_lines[start : len(old_lines) - end], new_lines[start : len(new_lines) - end]
    if len(old_lines) * len(new_lines) > _MAX_DIFF_PAIRS:
        return f"File {name} differs in too many lines for a diff\n"
    lines = difflib.unified_diff(
        old_lines,
        new_lines,
        "/dev/null" if before is None else f"a/{name}",
        "/dev/null" if after is None else f"b/{name}",
        n=_DIFF_CONTEXT,
    )
    lines = (_with_later_start(line, start) if line.startswith("@@") else line for line in lines)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _common_count(first: Sequence[str], second: Sequence[str]) -> int:
    """Return how many lines two sequences have in common at their start."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _with_later_start(header: str, lines: int) -> str:
    """Return the header of a hunk, `@@ -1,2 +1,2 @@`, with line numbers that are greater by `lines`."""
    return re.sub(r"([-+])(\d+)", lambda match: f"{match[1]}{int(match[2]) + lines}", header)
