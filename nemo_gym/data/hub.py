"""Publish and download datasets on the Hugging Face Hub.

`upload` creates a private repository `<organization>/<prefix>-<domain>-<name>` with one file `<split>.jsonl` per split.
The checksums of uploads and downloads are compared with those of the Hub.
"""

import importlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any

import orjson

from nemo_gym.catalog.atomic_files import whole_file
from nemo_gym.catalog.rows import check_file
from nemo_gym.config.instances import instances_of
from nemo_gym.config.load import read_source
from nemo_gym.config.schema_datasets import (
    BaseUploadJsonlDatasetHuggingFaceConfig,
    DownloadJsonlDatasetHuggingFaceConfig,
    HuggingFaceDatasetSource,
    JsonlDatasetHuggingFaceIdentifer,
)
from nemo_gym.config.search_roots import component_search_roots, find_file
from nemo_gym.config.secret_text import scrub_text
from nemo_gym.data.file_transfer import (
    LONGEST_PAUSE,
    RETRYABLE_STATUSES,
    TIMEOUT,
    ChecksumMismatch,
    Digest,
    FileStream,
    Meter,
    RegistryError,
    TransferInterrupted,
    download_file,
    existing_file,
    file_digest,
    ignore_progress,
    metering_reads,
    range_headers,
    retry,
)
from nemo_gym.errors import ConfigError

DATASET = "dataset"
CALL_ATTEMPTS = 3
"""Maximum attempts of a small request."""
SPLITS = ("train", "validation", "test")
_SPLIT_WORDS = {
    "train": {"train", "training"},
    "validation": {"validation", "valid", "val", "dev"},
    "test": {"test", "testing", "eval", "evaluation"},
}
_JSONL, _PARQUET = ".jsonl", ".parquet"
_REPO_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,96}")


@dataclass(frozen=True)
class PublishedFile:
    """A verified file on the Hub."""

    repo: str
    path: str
    revision: str
    digest: Digest
    changed: bool
    """The file was uploaded; False if the Hub already had it."""
    url: str
    pull_request: str | None = None


def upload(config: BaseUploadJsonlDatasetHuggingFaceConfig, *, meter: Meter = ignore_progress) -> PublishedFile:
    """Publish a file as one split of a dataset: create the repository, upload, verify, add it to the collection.

    Raises:
        ConfigError: the file or the configuration cannot be used; the Hub was not called.
        RegistryError: the Hub rejected a request or could not be reached.
    """
    file = existing_file(config.input_jsonl_fpath)
    repo = repo_of(config)
    check_rows(file, needs_params=config.split == "train")
    digest = file_digest(file)
    dataset = HubDataset(repo, config.hf_token, config.revision)
    path = f"{config.split}{_JSONL}"
    dataset.create(with_branch=not config.create_pr)
    revision, url = config.revision or "main", dataset.url
    pull_request: str | None = None
    changed = not dataset.has(path, revision, digest)
    if changed:
        commit = dataset.send(
            file,
            path,
            meter,
            create_pr=config.create_pr,
            commit_message=config.commit_message or f"Add {path}",
            commit_description=config.commit_description,
        )
        revision, url, pull_request = str(commit.oid), str(commit.commit_url), commit.pr_url
        if not dataset.has(path, revision, digest):
            problem = f"the Hub's copy does not have the checksum of {file} (SHA-256 {digest.sha256})"
            raise ChecksumMismatch(problem, where=f"{repo}/{path}", fix="upload it again; do not use this revision")
    dataset.add_to_collection(collection_of(config))
    return PublishedFile(repo, path, revision, digest, changed, url, pull_request)


def repo_of(config: BaseUploadJsonlDatasetHuggingFaceConfig) -> str:
    """Return the repository: `<organization>/<prefix>-<domain>-<name of the dataset or the resources server>`."""
    server, domain = resources_server_of(config.resource_config_path)
    name = f"{config.hf_dataset_prefix}-{domain}-{config.dataset_name or server}"
    for part in (config.hf_organization, name):
        if not _REPO_NAME.fullmatch(part) or ".." in part or "--" in part:
            fix = "use up to 96 letters, digits, '-', '_' and '.', without '--' and '..'"
            raise ConfigError(f"{part!r} is not valid in a repository name", fix=fix)
    return f"{config.hf_organization}/{name}"


