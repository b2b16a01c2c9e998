"""Publish, download and delete datasets in a GitLab model registry, which implements the MLflow protocol.

A dataset is a registered model, and the files of a version never change. `train.jsonl.sha256` is uploaded before
`train.jsonl`: it distinguishes an interrupted upload from different content, and downloads are verified with it.
"""

import importlib
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

from nemo_gym.config.schema_datasets import (
    BaseUploadJsonlDatasetHuggingFaceConfig,
    GitlabDatasetSource,
    JsonlDatasetGitlabIdentifer,
    UploadJsonlDatasetGitlabConfig,
)
from nemo_gym.config.secret_text import scrub_text
from nemo_gym.data import hub
from nemo_gym.data.file_transfer import (
    RETRYABLE_STATUSES,
    TIMEOUT,
    ChecksumMismatch,
    Digest,
    FileStream,
    Meter,
    OpenStream,
    RegistryError,
    TransferInterrupted,
    download_file,
    existing_file,
    file_digest,
    ignore_progress,
    metering_reads,
    range_headers,
    remote_sha256,
)
from nemo_gym.errors import ConfigError, ConfigMissingValuesError

CHECKSUM_SUFFIX = ".sha256"
VERSION_TAG = "gitlab.version"
EXPERIMENT = "nemo-gym-datasets"
TOKEN_VARIABLE = "MLFLOW_TRACKING_TOKEN"
_MLFLOW_LIMITS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": str(int(TIMEOUT)),
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",
}
"""Environment variables that MLflow reads; existing values are kept."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]*")
_VERSION = re.compile(r"\d+\.\d+\.\d+(?:[-+][0-9A-Za-z.\-+]+)?")
_NOT_FOUND_CODES = ("RESOURCE_DOES_NOT_EXIST", "NOT_FOUND", "ENDPOINT_NOT_FOUND")
_DENIED_STATUS = re.compile(r"(?<=error code )40[13]|40[13](?= Unauthorized| Forbidden)")
_OUTAGE_CAUSE = re.compile(r"\[Errno -?\d+\] ([^\"')]+)|timed out|too many \d+ error responses")
_BLOCK = 1 << 16


class MissingFile(RegistryError):
    """The version does not have the file."""


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
    config: UploadJsonlDatasetGitlabConfig, registry: "Registry", *, meter: Meter = ignore_progress
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
    hub.check_rows(file, needs_params=False)  # a prompt may add the parameters later
    digest = file_digest(file)
    entry = registry.version(name, version)
    state = "absent" if entry is None else _file_state(registry, entry, file.name, digest)
    if state == "other":
        problem = f"version {version} already has a different {file.name}, and versions cannot be changed"
        raise RegistryError(problem, where=name, fix="choose a new version with --revision")
    if state != "same":
        entry = entry or registry.create_version(name, version)
        _send_checksum(registry, entry, file.name, digest)
        registry.send(entry, file, meter)
        actual = remote_sha256(registry.file_opener(entry, file.name), f"{name}/{file.name}")
        if actual != digest.sha256:
            problem = f"the registry's copy has the SHA-256 {actual}, {file} has {digest.sha256}"
            raise ChecksumMismatch(problem, where=f"{name} {version}/{file.name}", fix="upload it again")
    return StoredFile(name, version, file.name, digest, state != "same")


def fetch(
    identifier: JsonlDatasetGitlabIdentifer | GitlabDatasetSource,
    target: Path,
    registry: "Registry",
    *,
    meter: Meter = ignore_progress,
) -> Digest:
    """Download one file of one version to `target`; verify it if the registry has its checksum file."""
    name, version, path = identifier.dataset_name, identifier.version, identifier.artifact_fpath
    _check_names(name, version)
    entry = registry.version(name, version)
    if entry is None:
        versions = ", ".join(registry.versions(name)) or "no versions"
        problem = f"unknown version {version}; existing: {versions}" if registry.has(name) else "unknown dataset"
        raise RegistryError(problem, where=name, fix="check the name and the version")
    return download_file(
        registry.file_opener(entry, path),
        target,
        checksum=_stored_checksum(registry, entry, path),
        key=str(entry.run_id),
        location=f"{name} {version}/{path}",
        meter=meter,
    )


def dataset_name_of(config: BaseUploadJsonlDatasetHuggingFaceConfig) -> str:
    """Return the name of the dataset in GitLab, which is also the last part of the repository name on the Hub."""
    return config.dataset_name or hub.resources_server_of(config.resource_config_path)[0]


def versions_to_delete(registry: "Registry", name: str) -> list[str]:
    """List the versions of a dataset, all of which are deleted with it.

    Raises:
        RegistryError: the dataset does not exist.
    """
    if not registry.has(name):
        fix = "check the name; gym dataset upload publishes without deleting"
        raise RegistryError(f"unknown dataset {name!r} in the GitLab registry", fix=fix)
    return registry.versions(name)


def refuse_other_branch(config: BaseUploadJsonlDatasetHuggingFaceConfig) -> None:
    """Raise ConfigError if a migration would publish outside the main branch: deleting a branch loses the only copy."""
    if config.create_pr or config.revision not in (None, "main"):
        place = "in a pull request" if config.create_pr else f"on the branch {config.revision}"
        problem = f"a dataset that is only {place} on the Hub cannot be deleted from GitLab"
        fix = "gym dataset upload; after merging, run this command without --create-pr and --revision"
        raise ConfigError(problem, fix=fix)


def migrate_to_hub(
    config: BaseUploadJsonlDatasetHuggingFaceConfig, registry: "Registry", *, meter: Meter = ignore_progress
) -> hub.PublishedFile:
    """Publish a local file on the Hub, verify it there, then delete the dataset of that name, not copied, from GitLab.

    Raises:
        ConfigError: the file or configuration cannot be used, or the file would not be published on the main branch.
        RegistryError: a registry rejected a request; the dataset in GitLab has not been deleted.
    """
    refuse_other_branch(config)
    name = dataset_name_of(config)
    versions_to_delete(registry, name)  # raises if the dataset does not exist
    published = hub.upload(config, meter=meter)
    try:
        registry.delete(name)
    except RegistryError as error:
        problem = f"published on the Hub, but not deleted from GitLab: {error}"
        raise RegistryError(problem, where=name, fix=f"gym dataset rm --name {name}") from None
    return published


def _check_names(name: str, version: str) -> None:
    """Raise ConfigError for an invalid dataset name or version."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is not a valid dataset name", fix="use letters, digits, '.', '_' and '-'")
    if not _VERSION.fullmatch(version):
        raise ConfigError(f"{version!r} is not a valid version", fix="write it as x.y.z, for example 0.0.1")


