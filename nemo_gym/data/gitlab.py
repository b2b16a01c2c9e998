"""Datasets to and from a GitLab model registry, which speaks MLflow.

A dataset is a registered model, a version of it holds files that never change. Beside `train.jsonl` lies
`train.jsonl.sha256`, written first: it says what the file will be, so that an interrupted upload can be told from other
content, and a download can be checked.
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
from nemo_gym.data.gitlab_client import MissingFile, Registry
from nemo_gym.data.hub import check_rows
from nemo_gym.data.hub_transfer import (
    Ask,
    ChecksumMismatch,
    Digest,
    Meter,
    RegistryError,
    digest_of,
    local_file,
    no_meter,
    remote_sha256,
)
from nemo_gym.data.hub_transfer import (
    download as download_file,
)
from nemo_gym.errors import ConfigError

CHECKSUM_SUFFIX = ".sha256"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]*")
_VERSION = re.compile(r"\d+\.\d+\.\d+(?:[-+][0-9A-Za-z.\-+]+)?")


@dataclass(frozen=True)
class Stored:
    """A file that the registry holds, checksum and all."""

    name: str
    version: str
    path: str
    digest: Digest
    changed: bool
    """Whether it had to be sent; False if the registry had it already."""


def upload(
    config: UploadJsonlDatasetGitlabConfig,
    *,
    tracking_uri: str,
    token: str | None = None,
    meter: Meter = no_meter,
    pause: float = 1.0,
) -> Stored:
    """Put a file into a version of a dataset, making both if they are new, and verify it.

    Raises:
        ConfigError: the file, the name or the version cannot be used; nothing was sent.
        RegistryError: the registry refused or went away, or the version holds other content under that name.
    """
    name, version = config.dataset_name, config.version
    _check_names(name, version)
    file = local_file(config.input_jsonl_fpath)
    check_rows(file, "test")
    digest = digest_of(file)
    registry = Registry(tracking_uri, token)
    entry = registry.version(name, version)
    state = "absent" if entry is None else _state(registry, entry, file.name, digest, pause)
    if state == "other":
        raise RegistryError(
            f"version {version} already has a {file.name} with other content, and versions do not change",
            where=name,
            fix="choose a new version with --revision",
        )
    if state != "same":
        entry = entry or registry.make_version(name, version)
        _send_checksum(registry, entry, file.name, digest)
        registry.send(entry, file, meter)
        got = remote_sha256(registry.ask(entry, file.name), where=f"{name}/{file.name}", pause=pause)
        if got != digest.sha256:
            raise ChecksumMismatch(
                f"the registry's copy has the SHA-256 {got}, {file} has {digest.sha256}",
                where=f"{name} {version}/{file.name}",
                fix="upload it again",
            )
    return Stored(name, version, file.name, digest, state != "same")


def fetch(
    identifier: JsonlDatasetGitlabIdentifer | GitlabDatasetSource,
    target: Path,
    *,
    tracking_uri: str,
    token: str | None = None,
    meter: Meter = no_meter,
    pause: float = 1.0,
) -> Digest:
    """Download one file of one version to `target`, checked against the checksum stored beside it, if there is one."""
    name, version, path = identifier.dataset_name, identifier.version, identifier.artifact_fpath
    _check_names(name, version)
    registry = Registry(tracking_uri, token)
    entry = registry.version(name, version)
    if entry is None:
        there = ", ".join(registry.versions(name)) or "no versions"
        problem = f"there is no version {version}; there are: {there}" if registry.has(name) else "no such dataset"
        raise RegistryError(problem, where=name, fix="check the name and the version")
    want = _stored_checksum(registry, entry, path, pause)

    def check(got: Digest) -> str | None:
        if want is None or got.sha256 == want:
            return None
        return f"the SHA-256 of what arrived is {got.sha256}; the registry says {want}"

    if want is not None and target.is_file():
        present = digest_of(target)
        if present.sha256 == want:
            return present
    where = f"{name} {version}/{path}"
    # Without a checksum nobody could tell whether what is kept of an earlier download belongs to this file.
    key = want or f"{entry.run_id}"
    return download_file(registry.ask(entry, path), target, key=key, where=where, check=check, meter=meter, pause=pause)


def download(
    config: DownloadJsonlDatasetGitlabConfig,
    *,
    tracking_uri: str,
    token: str | None = None,
    meter: Meter = no_meter,
    pause: float = 1.0,
) -> dict[Path, Digest]:
    """What `config` asks for."""
    target = Path(config.output_fpath)
    return {target: fetch(config, target, tracking_uri=tracking_uri, token=token, meter=meter, pause=pause)}


def _check_names(name: str, version: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} cannot be a dataset's name", fix="use letters, digits, '.', '_' and '-'")
    if not _VERSION.fullmatch(version):
        raise ConfigError(f"{version!r} is not a version", fix="write it as x.y.z, for example 0.0.1")


def _state(registry: Registry, entry: Any, path: str, digest: Digest, pause: float) -> str:
    """`same`, `other`, or `unfinished` for what this version has under the name."""
    want = _stored_checksum(registry, entry, path, pause)
    if want is not None and want != digest.sha256:
        return "other"
    have = _if_there(registry.ask(entry, path), pause)
    if have == digest.sha256:
        return "same"
    return "other" if want is None and have is not None else "unfinished"


def _if_there(ask: Ask, pause: float) -> str | None:
    try:
        return remote_sha256(ask, where="", pause=pause)
    except MissingFile:
        return None


def _stored_checksum(registry: Registry, entry: Any, path: str, pause: float) -> str | None:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "checksum"
        ask = registry.ask(entry, f"{path}{CHECKSUM_SUFFIX}")
        try:
            download_file(ask, target, key="checksum", where=path, check=lambda _digest: None, pause=pause)
        except MissingFile:
            return None
        words = target.read_text(encoding="utf-8", errors="replace").split()
    return words[0] if words and re.fullmatch(r"[0-9a-f]{64}", words[0]) else None


def _send_checksum(registry: Registry, entry: Any, path: str, digest: Digest) -> None:
    """In the form that `sha256sum --check` reads."""
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder) / f"{path}{CHECKSUM_SUFFIX}"
        note.write_text(f"{digest.sha256}  {path}\n", encoding="utf-8")
        registry.send(entry, note)