def collection_of(config: BaseUploadJsonlDatasetHuggingFaceConfig) -> str:
    """Return the collection: `<organization>/<name in lower case with dashes>-<slug>`."""
    name = "-".join(config.hf_collection_name.lower().split())
    return f"{config.hf_organization}/{name}-{config.hf_collection_slug}"


def resources_server_of(path: str) -> tuple[str, str]:
    """Return folder name and domain of the first resources server with a `domain` in a file below a search root."""
    tree = read_source(find_file(path, component_search_roots(), "the file of resource_config_path")).tree
    for server in instances_of(tree, "resources_servers"):
        if server.fields.get("domain"):
            return server.implementation, str(server.fields["domain"])
    raise ConfigError("no resources server with a 'domain' in this file", where=path, fix="add 'domain: …' to it")


def check_rows(file: Path, *, needs_params: bool) -> None:
    """Check that a file has rows, and that each is a JSON object, with `responses_create_params` if `needs_params`.

    Raises:
        ConfigError: the file is empty or has invalid rows; the message contains their line numbers.
    """
    rows, problems = check_file(file, needs_params=needs_params)
    if problems:
        fix = "run gym dataset collate to see every problem"
        raise ConfigError("; ".join(problems.texts()), where=str(file), fix=fix)
    if not rows:
        raise ConfigError("the file has no rows", where=str(file))


def fetch(
    identifier: JsonlDatasetHuggingFaceIdentifer | HuggingFaceDatasetSource,
    target: Path,
    *,
    split: str = "train",
    token: str | None = None,
    revision: str | None = None,
    meter: Meter = ignore_progress,
) -> Digest:
    """Download the file that the identifier names, or the rows of `split` if it names none; return the digest."""
    dataset = HubDataset(identifier.repo_id, token, revision)
    if identifier.artifact_fpath:
        return dataset.fetch(identifier.artifact_fpath, target, meter)
    return _fetch_split(dataset, dataset.files(), split, target, meter)


def download(
    config: DownloadJsonlDatasetHuggingFaceConfig, *, revision: str | None = None, meter: Meter = ignore_progress
) -> dict[Path, Digest]:
    """Download one file, one split or every split of a dataset; return the digests by path."""
    dataset = HubDataset(config.repo_id, config.hf_token, revision)
    folder = Path(config.output_dirpath or "")
    if config.artifact_fpath:
        target = Path(config.output_fpath or folder / Path(config.artifact_fpath).name)
        return {target: dataset.fetch(config.artifact_fpath, target, meter)}
    files = dataset.files()
    splits = (
        [config.split] if config.split else [split for split in SPLITS if split_files(files, split, config.repo_id)]
    )
    if not splits:
        raise _no_split(config.repo_id, files, "train, validation or test")
    targets = {Path(config.output_fpath or folder / f"{split}{_JSONL}"): split for split in splits}
    return {target: _fetch_split(dataset, files, split, target, meter) for target, split in targets.items()}


def split_files(files: Sequence[str], split: str, repo: str) -> list[str]:
    """Return `<split>.jsonl`, or else all files with a word for the split in their path, such as `data/dev-0.parquet`.

    Raises:
        RegistryError: files of different folders or formats match.
    """
    if f"{split}{_JSONL}" in files:
        return [f"{split}{_JSONL}"]
    matching = sorted(
        path
        for path in files
        if Path(path).suffix in (_JSONL, _PARQUET)
        and _SPLIT_WORDS.get(split, {split}) & set(re.split(r"[^a-z]+", path.lower()))
    )
    if len({(Path(path).parent, Path(path).suffix) for path in matching}) > 1:
        fix = "choose a file with --artifact"
        raise RegistryError(f"several files could be the {split} split: {', '.join(matching)}", where=repo, fix=fix)
    return matching


def _no_split(repo: str, files: Sequence[str], split: str) -> RegistryError:
    names = ", ".join(path for path in files if not path.startswith(".")) or "none"
    problem = f"no .jsonl or .parquet file for the split {split}; the dataset has: {names}"
    return RegistryError(problem, where=repo, fix="choose a file with --artifact")


def _fetch_split(dataset: "HubDataset", files: Sequence[str], split: str, target: Path, meter: Meter) -> Digest:
    """Download the rows of a split to `target`: one file, or several pieces that are joined."""
    paths = split_files(files, split, dataset.repo)
    if not paths:
        raise _no_split(dataset.repo, files, repr(split))
    if len(paths) == 1 and paths[0].endswith(_JSONL):
        return dataset.fetch(paths[0], target, meter)
    # Several pieces, or another format: store them next to the target until all are complete.
    folder = target.with_name(f".{target.name}.pieces")
    pieces = [folder / f"{number:05}{Path(path).suffix}" for number, path in enumerate(paths)]
    for path, piece in zip(paths, pieces, strict=True):
        dataset.fetch(path, piece, meter)
    with whole_file(target) as joined:
        for piece in pieces:
            joined.writelines(_piece_lines(piece))
    rmtree(folder)
    return file_digest(target)