def _file_state(registry: "Registry", entry: Any, path: str, digest: Digest) -> str:
    """Compare the registry's file with the local digest: `same`, `other` or `unfinished` (interrupted upload)."""
    expected = _stored_checksum(registry, entry, path)
    if expected is not None and expected != digest.sha256:
        return "other"
    try:
        actual = remote_sha256(registry.file_opener(entry, path), path)
    except MissingFile:
        return "unfinished"
    if actual == digest.sha256:
        return "same"
    return "other" if expected is None else "unfinished"


def _stored_checksum(registry: "Registry", entry: Any, path: str) -> str | None:
    """Return the SHA-256 from the checksum file of `path`; None if it is missing or malformed."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "checksum"
        try:
            download_file(registry.file_opener(entry, f"{path}{CHECKSUM_SUFFIX}"), target, checksum=None, location=path)
        except MissingFile:
            return None
        words = target.read_text(encoding="utf-8", errors="replace").split()
    return words[0] if words and re.fullmatch(r"[0-9a-f]{64}", words[0]) else None


def _send_checksum(registry: "Registry", entry: Any, path: str, digest: Digest) -> None:
    """Upload the checksum file, in the format of `sha256sum --check`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{path}{CHECKSUM_SUFFIX}"
        file.write_text(f"{digest.sha256}  {path}\n", encoding="utf-8")
        registry.send(entry, file)


# -- the registry -------------------------------------------------------------------------------------------------


def create_mlflow_client(tracking_uri: str, token: str | None) -> Any:
    """Create MLflow's client of a server. MLflow reads the token from the environment, so this sets the variable.

    Raises:
        ConfigError: MLflow is not installed.
    """
    tracking = _library("mlflow.tracking")
    for name, value in _MLFLOW_LIMITS.items():
        os.environ.setdefault(name, value)
    if token:
        os.environ[TOKEN_VARIABLE] = token
    return tracking.MlflowClient(tracking_uri=tracking_uri, registry_uri=tracking_uri)


