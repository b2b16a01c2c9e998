"""Publish and download datasets on the Hugging Face Hub.

A dataset is a private repository `<organization>/<prefix>-<domain>-<name>` with one file `<split>.jsonl` per split. The
checksums of uploads and downloads are compared with those of the Hub.
"""

import importlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree

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
from nemo_gym.data.file_transfer import (
    ChecksumMismatch,
    Digest,
    Meter,
    RegistryError,
    existing_file,
    file_digest,
    ignore_progress,
)
from nemo_gym.data.hub_client import Hub
from nemo_gym.errors import ConfigError

SPLITS = ("train", "validation", "test")
_SPLIT_WORDS = {
    "train": {"train", "training"},
    "validation": {"validation", "valid", "val", "dev"},
    "test": {"test", "testing", "eval", "evaluation"},
}
_LINES, _PARQUET = ".jsonl", ".parquet"
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
    check_rows(file, config.split)
    digest = file_digest(file)
    hub = Hub(config.hf_token)
    path = f"{config.split}{_LINES}"
    hub.create(repo, None if config.create_pr else config.revision)
    revision = config.revision or "main"
    pull_request: str | None = None
    url = hub.page(repo)
    changed = not hub.has(repo, path, revision, digest)
    if changed:
        commit = hub.send(
            file,
            repo,
            path,
            meter,
            revision=config.revision,
            create_pr=config.create_pr,
            commit_message=config.commit_message or f"Add {path}",
            commit_description=config.commit_description,
        )
        revision, url, pull_request = str(commit.oid), str(commit.commit_url), commit.pr_url
        if not hub.has(repo, path, revision, digest):
            raise ChecksumMismatch(
                f"the Hub's copy does not have the checksum of {file} (SHA-256 {digest.sha256})",
                where=f"{repo}/{path}",
                fix="upload it again; do not use this revision",
            )
    hub.add_to_collection(repo, collection_of(config))
    return PublishedFile(repo, path, revision, digest, changed, url, pull_request)


def repo_of(config: BaseUploadJsonlDatasetHuggingFaceConfig) -> str:
    """Return the repository: `<organization>/<prefix>-<domain>-<name of the dataset or the resources server>`."""
    server, domain = resources_server_of(config.resource_config_path)
    name = f"{config.hf_dataset_prefix}-{domain}-{config.dataset_name or server}"
    for part in (config.hf_organization, name):
        if not _REPO_NAME.fullmatch(part) or ".." in part or "--" in part:
            raise ConfigError(
                f"{part!r} is not valid in a repository name",
                fix="use up to 96 letters, digits, '-', '_' and '.', without '--' and '..'",
            )
    return f"{config.hf_organization}/{name}"


def collection_of(config: BaseUploadJsonlDatasetHuggingFaceConfig) -> str:
    """Return the collection: `<organization>/<name in lower case with dashes>-<slug>`."""
    name = "-".join(config.hf_collection_name.lower().split())
    return f"{config.hf_organization}/{name}-{config.hf_collection_slug}"


def resources_server_of(path: str) -> tuple[str, str]:
    """Return the name and domain of the resources server in a configuration file, found in the search roots."""
    tree = read_source(find_file(path, component_search_roots(), "the file of resource_config_path")).tree
    for server in instances_of(tree, "resources_servers"):
        if server.fields.get("domain"):
            return server.implementation, str(server.fields["domain"])
    raise ConfigError("no resources server with a 'domain' in this file", where=path, fix="add 'domain: …' to it")


def check_rows(file: Path, split: str) -> None:
    """Check that a file has rows and every row is a JSON object; train rows need `responses_create_params`.

    Raises:
        ConfigError: the file is empty or has invalid rows; the message contains their line numbers.
    """
    rows, problems = check_file(file, needs_params=split == "train")
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
    """Download the identifier's file, or the rows of `split` if it has none, to `target`; return the digest."""
    hub = Hub(token)
    repo, path = identifier.repo_id, identifier.artifact_fpath
    if path is None:
        return _fetch_split(hub, repo, hub.files(repo, revision), split, target, revision, meter)
    return hub.fetch(repo, path, target, revision, meter)


def download(
    config: DownloadJsonlDatasetHuggingFaceConfig,
    *,
    revision: str | None = None,
    meter: Meter = ignore_progress,
) -> dict[Path, Digest]:
    """Download one file, one split or every split of a dataset; return the digests by path."""
    hub = Hub(config.hf_token)
    repo = config.repo_id
    if config.artifact_fpath:
        target = Path(config.output_fpath or Path(config.output_dirpath or "") / Path(config.artifact_fpath).name)
        return {target: hub.fetch(repo, config.artifact_fpath, target, revision, meter)}
    files = hub.files(repo, revision)
    splits = [config.split] if config.split else [split for split in SPLITS if split_files(files, split, repo)]
    if not splits:
        raise _no_split(repo, files, "train, validation or test")
    targets = {
        split: Path(config.output_fpath or Path(config.output_dirpath or "") / f"{split}.jsonl") for split in splits
    }
    return {target: _fetch_split(hub, repo, files, split, target, revision, meter) for split, target in targets.items()}


def split_files(files: Sequence[str], split: str, repo: str) -> list[str]:
    """Return the files of a split: `<split>.jsonl`, or files with its name (`data/train-00000-of-00002.parquet`).

    Raises:
        RegistryError: files of different folders or formats match.
    """
    if f"{split}{_LINES}" in files:
        return [f"{split}{_LINES}"]
    matching = sorted(
        path
        for path in files
        if Path(path).suffix in (_LINES, _PARQUET)
        and _SPLIT_WORDS.get(split, {split}) & set(re.split(r"[^a-z]+", path.lower()))
    )
    sets = {(str(Path(path).parent), Path(path).suffix) for path in matching}
    if len(sets) > 1:
        fix = "choose a file with --artifact"
        raise RegistryError(f"several files could be the {split} split: {', '.join(matching)}", where=repo, fix=fix)
    return matching


def _no_split(repo: str, files: Sequence[str], split: str) -> RegistryError:
    names = ", ".join(path for path in files if not path.startswith(".")) or "none"
    problem = f"no .jsonl or .parquet file for the split {split}; the dataset has: {names}"
    return RegistryError(problem, where=repo, fix="choose a file with --artifact")


def _fetch_split(
    hub: Hub, repo: str, files: Sequence[str], split: str, target: Path, revision: str | None, meter: Meter
) -> Digest:
    """Download the rows of a split to `target`: one file, or several pieces that are joined."""
    paths = split_files(files, split, repo)
    if not paths:
        raise _no_split(repo, files, repr(split))
    if len(paths) == 1 and paths[0].endswith(_LINES):
        return hub.fetch(repo, paths[0], target, revision, meter)
    # Several pieces, or another format: store them next to the target until all are complete.
    folder = target.with_name(f".{target.name}.pieces")
    pieces = [folder / f"{number:05}{Path(path).suffix}" for number, path in enumerate(paths)]
    for path, piece in zip(paths, pieces, strict=True):
        hub.fetch(repo, path, piece, revision, meter)
    with whole_file(target) as joined:
        for piece in pieces:
            joined.writelines(_piece_lines(piece))
    rmtree(folder)
    return file_digest(target)


def _piece_lines(piece: Path) -> Iterator[bytes]:
    """Yield the rows of a JSONL or Parquet file as JSON lines."""
    if piece.suffix == _LINES:
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