def _piece_lines(piece: Path) -> Iterator[bytes]:
    """Yield the rows of a JSONL or Parquet file as JSON lines."""
    if piece.suffix == _JSONL:
        with piece.open("rb") as lines:
            for line in lines:
                yield line if line.endswith(b"\n") else line + b"\n"
        return
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise ConfigError("Parquet files need the package pyarrow", fix="pip install 'nemo-gym[data]'") from None
    with parquet.ParquetFile(piece) as file:
        for batch in file.iter_batches(batch_size=1000):
            for row in batch.to_pylist():
                yield orjson.dumps(row, default=str, option=orjson.OPT_APPEND_NEWLINE)


class HubDataset:
    """One dataset on the Hub, used through the Hub's library with timeouts, retries and readable errors.

    Without a token, the library uses its saved login, if any. Without a revision, the Hub uses the main branch.
    """

    def __init__(self, repo: str, token: str | None = None, revision: str | None = None) -> None:
        try:
            self._library = importlib.import_module("huggingface_hub")
        except ImportError:
            fix = "pip install 'nemo-gym[hub]'"
            raise ConfigError("datasets on the Hugging Face Hub need the package huggingface_hub", fix=fix) from None
        self._utils = importlib.import_module("huggingface_hub.utils")
        self._errors = importlib.import_module("huggingface_hub.errors")
        session = self._library.get_session()
        self._http = sys.modules[type(session).__module__.partition(".")[0]]  # the HTTP package of this version
        if session.timeout.read is None:
            self._limit_waits(session)
        self._utils.disable_progress_bars()
        self._api = self._library.HfApi(token=token)
        self._token = token
        self.repo = repo
        self._revision = revision
        self.url = f"{self._api.endpoint}/datasets/{repo}"

    def create(self, *, with_branch: bool) -> None:
        """Create a private repository unless it exists; with `with_branch`, also the branch that `revision` names."""
        self._call(self.repo, self._api.create_repo, self.repo, repo_type=DATASET, private=True, exist_ok=True)
        branch = self._revision
        if with_branch and branch and branch != "main" and not branch.startswith("refs/"):
            create = self._api.create_branch
            self._call(self.repo, create, self.repo, branch=branch, repo_type=DATASET, exist_ok=True)

    def send(self, file: Path, path: str, meter: Meter, **commit: Any) -> Any:
        """Commit a file and return the library's `CommitInfo`."""
        options = {"repo_id": self.repo, "repo_type": DATASET, "revision": self._revision, **commit}
        with self._translating_errors(self.repo), metering_reads(file, meter):
            return self._api.upload_file(path_or_fileobj=str(file), path_in_repo=path, **options)

    def add_to_collection(self, collection: str) -> None:
        """Add the dataset to a collection. Idempotent."""
        add = self._api.add_collection_item
        self._call(f"collection {collection}", add, collection, item_id=self.repo, item_type=DATASET, exists_ok=True)

    def files(self) -> list[str]:
        """List the paths of all files."""
        with self._translating_errors(self.repo):
            return list(self._api.list_repo_files(self.repo, repo_type=DATASET, revision=self._revision))

    def has(self, path: str, revision: str, digest: Digest) -> bool:
        """Return whether the Hub's file has this content, according to the size and checksum from the Hub."""
        entry = self._entry(path, revision)
        return entry is not None and entry.size == digest.size and digest.matches(_checksum(entry))

    def fetch(self, path: str, target: Path, meter: Meter) -> Digest:
        """Download one file and verify its checksum; skip the download if `target` already has the content."""
        entry = self._entry(path, self._revision)
        if entry is None:
            names = [name for name in self.files() if not name.startswith(".")]
            problem = f"the dataset has no file {path!r}; it has: {', '.join(names) or 'none'}"
            raise RegistryError(problem, where=self.repo)
        stream = partial(self._open_stream, path, entry.size)
        location = f"{self.repo}/{path}"
        return download_file(stream, target, checksum=_checksum(entry), location=location, meter=meter)

    def _entry(self, path: str, revision: str | None) -> Any:
        """Return the Hub's entry of a file, with size and checksum; None if it does not exist."""
        get = self._api.get_paths_info
        entries = self._call(self.repo, get, self.repo, [path], repo_type=DATASET, revision=revision)
        # Only files, not folders, have a blob id.
        return next((entry for entry in entries if entry.path == path and hasattr(entry, "blob_id")), None)

    @contextmanager
    def _open_stream(self, path: str, size: int, offset: int) -> Iterator[FileStream]:
        """Open a file of `size` bytes at an offset."""
        if offset == size:
            yield FileStream(size, size, iter(()))
            return
        offset = offset if offset < size else 0  # a longer received part cannot belong to this file
        address = {"repo_type": DATASET, "revision": self._revision, "endpoint": self._api.endpoint}
        url = self._library.hf_hub_url(self.repo, path, **address)
        headers = {**self._utils.build_hf_headers(token=self._token), **range_headers(offset)}
        with self._translating_errors(f"{self.repo}/{path}", retryable=True):
            stream = self._library.get_session().stream("GET", url, headers=headers, timeout=TIMEOUT)
            with stream as response:
                if response.status_code >= 400:
                    response.read()
                    self._utils.hf_raise_for_status(response)
                yield FileStream(offset if response.status_code == 206 else 0, size, response.iter_bytes())

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
        fix: str | None = None
        is_outage = False
        try:
            yield
            return
        except self._errors.HfHubHTTPError as error:
            problem, fix = self._describe_http_error(error)
            is_outage = getattr(error.response, "status_code", None) in RETRYABLE_STATUSES
        except self._http.TransportError as error:
            problem, fix = f"the Hub cannot be reached: {error}", "check the network, and HF_ENDPOINT if you set it"
            is_outage = True
        except (ValueError, RuntimeError) as error:  # invalid arguments, and errors of the library's Rust extension
            cause = f" ({error.__cause__})" if error.__cause__ else ""
            problem = f"the Hub's client failed: {error}{cause}"
        problem = scrub_text(problem, [self._token] if self._token else [])
        if retryable and is_outage:
            raise TransferInterrupted(problem) from None
        raise RegistryError(problem, where=location, fix=fix) from None

    def _describe_http_error(self, error: Any) -> tuple[str, str | None]:
        """Return the problem and the fix for an HTTP error of the Hub."""
        status = getattr(error.response, "status_code", None)
        if isinstance(error, self._errors.GatedRepoError):
            return "access to this dataset must be requested", "request access on its web page"
        if isinstance(error, self._errors.EntryNotFoundError):
            return "file not found on the Hub", None
        if isinstance(error, self._errors.RevisionNotFoundError):
            return "unknown revision", "use an existing branch or tag"
        if status == 401 and self._token:  # without a token, 401 can also mean that the repository does not exist
            fix = "check hf_token in env.yaml, or create a new one on the Hub's settings page"
            return "the Hub rejected the token (401)", fix
        if status == 403:
            return "the token lacks the permission (403)", "use a token with write access to this organization"
        if status in (401, 404):
            fix = "check the name; for a private dataset set hf_token in env.yaml"
            return "the dataset does not exist or is private", fix
        message = getattr(error, "server_message", None) or str(error)
        return f"the Hub returned status {status}: {message.strip()}", None

    def _limit_waits(self, session: Any) -> None:
        """Set a timeout on the library's HTTP client, and reject responses that demand a long pause."""
        client_class: Callable[..., Any] = type(session)
        hooks = session.event_hooks
        hooks = {**hooks, "response": [*hooks.get("response", ()), _reject_long_pauses]}
        factory = partial(client_class, event_hooks=hooks, follow_redirects=True, timeout=TIMEOUT)
        self._library.set_client_factory(factory)


def _checksum(entry: Any) -> str:
    """Return the Hub's checksum of a file: the SHA-256 of large files, the git blob id of small ones."""
    return str(entry.lfs.sha256 if entry.lfs is not None else entry.blob_id)


def _reject_long_pauses(response: Any) -> None:
    """Raise on a long Retry-After, because the library would sleep for the whole time."""
    seconds = response.headers.get("retry-after", "")
    if seconds.isdigit() and int(seconds) > LONGEST_PAUSE:
        fix = "try again later"
        raise RegistryError(f"the Hub is rate-limiting; retry in {seconds} s", where=response.url.host, fix=fix)
