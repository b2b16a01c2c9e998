"""Component folders packed for other machines, and the digests by which a node with other code is refused."""

import hashlib
import importlib.metadata
import io
import os
import platform
import stat
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from nemo_gym.config.search_roots import ROOT_DIR
from nemo_gym.errors import ConfigError
from nemo_gym.launch.hosted_instances import Instance

MAX_ARCHIVE_BYTES = 512 * 2**20
"""Largest sum of files that is sent to nodes; larger data belongs on a path that the nodes share."""
SKIPPED_FOLDERS = frozenset({"__pycache__", "tests", "cache", "results", "node_modules"})
COMPARED_PACKAGES = ("nemo-gym", "pydantic", "fastapi", "aiohttp", "openai")
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
    """Yield every file below a path with its name in the archive, in order, links followed."""
    if path.is_file():
        yield name, path
        return
    for folder, folders, files in os.walk(path, followlinks=True):
        folders[:] = sorted(one for one in folders if one not in SKIPPED_FOLDERS and not one.startswith("."))
        for file in sorted(files):
            if not file.endswith(".pyc"):
                yield f"{name}/{Path(folder, file).relative_to(path)}", Path(folder, file)


def pack_components(paths: Mapping[str, Path]) -> bytes:
    """Pack files into an archive that is the same for the same content.

    Raises:
        ConfigError: a file cannot be read, is no ordinary file, or the files are too large to be sent.
    """
    buffer, total = io.BytesIO(), 0
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for name, path in ((n, p) for entry, top in sorted(paths.items()) for n, p in _walk_files(entry, top)):
            problem = None
            try:
                status = path.stat()
                total += status.st_size
                if not stat.S_ISREG(status.st_mode):
                    problem = "it is no ordinary file"
                elif total > MAX_ARCHIVE_BYTES:
                    problem = f"the component folders have more than {MAX_ARCHIVE_BYTES // 2**20} MB"
                else:
                    info = tarfile.TarInfo(name)
                    info.size, info.mode = status.st_size, 0o700 if status.st_mode & 0o100 else 0o600
                    with path.open("rb") as file:
                        archive.addfile(info, file)
            except OSError as error:
                problem = str(error.strerror or error)
            if problem is not None:
                fix = f"remove it, or {_SHARED_FIX}"
                raise ConfigError(f"cannot be sent to the nodes: {problem}", where=str(path), fix=fix)
    return buffer.getvalue()


def digest_of(paths: Mapping[str, Path]) -> str:
    """Hash names and contents of the files that `pack_components` would pack."""
    digest = hashlib.blake2b(digest_size=12)
    for entry, top in sorted(paths.items()):
        for name, path in _walk_files(entry, top):
            digest.update(f"{name}\0".encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "blake2b").digest())
    return digest.hexdigest()


def unpack_components(archive: bytes, digest: str) -> Path:
    """Unpack an archive once per machine and user, and return its folder."""
    parent = Path(tempfile.gettempdir()) / f"nemo-gym-nodes-{os.geteuid()}"
    with suppress(FileExistsError):
        parent.mkdir(mode=0o700)
    status = parent.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise ConfigError("belongs to another user or is open to other users", where=str(parent), fix="remove it")
    target = parent / digest
    if target.is_dir():
        return target
    partial = Path(tempfile.mkdtemp(prefix="partial-", dir=parent))
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as packed:
        packed.extractall(partial, filter="data")
    with suppress(OSError):  # another node of this machine was first
        partial.rename(target)
    return target


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
