"""A client of GitLab model registries based on MLflow's client, with timeouts and readable errors.

In GitLab, versions have names (`0.0.1`) and files belong to a version. Other MLflow servers number their versions, so
the name is stored as a tag, and files belong to a run.
"""

import importlib
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

from nemo_gym.config.secrets import scrub_text
from nemo_gym.data.file_transfer import (
    RETRYABLE_STATUSES,
    TIMEOUT,
    FileStream,
    Meter,
    OpenStream,
    RegistryError,
    TransferInterrupted,
    ignore_progress,
    metering_reads,
)
from nemo_gym.errors import ConfigError, ConfigMissingValuesError

VERSION_TAG = "gitlab.version"
EXPERIMENT = "nemo-gym-datasets"
TOKEN_VARIABLE = "MLFLOW_TRACKING_TOKEN"
_LIMITS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": str(int(TIMEOUT)),
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",
}
"""Environment variables that MLflow reads; existing values are kept."""
_NOT_FOUND_CODES = ("RESOURCE_DOES_NOT_EXIST", "NOT_FOUND", "ENDPOINT_NOT_FOUND")
_DENIED_STATUS = re.compile(r"(?<=error code )40[13]|40[13](?= Unauthorized| Forbidden)")
_BLOCK = 1 << 16


def create_mlflow_client(tracking_uri: str, token: str | None) -> Any:
    """Create MLflow's client of a server. MLflow reads the token from the environment, so this sets the variable.

    Raises:
        ConfigError: MLflow is not installed.
    """
    tracking = _library("mlflow.tracking")
    for name, value in _LIMITS.items():
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
    """The datasets of a server (registered models), their versions and the files of a version."""

    def __init__(self, tracking_uri: str, token: str | None = None) -> None:
        self._client = create_mlflow_client(tracking_uri, token)
        self._errors = _library("mlflow.exceptions")
        self._rest = _library("mlflow.utils.rest_utils")
        self._credentials = _library("mlflow.utils.credentials")
        self._http = _library("urllib3.exceptions")
        self._artifacts = _library("mlflow.store.artifact.mlflow_artifacts_repo")
        self._uri = tracking_uri
        self._is_gitlab = "/api/v4/projects/" in tracking_uri
        self._token = token

    def has(self, name: str) -> bool:
        """Return whether a dataset exists."""
        with self._translating_errors(name):
            return self._or_none(lambda: self._client.get_registered_model(name)) is not None

    def versions(self, name: str) -> list[str]:
        """List the versions of a dataset, oldest first; GitLab reports only the latest."""
        with self._translating_errors(name):
            if self._is_gitlab:
                with warnings.catch_warnings():  # deprecated in MLflow, but GitLab has no other call
                    warnings.simplefilter("ignore", FutureWarning)
                    entries = self._or_none(lambda: self._client.get_latest_versions(name)) or []
                return [str(entry.version) for entry in entries]
            return [entry.tags.get(VERSION_TAG, str(entry.version)) for entry in self._all_versions(name)]

    def version(self, name: str, version: str) -> Any:
        """Return MLflow's entry of a version; None if it does not exist."""
        with self._translating_errors(f"{name} {version}"):
            if self._is_gitlab:
                return self._or_none(lambda: self._client.get_model_version(name, version))
            entries = [entry for entry in self._all_versions(name) if entry.tags.get(VERSION_TAG) == version]
            return entries[-1] if entries else None

    def create_version(self, name: str, version: str) -> Any:
        """Create a version, and the dataset if it does not exist."""
        with self._translating_errors(f"{name} {version}"):
            if self._or_none(lambda: self._client.get_registered_model(name)) is None:
                self._client.create_registered_model(name)
            # 0: MLflow would wait up to five minutes for the copying of files, but no file is copied.
            options = {"tags": {VERSION_TAG: version}, "await_creation_for": 0}
            if self._is_gitlab:
                return self._client.create_model_version(name, version, **options)
            run = self._client.create_run(self._experiment(), run_name=f"{name}-{version}")
            return self._client.create_model_version(name, run.info.artifact_uri, run_id=run.info.run_id, **options)

    def delete(self, name: str) -> None:
        """Delete a dataset with all its versions."""
        with self._translating_errors(name):
            self._client.delete_registered_model(name)

    def send(self, entry: Any, file: Path, meter: Meter = ignore_progress) -> None:
        """Upload a file to a version."""
        with self._translating_errors(f"{entry.name}/{file.name}"), metering_reads(file, meter):
            self._client.log_artifact(entry.run_id, str(file))

    def open_stream(self, entry: Any, path: str) -> OpenStream:
        """Return a function that opens a file of a version at an offset."""
        location = f"{entry.name}/{path}"
        with self._translating_errors(location):
            root = self._client.get_run(entry.run_id).info.artifact_uri
            if root.startswith("mlflow-artifacts:"):
                root = self._artifacts.MlflowArtifactsRepository.resolve_uri(root, self._uri)
        if not root.startswith(("http://", "https://")):
            raise RegistryError(
                f"the registry stores its files at {root}, which is not an HTTP address", where=location
            )

        @contextmanager
        def open_at(offset: int) -> Iterator[FileStream]:
            headers = {"Accept-Encoding": "identity"}
            if offset:
                headers["Range"] = f"bytes={offset}-"
            with self._translating_errors(location, retryable=True):
                response = self._rest.http_request(
                    self._credentials.get_default_host_creds(root.rstrip("/")),
                    "/" + quote(path),
                    "GET",
                    max_retries=0,
                    timeout=TIMEOUT,
                    raise_on_status=False,
                    stream=True,
                    extra_headers=headers,
                )
                with response:
                    if response.status_code == 416:  # range not satisfiable: the received part is complete
                        yield FileStream(offset, None, iter(()))
                        return
                    self._check_status(response.status_code, location)
                    start = offset if response.status_code == 206 else 0
                    length = response.headers.get("Content-Length")
                    total = start + int(length) if length and length.isdigit() else None
                    # Yield received bytes at once: an interruption would lose the bytes of an incomplete block.
                    chunks = iter(lambda: response.raw.read1(_BLOCK, decode_content=True), b"")
                    yield FileStream(start, total, chunks)

        return open_at

    def _check_status(self, status: int, location: str) -> None:
        """Raise for an HTTP error status."""
        if status in RETRYABLE_STATUSES:
            raise TransferInterrupted(f"the registry returned status {status}")
        if status in (401, 403):
            raise _bad_token(str(status), location)
        if status == 404:
            raise MissingFile("file not found in the registry", where=location, fix="check the version and --artifact")
        if status >= 400:
            raise RegistryError(f"the registry returned status {status}", where=location)

    def _all_versions(self, name: str) -> list[Any]:
        """Return MLflow's entries of all versions of a dataset, oldest first."""
        entries: list[Any] = []
        page = None
        while page is None or page.token:
            page = self._client.search_model_versions(f"name='{name}'", page_token=page.token if page else None)
            entries += page
        return sorted(entries, key=lambda entry: int(entry.version))

    def _experiment(self) -> str:
        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        return str(experiment.experiment_id if experiment else self._client.create_experiment(EXPERIMENT))

    def _or_none(self, call: Any) -> Any:
        """Return the result of `call()`; None if the server reports that the object does not exist."""
        try:
            return call()
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
        except self._errors.MlflowException as error:
            text = scrub_text(str(error.message), [self._token] if self._token else [])
            is_outage = error.error_code == "INTERNAL_ERROR" and "API request to" in text
            if is_outage and retryable:
                raise TransferInterrupted(text) from None
            denied = _DENIED_STATUS.search(text)
            if denied or error.get_http_status_code() in (401, 403):
                raise _bad_token(denied[0] if denied else str(error.get_http_status_code()), location) from None
            if is_outage:
                raise _unreachable(text, location) from None
            raise RegistryError(f"the registry rejected the request: {text.splitlines()[0]}", where=location) from None
        except self._http.HTTPError as error:  # the response is incomplete
            raise TransferInterrupted(f"{type(error).__name__}: {error}") from None
        except OSError as error:  # all errors of the package requests are OSErrors
            if retryable:
                raise TransferInterrupted(f"{type(error).__name__}: {error}") from None
            text = scrub_text(str(error), [self._token] if self._token else [])
            status = getattr(getattr(error, "response", None), "status_code", None)
            if status in (401, 403):
                raise _bad_token(str(status), location) from None
            raise _unreachable(text, location) from None


class MissingFile(RegistryError):
    """The version does not have the file."""


def _unreachable(message: str, location: str) -> RegistryError:
    """Return the error of an outage, with the cause from the message of a long chain of exceptions."""
    cause = re.search(r"\[Errno -?\d+\] ([^\"')]+)|timed out|too many \d+ error responses", message)
    text = (cause[1] or cause[0]) if cause else message.splitlines()[0][:300]
    fix = "check mlflow_tracking_uri in env.yaml, and the network"
    return RegistryError(f"the registry cannot be reached: {text}", where=location, fix=fix)


def _bad_token(status: str, location: str) -> RegistryError:
    fix = "check mlflow_tracking_token in env.yaml; it needs the scopes api and read_api"
    return RegistryError(f"the registry rejected the token ({status})", where=location, fix=fix)


def _library(name: str) -> ModuleType:
    """Import a module of MLflow or its dependencies."""
    try:
        return importlib.import_module(name)
    except ImportError:
        fix = "pip install 'nemo-gym[gitlab]'"
        raise ConfigError("datasets in a GitLab registry need MLflow's client", fix=fix) from None
