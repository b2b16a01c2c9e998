"""Component folders packed for other machines, and the digests by which a node with other code is refused."""

import hashlib
import importlib.metadata
import io
import itertools
import os
import platform
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from nemo_gym.config.search_roots import ROOT_DIR
from nemo_gym.errors import ConfigError
from nemo_gym.keys import SERVER_TYPES
from nemo_gym.launch.hosted_instances import Instance

MAX_ARCHIVE_BYTES = 512 * 2**20
"""Largest sum of files that is sent to nodes; larger data belongs on a path that the nodes share."""
SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules"})
SKIPPED_IN_COMPONENTS = frozenset({"tests", "cache", "results"})
"""Folders directly below a component folder that no server reads; deeper folders of these names may be data."""
COMPARED_PACKAGES = ("nemo-gym", "pydantic", "fastapi", "aiohttp", "openai")
VENV_LINK = ".venv"
"""A link to a virtual environment of this machine; a dangling one is listed as a file."""
_SHARED_FIX = "put it on a path that all nodes share and set +node_shared_path=PATH"


def archive_paths(instances: Sequence[Instance], files: Iterable[str], base: Path) -> dict[str, Path]:
    """Return what the nodes need, by its path in the archive: the folders of instances, and further `files`.

    Raises:
        ConfigError: a file is missing or outside of the working directory `base`.
    """
    paths = {f"{one.kind}/{one.folder.name}": one.folder for one in instances}
    for name in files:
        path = (base / name).resolve()
        if not path.exists() or not path.is_relative_to(base.resolve()):
            problem = "does not exist" if not path.exists() else "is not below the working directory"
            raise ConfigError(f"{name} {problem}", where="node_files", fix=_SHARED_FIX)
        paths[str(path.relative_to(base.resolve()))] = path
    return paths


def _walk_files(name: str, path: Path) -> Iterator[tuple[str, Path]]:
    """Yield every file below a path with its name in the archive, in order; links are followed, but not to a parent."""
    if path.is_file():
        yield name, path
        return
    kind, _, folder_name = name.partition("/")
    skipped = SKIPPED_IN_COMPONENTS if kind in SERVER_TYPES and "/" not in folder_name else frozenset[str]()
    for folder, folders, files in os.walk(path, followlinks=True):
        here = Path(folder)
        hidden = SKIPPED_FOLDERS | (skipped if here == path else frozenset())
        kept = (one for one in sorted(folders) if one not in hidden and not one.startswith("."))
        folders[:] = [one for one in kept if not _leads_upwards(here / one)]
        for file in sorted(files):
            if not file.endswith(".pyc") and file != VENV_LINK:
                yield f"{name}/{(here / file).relative_to(path)}", here / file


def _leads_upwards(folder: Path) -> bool:
    """Return whether a folder is a link to one that contains it: following it would not end."""
    return folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve())


def _checked_files(paths: Mapping[str, Path]) -> Iterator[tuple[str, Path, os.stat_result]]:
    """Yield every file with its name in the archive.

    Raises:
        ConfigError: a file is no ordinary file (to open a pipe would wait for a writer), or the sum is too large.
    """
    total = 0
    for name, path in ((n, p) for entry, top in sorted(paths.items()) for n, p in _walk_files(entry, top)):
        with _naming_file(path):
            status = path.stat()
        total += status.st_size
        if not stat.S_ISREG(status.st_mode):
            raise _cannot_be_sent(path, "it is no ordinary file")
        if total > MAX_ARCHIVE_BYTES:
            raise _cannot_be_sent(path, f"the component folders have more than {MAX_ARCHIVE_BYTES // 2**20} MB")
        yield name, path, status


@contextmanager
def _naming_file(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _cannot_be_sent(path, str(error.strerror or error)) from None


def _cannot_be_sent(path: Path, problem: str) -> ConfigError:
    fix = f"remove it, or {_SHARED_FIX}"
    return ConfigError(f"cannot be sent to the nodes: {problem}", where=str(path), fix=fix)


def pack_components(paths: Mapping[str, Path]) -> bytes:
    """Pack files into an archive that is the same for the same content.

    Raises:
        ConfigError: a file cannot be read, is no ordinary file, or the files are too large to be sent.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for name, path, status in _checked_files(paths):
            info = tarfile.TarInfo(name)
            info.size, info.mode = status.st_size, 0o700 if status.st_mode & 0o100 else 0o600
            with _naming_file(path), path.open("rb") as file:
                archive.addfile(info, file)
    return buffer.getvalue()


def digest_of(paths: Mapping[str, Path]) -> str:
    """Hash names and contents of the files that `pack_components` would pack, and which of them are programs.

    Raises:
        ConfigError: a file cannot be read or sent.
    """
    digest = hashlib.blake2b(digest_size=12)
    for name, path, status in _checked_files(paths):
        digest.update(f"{name}\0{bool(status.st_mode & 0o100)}\0".encode())
        with _naming_file(path), path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "blake2b").digest())
    return digest.hexdigest()


def unpack_components(archive: bytes, digest: str, names: Sequence[str]) -> Path:
    """Unpack an archive with these top-level `names` once per machine and user, and return its folder.

    A folder of an earlier run is used only if its content is unchanged: servers may have written into it, and
    cleaners of temporary folders remove old files one by one. It is not replaced, because another run may use it.

    Raises:
        ConfigError: the folder of temporary files is not safe, or the archive cannot be unpacked there.
    """
    parent = Path(tempfile.gettempdir()) / f"nemo-gym-nodes-{os.geteuid()}"
    with suppress(FileExistsError):
        parent.mkdir(mode=0o700)
    status = parent.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise ConfigError("belongs to another user or is open to other users", where=str(parent), fix="remove it")
    targets = (parent / (f"{digest}-{number}" if number else digest) for number in itertools.count())
    target = next(one for one in targets if not one.exists() or _is_unchanged(one, digest, names))
    if target.exists():
        return target
    partial = Path(tempfile.mkdtemp(prefix="partial-", dir=parent))
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as packed:
            packed.extractall(partial, filter="data")
        with suppress(OSError):  # another node of this machine was first
            partial.rename(target)
    except (OSError, tarfile.TarError) as error:
        raise ConfigError(f"cannot unpack the component folders: {error}", where=str(parent)) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _is_unchanged(root: Path, digest: str, names: Sequence[str]) -> bool:
    try:
        return digest_of({name: root / name for name in names}) == digest
    except ConfigError:
        return False


@cache
def code_versions() -> dict[str, str]:
    """Return Python, the packages that affect results, and a hash of this package's source."""
    versions = {"python": platform.python_version()}
    for package in COMPARED_PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted((ROOT_DIR / "nemo_gym").rglob("*.py")):
        digest.update(path.read_bytes())
    return {**versions, "source of nemo_gym": digest.hexdigest()}


def version_differences(expected: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """Return `name: here -> there` for each version or digest that differs."""
    names = sorted({*expected, *there})
    return [
        f"{name}: {expected.get(name, 'missing')} here, {there.get(name, 'missing')} there"
        for name in names
        if expected.get(name) != there.get(name)
    ]
