"""A GitLab model registry through MLflow's own client, with limits on every wait and errors in plain words.

GitLab speaks MLflow with two differences: versions are named as one likes (`0.0.1`), and a version brings its own place
for files. Any other MLflow server counts its versions, so the name is a tag there, and the files belong to a run.
"""

import importlib
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

from nemo_gym.config.secrets import scrubbed
from nemo_gym.data.hub_transfer import (
    PATIENCE,
    Answer,
    Ask,
    Meter,
    RegistryError,
    TransferBroken,
    no_meter,
    watched,
)
from nemo_gym.errors import ConfigError

VERSION_TAG = "gitlab.version"
EXPERIMENT = "nemo-gym-datasets"
TOKEN_VARIABLE = "MLFLOW_TRACKING_TOKEN"
_LIMITS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": str(int(PATIENCE)),
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",
}
"""What MLflow reads from the environment; set unless somebody has."""
_ABSENT = ("RESOURCE_DOES_NOT_EXIST", "NOT_FOUND", "ENDPOINT_NOT_FOUND")
_WORTH_ANOTHER_TRY = frozenset({408, 429, 500, 502, 503, 504})
_REFUSED = re.compile(r"(?<=error code )40[13]|40[13](?= Unauthorized| Forbidden)")
_BLOCK = 1 << 16


def create_mlflow_client(tracking_uri: str, token: str | None) -> Any:
    """MLflow's client of that server. The token goes where MLflow looks for it: the environment of this process.

    Raises:
        ConfigError: the package is not installed.
    """
    tracking = _library("mlflow.tracking")
    for name, value in _LIMITS.items():
        os.environ.setdefault(name, value)
    if token:
        os.environ[TOKEN_VARIABLE] = token
    return tracking.MlflowClient(tracking_uri=tracking_uri, registry_uri=tracking_uri)


