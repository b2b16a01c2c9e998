"""A client of the Hugging Face Hub based on its library, with timeouts, retries and readable errors."""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from nemo_gym.config.secrets import scrub_text
from nemo_gym.data.file_transfer import (
    LONGEST_PAUSE,
    RETRYABLE_STATUSES,
    TIMEOUT,
    Digest,
    FileStream,
    Meter,
    OpenStream,
    RegistryError,
    TransferInterrupted,
    download_file,
    file_digest,
    ignore_progress,
    metering_reads,
    retry,
)
from nemo_gym.errors import ConfigError

DATASET = "dataset"
CALL_ATTEMPTS = 3
"""Maximum attempts of a small request."""


class Hub:
    """Datasets on the Hub. Without a token, the library uses its saved login, if any."""

    def __init__(self, token: str | None = None) -> None:
        self._library = _library()
        self._utils = importlib.import_module("huggingface_hub.utils")
        self._errors = importlib.import_module("huggingface_hub.errors")
        _limit_waits(self._library)
        self._http = _http_package(self._library)
        self._utils.disable_progress_bars()
        self._api = self._library.HfApi(token=token)
        self._token = token

    def page(self, repo: str) -> str:
        """Return the address of a dataset's web page."""
        return f"{self._api.endpoint}/datasets/{repo}"

    def create(self, repo: str, branch: str | None) -> None:
        """Create a private dataset repository, and a branch of it, unless they exist."""
        self._call(repo, self._api.create_repo, repo, repo_type=DATASET, private=True, exist_ok=True)
        if branch and branch != "main" and not branch.startswith("refs/"):
            self._call(repo, self._api.create_branch, repo, branch=branch, repo_type=DATASET, exist_ok=True)

    def send(self, file: Path, repo: str, path: str, meter: Meter = ignore_progress, **commit: Any) -> Any:
        """Commit a file and return the library's `CommitInfo`."""
        with self._translating_errors(repo), metering_reads(file, meter):
            return self._api.upload_file(
                path_or_fileobj=str(file), path_in_repo=path, repo_id=repo, repo_type=DATASET, **commit
            )

    def add_to_collection(self, repo: str, collection: str) -> None:
        """Add a dataset to a collection. Idempotent."""
        add = self._api.add_collection_item
        self._call(f"collection {collection}", add, collection, item_id=repo, item_type=DATASET, exists_ok=True)

    def files(self, repo: str, revision: str | None) -> list[str]:
        """List the paths of all files of a dataset."""
        with self._translating_errors(repo):
            return list(self._api.list_repo_files(repo, repo_type=DATASET, revision=revision))

    def has(self, repo: str, path: str, revision: str | None, digest: Digest) -> bool:
        """Return whether the Hub's file has this content, according to the size and checksum from the Hub."""
        entry = self._entry(repo, path, revision)
        return entry is not None and entry.size == digest.size and _mismatch(entry, digest) is None

    def fetch(self, repo: str, path: str, target: Path, revision: str | None, meter: Meter = ignore_progress) -> Digest:
        """Download one file and verify its checksum; skip the download if `target` already has the content."""
        entry = self._entry(repo, path, revision)
        if entry is None:
            names = [name for name in self.files(repo, revision) if not name.startswith(".")]
            raise RegistryError(f"the dataset has no file {path!r}; it has: {', '.join(names) or 'none'}", where=repo)
        check = partial(_mismatch, entry)
        if target.is_file() and target.stat().st_size == entry.size:
            digest = file_digest(target)
            if check(digest) is None:
                return digest
        key = entry.lfs.sha256 if entry.lfs is not None else entry.blob_id
        stream = self._open_stream(repo, path, revision, entry.size)
        location = f"{repo}/{path}"
        return download_file(stream, target, key=key, location=location, check=check, meter=meter)

    def _entry(self, repo: str, path: str, revision: str | None) -> Any:
        """Return the Hub's entry of a file, with size and checksum; None if it does not exist."""
        entries = self._call(repo, self._api.get_paths_info, repo, [path], repo_type=DATASET, revision=revision)
        return next((entry for entry in entries if entry.path == path and hasattr(entry, "blob_id")), None)

    def _open_stream(self, repo: str, path: str, revision: str | None, size: int) -> OpenStream:
        """Return a function that opens a file at an offset."""
        url = self._library.hf_hub_url(repo, path, repo_type=DATASET, revision=revision, endpoint=self._api.endpoint)

        @contextmanager
        def open_stream(offset: int) -> Iterator[FileStream]:
            offset = offset if offset <= size else 0
            if offset == size:
                yield FileStream(size, size, iter(()))
                return
            headers = {**self._utils.build_hf_headers(token=self._token), "Accept-Encoding": "identity"}
            if offset:
                headers["Range"] = f"bytes={offset}-"
            with self._translating_errors(f"{repo}/{path}", retryable=True):
                stream = self._library.get_session().stream("GET", url, headers=headers, timeout=TIMEOUT)
                with stream as response:
                    if response.status_code >= 400:
                        response.read()
                        self._utils.hf_raise_for_status(response)
                    yield FileStream(offset if response.status_code == 206 else 0, size, response.iter_bytes())

        return open_stream

    def _call(self, location: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call an idempotent function of the library, with retries, because the library has none."""

        def attempt() -> Any:
            with self._translating_errors(location, retryable=True):
                return function(*args, **options)

        return retry(attempt, location, attempts=CALL_ATTEMPTS)

    @contextmanager
    def _translating_errors(self, location: str, *, retryable: bool = False) -> Iterator[None]:
        """Convert the library's errors to `RegistryError`, without the token in the message.

        With `retryable`, outages become `TransferInterrupted`.
        """
        try:
            yield
        except self._errors.HfHubHTTPError as error:
            if retryable and getattr(error.response, "status_code", None) in RETRYABLE_STATUSES:
                raise TransferInterrupted(f"the Hub returned status {error.response.status_code}") from None
            raise self._http_error(error, location) from None
        except self._http.TransportError as error:
            problem = self._without_token(f"the Hub cannot be reached: {error}")
            if retryable:
                raise TransferInterrupted(problem) from None
            fix = "check the network, and HF_ENDPOINT if you set it"
            raise RegistryError(problem, where=location, fix=fix) from None
        except (ValueError, RuntimeError) as error:  # invalid arguments, and errors of the library's Rust extension
            text = f"{error} ({error.__cause__})" if error.__cause__ else str(error)
            raise RegistryError(self._without_token(f"the Hub's client failed: {text}"), where=location) from None

    def _http_error(self, error: Any, location: str) -> RegistryError:
        """Convert an HTTP error of the Hub to an error with a fix."""
        status = getattr(error.response, "status_code", None)
        kinds: list[tuple[Any, str, str | None]] = [
            (
                self._errors.GatedRepoError,
                "access to this dataset must be requested",
                "request access on its web page",
            ),
            (self._errors.EntryNotFoundError, "file not found on the Hub", None),
            (self._errors.RevisionNotFoundError, "unknown revision", "use an existing branch or tag"),
        ]
        for kind, problem, fix in kinds:
            if isinstance(error, kind):
                return RegistryError(problem, where=location, fix=fix)
        if status == 401 and self._token:  # without a token, 401 can also mean that the repository does not exist
            fix = "check hf_token in env.yaml, or create a new one on the Hub's settings page"
            return RegistryError("the Hub rejected the token (401)", where=location, fix=fix)
        if status == 403:
            fix = "use a token with write access to this organization"
            return RegistryError("the token lacks the permission (403)", where=location, fix=fix)
        if status in (401, 404):
            fix = "check the name; for a private dataset set hf_token in env.yaml"
            return RegistryError("the dataset does not exist or is private", where=location, fix=fix)
        message = getattr(error, "server_message", None) or str(error)
        return RegistryError(
            self._without_token(f"the Hub returned status {status}: {message.strip()}"), where=location
        )

    def _without_token(self, text: str) -> str:
        return scrub_text(text, [self._token] if self._token else [])


def _mismatch(entry: Any, digest: Digest) -> str | None:
    """Return how a digest differs from the Hub's checksum; None if they are equal.

    The Hub has the SHA-256 of large files and the git blob id of small ones.
    """
    kind, expected, actual = ("git checksum", entry.blob_id, digest.git)
    if entry.lfs is not None:
        kind, expected, actual = ("SHA-256", entry.lfs.sha256, digest.sha256)
    return None if expected == actual else f"the {kind} of the received file is {actual}; expected {expected}"


def _library() -> ModuleType:
    """Import huggingface_hub."""
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError:
        fix = "pip install 'nemo-gym[hub]'"
        raise ConfigError("datasets on the Hugging Face Hub need the package huggingface_hub", fix=fix) from None


def _http_package(library: ModuleType) -> ModuleType:
    """Return the HTTP package that this version of the library uses."""
    return sys.modules[type(library.get_session()).__module__.partition(".")[0]]


def _limit_waits(library: ModuleType) -> None:
    """Set a timeout on the library's HTTP client, unless it has one."""
    session = library.get_session()
    if session.timeout.read is not None:
        return
    client_class: Callable[..., Any] = type(session)
    hooks = session.event_hooks
    hooks = {**hooks, "response": [*hooks.get("response", ()), _reject_long_pauses]}
    library.set_client_factory(partial(client_class, event_hooks=hooks, follow_redirects=True, timeout=TIMEOUT))


def _reject_long_pauses(response: Any) -> None:
    """Raise on a long Retry-After, because the library would sleep for the whole time."""
    seconds = response.headers.get("retry-after", "")
    if seconds.isdigit() and int(seconds) > LONGEST_PAUSE:
        raise RegistryError(
            f"the Hub is rate-limiting; retry in {seconds} s", where=response.url.host, fix="try again later"
        )
