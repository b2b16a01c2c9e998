"""A GitLab model registry through MLflow's client, with a limit on every wait and errors in plain words.

GitLab differs from MLflow in two ways: versions have names (`0.0.1`), and files belong to a version. Any other MLflow
server numbers its versions, so the name becomes a tag, and the files belong to a run.
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
_ABSENT = ("RESOURCE_DOES_NOT_EXIST", "NOT_FOUND", "ENDPOINT_NOT_FOUND")
_REFUSED = re.compile(r"(?<=error code )40[13]|40[13](?= Unauthorized| Forbidden)")
_BLOCK = 1 << 16


def create_mlflow_client(tracking_uri: str, token: str | None) -> Any:
    """Return MLflow's client of a server. MLflow reads the token from the environment, so it is set there.

    Raises:
        ConfigError: the package is not installed.
    """
    tracking = _library("mlflow.tracking")
    for name, value in _LIMITS.items():
        os.environ.setdefault(name, value)
    if token:
        os.environ[TOKEN_VARIABLE] = token
    return tracking.MlflowClient(tracking_uri=tracking_uri, registry_uri=tracking_uri)


def registry_address(config: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return address and token of the registry in a configuration.

    Raises:
        ConfigMissingValuesError: the configuration has no address.
    """
    uri, token = config.get("mlflow_tracking_uri"), config.get("mlflow_tracking_token")
    if not uri:
        raise ConfigMissingValuesError("mlflow_tracking_uri is not set", fix="add it to env.yaml")
    return str(uri), str(token) if token else None


class Registry:
    """The registered models of a server, each a dataset; their versions; the files of a version."""

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
        """Return one version, or None."""
        with self._translating_errors(f"{name} {version}"):
            if self._is_gitlab:
                return self._or_none(lambda: self._client.get_model_version(name, version))
            entries = [entry for entry in self._all_versions(name) if entry.tags.get(VERSION_TAG) == version]
            return entries[-1] if entries else None

    def create_version(self, name: str, version: str) -> Any:
        """Create a version, and the dataset if this is its first version."""
        with self._translating_errors(f"{name} {version}"):
            if self._or_none(lambda: self._client.get_registered_model(name)) is None:
                self._client.create_registered_model(name)
            # MLflow would wait up to five minutes for files to be copied; there is nothing to copy.
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
        where = f"{entry.name}/{path}"
        with self._translating_errors(where):
            root = self._client.get_run(entry.run_id).info.artifact_uri
            if root.startswith("mlflow-artifacts:"):
                root = self._artifacts.MlflowArtifactsRepository.resolve_uri(root, self._uri)
        if not root.startswith(("http://", "https://")):
            raise RegistryError(f"the registry keeps its files at {root}, not behind HTTP", where=where)

        @contextmanager
        def open_at(offset: int) -> Iterator[FileStream]:
            headers = {"Accept-Encoding": "identity"}
            if offset:
                headers["Range"] = f"bytes={offset}-"
            with self._translating_errors(where, retryable=True):
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
                    if response.status_code == 416:  # the local part is complete, or the file became shorter
                        yield FileStream(offset, None, iter(()))
                        return
                    self._check_status(response.status_code, where)
                    start = offset if response.status_code == 206 else 0
                    length = response.headers.get("Content-Length")
                    total = start + int(length) if length and length.isdigit() else None
                    # Yield received bytes at once: an interruption would lose a partly filled block.
                    chunks = iter(lambda: response.raw.read1(_BLOCK, decode_content=True), b"")
                    yield FileStream(start, total, chunks)

        return open_at

    def _check_status(self, status: int, where: str) -> None:
        if status in RETRYABLE_STATUSES:
            raise TransferInterrupted(f"the registry answered {status}")
        if status in (401, 403):
            raise _bad_token(str(status), where)
        if status == 404:
            raise MissingFile("the registry has no such file", where=where, fix="check the version and --artifact")
        if status >= 400:
            raise RegistryError(f"the registry answered {status}", where=where)

    def _all_versions(self, name: str) -> list[Any]:
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
        try:
            return call()
        except self._errors.MlflowException as error:
            if error.error_code in _ABSENT or error.get_http_status_code() == 404:
                return None
            raise

    @contextmanager
    def _translating_errors(self, where: str, *, retryable: bool = False) -> Iterator[None]:
        """Turn MLflow's errors into ours, without the token; with `retryable`, an outage into `TransferInterrupted`."""
        try:
            yield
        except self._errors.MlflowException as error:
            text = scrub_text(str(error.message), [self._token] if self._token else [])
            is_outage = error.error_code == "INTERNAL_ERROR" and "API request to" in text
            if is_outage and retryable:
                raise TransferInterrupted(text) from None
            refused = _REFUSED.search(text)
            if refused or error.get_http_status_code() in (401, 403):
                raise _bad_token(refused[0] if refused else str(error.get_http_status_code()), where) from None
            if is_outage:
                raise _unreachable(text, where) from None
            raise RegistryError(f"the registry refused: {text.splitlines()[0]}", where=where) from None
        except self._http.HTTPError as error:  # the body ended early
            raise TransferInterrupted(f"{type(error).__name__}: {error}") from None
        except OSError as error:  # all errors of requests are OSErrors
            if retryable:
                raise TransferInterrupted(f"{type(error).__name__}: {error}") from None
            text = scrub_text(str(error), [self._token] if self._token else [])
            status = getattr(getattr(error, "response", None), "status_code", None)
            if status in (401, 403):
                raise _bad_token(str(status), where) from None
            raise _unreachable(text, where) from None


class MissingFile(RegistryError):
    """The version exists, the file does not."""


def _unreachable(message: str, where: str) -> RegistryError:
    """Report an outage with the cause out of a long chain of exceptions, if it is in there."""
    reason = re.search(r"\[Errno -?\d+\] ([^\"')]+)|timed out|too many \d+ error responses", message)
    text = (reason[1] or reason[0]) if reason else message.splitlines()[0][:300]
    fix = "check mlflow_tracking_uri in env.yaml, and the network"
    return RegistryError(f"the registry cannot be reached: {text}", where=where, fix=fix)


def _bad_token(status: str, where: str) -> RegistryError:
    fix = "check mlflow_tracking_token in env.yaml; it needs the scopes api and read_api"
    return RegistryError(f"the registry does not accept the token ({status})", where=where, fix=fix)


def _library(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError:
        fix = "pip install 'nemo-gym[gitlab]'"
        raise ConfigError("datasets in a GitLab registry need MLflow's client", fix=fix) from None
