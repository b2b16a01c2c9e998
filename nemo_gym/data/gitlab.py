"""Publish and download datasets in a GitLab model registry, which implements the MLflow protocol.

A dataset is a registered model, and the files of a version never change. `train.jsonl.sha256` is uploaded before
`train.jsonl`: it distinguishes an interrupted upload from different content, and downloads are verified with it.
"""

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_gym.config.schema_datasets import (
    DownloadJsonlDatasetGitlabConfig,
    GitlabDatasetSource,
    JsonlDatasetGitlabIdentifer,
    UploadJsonlDatasetGitlabConfig,
)
from nemo_gym.data.file_transfer import (
    ChecksumMismatch,
    Digest,
    Meter,
    RegistryError,
    download_file,
    existing_file,
    file_digest,
    ignore_progress,
    remote_sha256,
)
from nemo_gym.data.gitlab_client import MissingFile, Registry
from nemo_gym.data.hub import check_rows
from nemo_gym.errors import ConfigError

CHECKSUM_SUFFIX = ".sha256"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]*")
_VERSION = re.compile(r"\d+\.\d+\.\d+(?:[-+][0-9A-Za-z.\-+]+)?")


@dataclass(frozen=True)
class StoredFile:
    """A verified file in the registry."""

    name: str
    version: str
    path: str
    digest: Digest
    changed: bool
    """The file was uploaded; False if the registry already had it."""


def upload(
    config: UploadJsonlDatasetGitlabConfig,
    *,
    tracking_uri: str,
    token: str | None = None,
    meter: Meter = ignore_progress,
) -> StoredFile:
    """Upload a file to a version of a dataset and verify it; create the dataset and the version if missing.

    Raises:
        ConfigError: the file, the name or the version cannot be used; the registry was not called.
        RegistryError: the registry rejected a request or could not be reached, or the version has a different file of
            that name.
    """
    name, version = config.dataset_name, config.version
    _check_names(name, version)
    file = existing_file(config.input_jsonl_fpath)
    check_rows(file, "test")
    digest = file_digest(file)
    registry = Registry(tracking_uri, token)
    entry = registry.version(name, version)
    state = "absent" if entry is None else _file_state(registry, entry, file.name, digest)
    if state == "other":
        raise RegistryError(
            f"version {version} already has a different {file.name}, and versions cannot be changed",
            where=name,
            fix="choose a new version with --revision",
        )
    if state != "same":
        entry = entry or registry.create_version(name, version)
        _send_checksum(registry, entry, file.name, digest)
        registry.send(entry, file, meter)
        actual = remote_sha256(registry.open_stream(entry, file.name), f"{name}/{file.name}")
        if actual != digest.sha256:
            raise ChecksumMismatch(
                f"the registry's copy has the SHA-256 {actual}, {file} has {digest.sha256}",
                where=f"{name} {version}/{file.name}",
                fix="upload it again",
            )
    return StoredFile(name, version, file.name, digest, state != "same")


def fetch(
    identifier: JsonlDatasetGitlabIdentifer | GitlabDatasetSource,
    target: Path,
    *,
    tracking_uri: str,
    token: str | None = None,
    meter: Meter = ignore_progress,
) -> Digest:
    """Download one file of one version to `target`; verify it if the registry has its checksum file."""
    name, version, path = identifier.dataset_name, identifier.version, identifier.artifact_fpath
    _check_names(name, version)
    registry = Registry(tracking_uri, token)
    entry = registry.version(name, version)
    if entry is None:
        versions = ", ".join(registry.versions(name)) or "no versions"
        problem = f"unknown version {version}; existing: {versions}" if registry.has(name) else "unknown dataset"
        raise RegistryError(problem, where=name, fix="check the name and the version")
    expected = _stored_checksum(registry, entry, path)

    def check(digest: Digest) -> str | None:
        if expected is None or digest.sha256 == expected:
            return None
        return f"the SHA-256 of the received file is {digest.sha256}; expected {expected}"

    if expected is not None and target.is_file():
        digest = file_digest(target)
        if digest.sha256 == expected:
            return digest
    location = f"{name} {version}/{path}"
    # Without a checksum, the run id identifies the content of the received part of an earlier download.
    key = expected or f"{entry.run_id}"
    stream = registry.open_stream(entry, path)
    return download_file(stream, target, key=key, location=location, check=check, meter=meter)


def download(
    config: DownloadJsonlDatasetGitlabConfig,
    *,
    tracking_uri: str,
    token: str | None = None,
    meter: Meter = ignore_progress,
) -> dict[Path, Digest]:
    """Download one file of one version; return its path and digest."""
    target = Path(config.output_fpath)
    return {target: fetch(config, target, tracking_uri=tracking_uri, token=token, meter=meter)}


def _check_names(name: str, version: str) -> None:
    """Raise ConfigError for an invalid dataset name or version."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is not a valid dataset name", fix="use letters, digits, '.', '_' and '-'")
    if not _VERSION.fullmatch(version):
        raise ConfigError(f"{version!r} is not a valid version", fix="write it as x.y.z, for example 0.0.1")


def _file_state(registry: Registry, entry: Any, path: str, digest: Digest) -> str:
    """Compare the registry's file with the local digest: `same`, `other` or `unfinished` (interrupted upload)."""
    expected = _stored_checksum(registry, entry, path)
    if expected is not None and expected != digest.sha256:
        return "other"
    try:
        actual = remote_sha256(registry.open_stream(entry, path), path)
    except MissingFile:
        return "unfinished"
    if actual == digest.sha256:
        return "same"
    return "other" if expected is None else "unfinished"


def _stored_checksum(registry: Registry, entry: Any, path: str) -> str | None:
    """Return the SHA-256 from the checksum file of `path`; None if it is missing or malformed."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "checksum"
        stream = registry.open_stream(entry, f"{path}{CHECKSUM_SUFFIX}")
        try:
            download_file(stream, target, key="checksum", location=path, check=lambda _digest: None)
        except MissingFile:
            return None
        words = target.read_text(encoding="utf-8", errors="replace").split()
    return words[0] if words and re.fullmatch(r"[0-9a-f]{64}", words[0]) else None


def _send_checksum(registry: Registry, entry: Any, path: str, digest: Digest) -> None:
    """Upload the checksum file, in the format of `sha256sum --check`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{path}{CHECKSUM_SUFFIX}"
        file.write_text(f"{digest.sha256}  {path}\n", encoding="utf-8")
        registry.send(entry, file)