class Registry:
    """Registered models, each a dataset; their versions; the files of a version."""

    def __init__(self, tracking_uri: str, token: str | None = None) -> None:
        self._client = create_mlflow_client(tracking_uri, token)
        self._known = _library("mlflow.exceptions")
        self._rest = _library("mlflow.utils.rest_utils")
        self._credentials = _library("mlflow.utils.credentials")
        self._http = _library("urllib3.exceptions")
        self._places = _library("mlflow.store.artifact.mlflow_artifacts_repo")
        self._uri = tracking_uri
        self._is_gitlab = "/api/v4/projects/" in tracking_uri
        self._token = token

    def has(self, name: str) -> bool:
        """Whether there is a dataset of that name."""
        with self._explained(name):
            return self._or_none(lambda: self._client.get_registered_model(name)) is not None

    def versions(self, name: str) -> list[str]:
        """The versions of a dataset, oldest first."""
        with self._explained(name):
            if self._is_gitlab:
                with warnings.catch_warnings():  # MLflow moves on from this call; GitLab has no other
                    warnings.simplefilter("ignore", FutureWarning)
                    found = self._or_none(lambda: self._client.get_latest_versions(name)) or []
                return [str(entry.version) for entry in found]
            return [entry.tags.get(VERSION_TAG, str(entry.version)) for entry in self._all_versions(name)]

    def version(self, name: str, version: str) -> Any:
        """One version, or None."""
        with self._explained(f"{name} {version}"):
            if self._is_gitlab:
                return self._or_none(lambda: self._client.get_model_version(name, version))
            found = [entry for entry in self._all_versions(name) if entry.tags.get(VERSION_TAG) == version]
            return found[-1] if found else None

    def make_version(self, name: str, version: str) -> Any:
        """A new version, and the dataset itself if it is the first one."""
        with self._explained(f"{name} {version}"):
            if self._or_none(lambda: self._client.get_registered_model(name)) is None:
                self._client.create_registered_model(name)
            # Nothing is to be copied, so there is nothing to wait for, which would be up to five minutes.
            how = {"tags": {VERSION_TAG: version}, "await_creation_for": 0}
            if self._is_gitlab:
                return self._client.create_model_version(name, version, **how)
            run = self._client.create_run(self._experiment(), run_name=f"{name}-{version}")
            return self._client.create_model_version(name, run.info.artifact_uri, run_id=run.info.run_id, **how)

    def delete(self, name: str) -> None:
        """Remove a dataset with all its versions."""
        with self._explained(name):
            self._client.delete_registered_model(name)

    def send(self, entry: Any, file: Path, meter: Meter = no_meter) -> None:
        """Put a file into a version."""
        with self._explained(f"{entry.name}/{file.name}"), watched(file, meter):
            self._client.log_artifact(entry.run_id, str(file))

    def ask(self, entry: Any, path: str) -> Ask:
        """Reading a file of a version."""
        where = f"{entry.name}/{path}"
        with self._explained(where):
            root = self._client.get_run(entry.run_id).info.artifact_uri
            if root.startswith("mlflow-artifacts:"):
                root = self._places.MlflowArtifactsRepository.resolve_uri(root, self._uri)
        if not root.startswith(("http://", "https://")):
            raise RegistryError(f"the registry keeps its files at {root}, not behind HTTP", where=where)

        @contextmanager
        def ask(offset: int) -> Iterator[Answer]:
            headers = {"Accept-Encoding": "identity"}
            if offset:
                headers["Range"] = f"bytes={offset}-"
            with self._explained(where, broken=True):
                response = self._rest.http_request(
                    self._credentials.get_default_host_creds(root.rstrip("/")),
                    "/" + quote(path),
                    "GET",
                    max_retries=0,
                    timeout=PATIENCE,
                    raise_on_status=False,
                    stream=True,
                    extra_headers=headers,
                )
                with response:
                    if response.status_code == 416:  # all of it is here already, or it has become shorter
                        yield Answer(offset, None, iter(()))
                        return
                    self._refuse(response.status_code, where)
                    start = offset if response.status_code == 206 else 0
                    length = response.headers.get("Content-Length")
                    total = start + int(length) if length and length.isdigit() else None
                    # What has arrived is handed on at once: waiting for a full block would lose it when it breaks.
                    chunks = iter(lambda: response.raw.read1(_BLOCK, decode_content=True), b"")
                    yield Answer(start, total, chunks)

        return ask

    def _refuse(self, status: int, where: str) -> None:
        if status in _WORTH_ANOTHER_TRY:
            raise TransferBroken(f"the registry answered {status}")
        if status in (401, 403):
            raise _bad_token(str(status), where)
        if status == 404:
            raise MissingFile("the registry has no such file", where=where, fix="check the version and --artifact")
        if status >= 400:
            raise RegistryError(f"the registry answered {status}", where=where)

    def _all_versions(self, name: str) -> list[Any]:
        found: list[Any] = []
        page = None
        while page is None or page.token:
            page = self._client.search_model_versions(f"name='{name}'", page_token=page.token if page else None)
            found += page
        return sorted(found, key=lambda entry: int(entry.version))

    def _experiment(self) -> str:
        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        return str(experiment.experiment_id if experiment else self._client.create_experiment(EXPERIMENT))

    def _or_none(self, call: Any) -> Any:
        try:
            return call()
        except self._known.MlflowException as error:
            if error.error_code in _ABSENT or error.get_http_status_code() == 404:
                return None
            raise

    @contextmanager
    def _explained(self, where: str, *, broken: bool = False) -> Iterator[None]:
        """Errors of MLflow as ours, without the token. With `broken`, a lost connection is worth another try."""
        try:
            yield
        except self._known.MlflowException as error:
            said = scrubbed(str(error.message), [self._token] if self._token else [])
            lost = error.error_code == "INTERNAL_ERROR" and "API request to" in said
            if lost and broken:
                raise TransferBroken(said) from None
            refused = _REFUSED.search(said)
            if refused or error.get_http_status_code() in (401, 403):
                raise _bad_token(refused[0] if refused else str(error.get_http_status_code()), where) from None
            if lost:
                raise _unreachable(said, where) from None
            raise RegistryError(f"the registry refused: {said.splitlines()[0]}", where=where) from None
        except self._http.HTTPError as error:  # a body that breaks off
            raise TransferBroken(f"{type(error).__name__}: {error}") from None
        except OSError as error:  # requests' errors are all of this kind
            if broken:
                raise TransferBroken(f"{type(error).__name__}: {error}") from None
            said = scrubbed(str(error), [self._token] if self._token else [])
            status = getattr(getattr(error, "response", None), "status_code", None)
            if status in (401, 403):
                raise _bad_token(str(status), where) from None
            raise _unreachable(said, where) from None


class MissingFile(RegistryError):
    """The version is there, the file is not."""


def _unreachable(said: str, where: str) -> RegistryError:
    """The one word that matters out of a long chain of exceptions, if there is one."""
    reason = re.search(r"\[Errno -?\d+\] ([^\"')]+)|timed out|too many \d+ error responses", said)
    text = (reason[1] or reason[0]) if reason else said.splitlines()[0][:300]
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