def registry_address(config: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return the address and token of the registry from the configuration.

    Raises:
        ConfigMissingValuesError: the configuration has no address.
    """
    uri, token = config.get("mlflow_tracking_uri"), config.get("mlflow_tracking_token")
    if not uri:
        example = "mlflow_tracking_uri: https://<gitlab>/api/v4/projects/<id>/ml/mlflow"
        fix = f"{example}, and mlflow_tracking_token, in env.yaml"
        raise ConfigMissingValuesError("mlflow_tracking_uri is not set", fix=fix)
    return str(uri), str(token) if token else None


class Registry:
    """The datasets of a server (registered models), their versions and the files of a version.

    In GitLab, versions have names (`0.0.1`) and files belong to a version. Other MLflow servers number their versions,
    so the name is stored as a tag, and files belong to a run.
    """

    def __init__(self, tracking_uri: str, token: str | None = None) -> None:
        self._client = create_mlflow_client(tracking_uri, token)
        self._errors = _library("mlflow.exceptions")
        self._http = _library("urllib3.exceptions")
        self._uri = tracking_uri
        self._is_gitlab = "/api/v4/projects/" in tracking_uri
        self._token = token

    def has(self, name: str) -> bool:
        """Return whether a dataset exists."""
        with self._translating_errors(name):
            return self._or_none(self._client.get_registered_model, name) is not None

    def versions(self, name: str) -> list[str]:
        """List the versions of a dataset, oldest first; GitLab reports only the latest."""
        with self._translating_errors(name):
            if self._is_gitlab:
                with warnings.catch_warnings():  # deprecated in MLflow, but GitLab has no other call
                    warnings.simplefilter("ignore", FutureWarning)
                    entries = self._or_none(self._client.get_latest_versions, name) or []
                return [str(entry.version) for entry in entries]
            return [entry.tags.get(VERSION_TAG, str(entry.version)) for entry in self._all_versions(name)]

    def version(self, name: str, version: str) -> Any:
        """Return MLflow's entry of a version; None if it does not exist."""
        with self._translating_errors(f"{name} {version}"):
            if self._is_gitlab:
                return self._or_none(self._client.get_model_version, name, version)
            entries = [entry for entry in self._all_versions(name) if entry.tags.get(VERSION_TAG) == version]
            return entries[-1] if entries else None

    def create_version(self, name: str, version: str) -> Any:
        """Create a version, and the dataset if it does not exist."""
        with self._translating_errors(f"{name} {version}"):
            if self._or_none(self._client.get_registered_model, name) is None:
                self._client.create_registered_model(name)
            # 0: MLflow would wait up to five minutes for the copying of files, but no file is copied.
            options = {"tags": {VERSION_TAG: version}, "await_creation_for": 0}
            if self._is_gitlab:
                return self._client.create_model_version(name, version, **options)
            experiment = self._client.get_experiment_by_name(EXPERIMENT)
            experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(EXPERIMENT)
            run = self._client.create_run(experiment_id, run_name=f"{name}-{version}")
            return self._client.create_model_version(name, run.info.artifact_uri, run_id=run.info.run_id, **options)

    def delete(self, name: str) -> None:
        """Delete a dataset with all its versions."""
        with self._translating_errors(name):
            self._client.delete_registered_model(name)

    def send(self, entry: Any, file: Path, meter: Meter = ignore_progress) -> None:
        """Upload a file to a version."""
        with self._translating_errors(f"{entry.name}/{file.name}"), metering_reads(file, meter):
            self._client.log_artifact(entry.run_id, str(file))

    def file_opener(self, entry: Any, path: str) -> OpenStream:
        """Return a function that opens a file of a version at an offset."""
        location = f"{entry.name}/{path}"
        with self._translating_errors(location):
            root = self._client.get_run(entry.run_id).info.artifact_uri
            if root.startswith("mlflow-artifacts:"):
                artifacts = _library("mlflow.store.artifact.mlflow_artifacts_repo")
                root = artifacts.MlflowArtifactsRepository.resolve_uri(root, self._uri)
        if not root.startswith(("http://", "https://")):
            problem = f"the registry stores its files at {root}, which is not an HTTP address"
            raise RegistryError(problem, where=location)
        return partial(self._open_stream, root.rstrip("/"), path, location)

    @contextmanager
    def _open_stream(self, root: str, path: str, location: str, offset: int) -> Iterator[FileStream]:
        """Open the file `path` below the address `root` at an offset."""
        with self._translating_errors(location, retryable=True):
            response = _library("mlflow.utils.rest_utils").http_request(
                _library("mlflow.utils.credentials").get_default_host_creds(root),
                "/" + quote(path),
                "GET",
                max_retries=0,
                timeout=TIMEOUT,
                raise_on_status=False,
                stream=True,
                extra_headers=range_headers(offset),
            )
            with response:
                status = response.status_code
                if status == 416:  # range not satisfiable: the received part is complete
                    yield FileStream(offset, None, iter(()))
                    return
                _check_status(status, location)
                start = offset if status == 206 else 0
                length = response.headers.get("Content-Length")
                total = start + int(length) if length and length.isdigit() else None
                # Yield received bytes at once: an interruption would lose the bytes of an incomplete block.
                chunks = iter(lambda: response.raw.read1(_BLOCK, decode_content=True), b"")
                yield FileStream(start, total, chunks)

    def _all_versions(self, name: str) -> list[Any]:
        """Return MLflow's entries of all versions of a dataset, oldest first."""
        entries: list[Any] = []
        page = None
        while page is None or page.token:
            page = self._client.search_model_versions(f"name='{name}'", page_token=page.token if page else None)
            entries += page
        return sorted(entries, key=lambda entry: int(entry.version))

    def _or_none(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return the result of a call; None if the server reports that the object does not exist."""
        try:
            return function(*args)
        except self._errors.MlflowException as error:
            if error.error_code in _NOT_FOUND_CODES or error.get_http_status_code() == 404:
                return None
            raise

    @contextmanager
    def _translating_errors(self, location: str, *, retryable: bool = False) -> Iterator[None]:
        """Convert MLflow's errors to `RegistryError`, without the token in the message.

        With `retryable`, outages become `TransferInterrupted`.
        """
        try:
            yield
            return
        except self._errors.MlflowException as error:
            text = str(error.message)
            is_outage = error.error_code == "INTERNAL_ERROR" and "API request to" in text
            denied = _DENIED_STATUS.search(text)
            status = int(denied[0]) if denied else error.get_http_status_code()
        except (self._http.HTTPError, OSError) as error:  # all errors of the package requests are OSErrors
            text, is_outage = f"{type(error).__name__}: {error}", True
            status = getattr(getattr(error, "response", None), "status_code", None)
        text = scrub_text(text, [self._token] if self._token else [])
        if is_outage and retryable:
            raise TransferInterrupted(text) from None
        if status in (401, 403):
            raise _bad_token(status, location) from None
        if is_outage:  # the text describes a long chain of exceptions: report the part that names the cause
            cause = _OUTAGE_CAUSE.search(text)
            problem = (cause[1] or cause[0]) if cause else text.splitlines()[0][:300]
            fix = "check mlflow_tracking_uri in env.yaml, and the network"
            raise RegistryError(f"the registry cannot be reached: {problem}", where=location, fix=fix) from None
        raise RegistryError(f"the registry rejected the request: {text.splitlines()[0]}", where=location) from None


def _check_status(status: int, location: str) -> None:
    """Raise for an HTTP error status."""
    if status in RETRYABLE_STATUSES:
        raise TransferInterrupted(f"the registry returned status {status}")
    if status in (401, 403):
        raise _bad_token(status, location)
    if status == 404:
        raise MissingFile("file not found in the registry", where=location, fix="check the version and --artifact")
    if status >= 400:
        raise RegistryError(f"the registry returned status {status}", where=location)


def _bad_token(status: int, location: str) -> RegistryError:
    fix = "check mlflow_tracking_token in env.yaml; it needs the scopes api and read_api"
    return RegistryError(f"the registry rejected the token ({status})", where=location, fix=fix)


def _library(name: str) -> ModuleType:
    """Import a module of MLflow or its dependencies."""
    try:
        return importlib.import_module(name)
    except ImportError:
        fix = "pip install 'nemo-gym[gitlab]'"
        raise ConfigError("datasets in a GitLab registry need MLflow's client", fix=fix) from None
