"""Datasets to and from the Hugging Face Hub.

A dataset is a private repository `<organization>/<prefix>-<domain>-<name>` with one file `<split>.jsonl` per split. An
upload counts as done when the Hub's copy has the checksum of ours; a download appears under its name when it has the
checksum the Hub names.
"""

import importlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree

import orjson

from nemo_gym.catalog.files import whole_file
from nemo_gym.catalog.roots import component_search_roots
from nemo_gym.config.load import read_source
from nemo_gym.config.schema_datasets import (
    BaseUploadJsonlDatasetHuggingFaceConfig,
    DownloadJsonlDatasetHuggingFaceConfig,
    HuggingFaceDatasetSource,
    JsonlDatasetHuggingFaceIdentifer,
)
from nemo_gym.data.hub_client import Hub
from nemo_gym.data.hub_transfer import ChecksumMismatch, Digest, Meter, RegistryError, digest_of, local_file, no_meter
from nemo_gym.data.problems import LineRanges
from nemo_gym.errors import ConfigError, ConfigPathNotFoundError
from nemo_gym.keys import RESPONSES_CREATE_PARAMS_KEY_NAME

SPLITS = ("train", "validation", "test")
_SPLIT_WORDS = {
    "train": {"train", "training"},
    "validation": {"validation", "valid", "val", "dev"},
    "test": {"test", "testing", "eval", "evaluation"},
}
_LINES, _PARQUET = ".jsonl", ".parquet"
_REPO_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,96}")


@dataclass(frozen=True)
class Published:
    """A file that the Hub holds, checksum and all."""

    repo: str
    path: str
    revision: str
    digest: Digest
    changed: bool
    """Whether it had to be sent; False if the Hub had it already."""
    url: str
    pull_request: str | None = None


def upload(
    config: BaseUploadJsonlDatasetHuggingFaceConfig,
    *,
    endpoint: str | None = None,
    meter: Meter = no_meter,
    pause: float = 1.0,
) -> Published:
    """Publish a file as one split of a dataset: create what is missing, send it, verify it, add it to the collection.

    Raises:
        ConfigError: the file or the configuration cannot be used; nothing was sent.
        RegistryError: the Hub refused or went away.
    """
    file = local_file(config.input_jsonl_fpath)
    repo = repo_of(config)
    check_rows(file, config.split)
    digest = digest_of(file)
    hub = Hub(config.hf_token, endpoint=endpoint, pause=pause)
    path = f"{config.split}{_LINES}"
    hub.create(repo, None if config.create_pr else config.revision)
    revision = config.revision or "main"
    pull_request: str | None = None
    url = hub.page(repo)
    changed = not hub.holds(repo, path, revision, digest, read_back=False)
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
        if not hub.holds(repo, path, revision, digest, read_back=True):
            raise ChecksumMismatch(
                f"the Hub's copy does not have the SHA-256 of {file} ({digest.sha256})",
                where=f"{repo}/{path}",
                fix="upload it again; until then do not use this revision",
            )
    hub.collect(repo, collection_of(config))
    return Published(repo, path, revision, digest, changed, url, pull_request)


def repo_of(config: BaseUploadJsonlDatasetHuggingFaceConfig) -> str:
    """`<organization>/<prefix>-<domain>-<dataset name, or the resources server's>`."""
    server, domain = resources_server_of(config.resource_config_path)
    name = f"{config.hf_dataset_prefix}-{domain}-{config.dataset_name or server}"
    for part in (config.hf_organization, name):
        if not _REPO_NAME.fullmatch(part) or ".." in part or "--" in part:
            raise ConfigError(
                f"{part!r} cannot be part of a repository's name",
                fix="up to 96 letters, digits, '-', '_' and '.', without '--' and '..'",
            )
    return f"{config.hf_organization}/{name}"


def collection_of(config: BaseUploadJsonlDatasetHuggingFaceConfig) -> str:
    """`<organization>/<collection name, lower case with dashes>-<slug>`."""
    name = "-".join(config.hf_collection_name.lower().split())
    return f"{config.hf_organization}/{name}-{config.hf_collection_slug}"


def resources_server_of(path: str) -> tuple[str, str]:
    """Name and domain of the resources server in a configuration file, looked for in the search roots."""
    candidates = [Path(path)] if Path(path).is_absolute() else [root / path for root in component_search_roots()]
    found = next((candidate for candidate in candidates if candidate.is_file()), None)
    if found is None:
        looked = "\n".join(f"  {candidate}" for candidate in candidates)
        raise ConfigPathNotFoundError(f"there is no file {path!r} (resource_config_path); looked at\n{looked}")
    for block in read_source(found).tree.values():
        servers = block.get("resources_servers") if isinstance(block, dict) else None
        for name, settings in (servers if isinstance(servers, dict) else {}).items():
            if isinstance(settings, dict) and settings.get("domain"):
                return str(name), str(settings["domain"])
    raise ConfigError("no resources server with a 'domain' in this file", where=path, fix="add 'domain: …' to it")


def check_rows(file: Path, split: str) -> None:
    """Every line is a JSON object, and in the train split says what to ask the model.

    Raises:
        ConfigError: with the lines of each kind of problem.
    """
    bad: dict[str, LineRanges] = {}
    rows = 0
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.isspace():
                continue
            rows += 1
            problem = _row_problem(line, split)
            if problem:
                bad.setdefault(problem, LineRanges()).add(number)
    if bad:
        told = "; ".join(f"{numbers}: {problem}" for problem, numbers in bad.items())
        raise ConfigError(told, where=str(file), fix="gym dataset collate shows every problem of a dataset")
    if not rows:
        raise ConfigError("the file has no rows", where=str(file))


def _row_problem(line: bytes, split: str) -> str | None:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        return "not JSON"
    if not isinstance(row, dict):
        return "not a JSON object"
    if split == "train" and RESPONSES_CREATE_PARAMS_KEY_NAME not in row:
        return f"{RESPONSES_CREATE_PARAMS_KEY_NAME} is missing, which a train split must have"
    return None


def fetch(
    identifier: JsonlDatasetHuggingFaceIdentifer | HuggingFaceDatasetSource,
    target: Path,
    *,
    split: str = "train",
    token: str | None = None,
    revision: str | None = None,
    endpoint: str | None = None,
    meter: Meter = no_meter,
    pause: float = 1.0,
) -> Digest:
    """Download the named file, or else the rows of `split`, to `target`; the digest of what was written there."""
    hub = Hub(token, endpoint=endpoint, pause=pause)
    repo, path = identifier.repo_id, identifier.artifact_fpath
    if path is None:
        return _fetch_split(hub, repo, hub.files(repo, revision), split, target, revision, meter)
    return hub.fetch(repo, path, target, revision, meter)


def download(
    config: DownloadJsonlDatasetHuggingFaceConfig,
    *,
    revision: str | None = None,
    endpoint: str | None = None,
    meter: Meter = no_meter,
    pause: float = 1.0,
) -> dict[Path, Digest]:
    """What `config` asks for, each file written under its name: one file, one split, or every split of a dataset."""
    hub = Hub(config.hf_token, endpoint=endpoint, pause=pause)
    repo = config.repo_id
    if config.artifact_fpath:
        target = Path(config.output_fpath or Path(config.output_dirpath or "") / Path(config.artifact_fpath).name)
        return {target: hub.fetch(repo, config.artifact_fpath, target, revision, meter)}
    files = hub.files(repo, revision)
    wanted = [config.split] if config.split else [split for split in SPLITS if split_files(files, split, repo)]
    if not wanted:
        raise _no_split(repo, files, "train, validation or test")
    targets = {
        split: Path(config.output_fpath or Path(config.output_dirpath or "") / f"{split}.jsonl") for split in wanted
    }
    return {target: _fetch_split(hub, repo, files, split, target, revision, meter) for split, target in targets.items()}


def split_files(files: Sequence[str], split: str, repo: str) -> list[str]:
    """The files of a split: `<split>.jsonl`, or files named after it (`data/train-00000-of-00002.parquet`).

    Raises:
        RegistryError: there are several sets of them.
    """
    if f"{split}{_LINES}" in files:
        return [f"{split}{_LINES}"]
    named = sorted(
        path
        for path in files
        if Path(path).suffix in (_LINES, _PARQUET)
        and _SPLIT_WORDS.get(split, {split}) & set(re.split(r"[^a-z]+", path.lower()))
    )
    sets = {(str(Path(path).parent), Path(path).suffix) for path in named}
    if len(sets) > 1:
        fix = "name the file you want with --artifact"
        raise RegistryError(f"several files could be the {split} split: {', '.join(named)}", where=repo, fix=fix)
    return named


def _no_split(repo: str, files: Sequence[str], split: str) -> RegistryError:
    there = ", ".join(path for path in files if not path.startswith(".")) or "none"
    problem = f"no .jsonl or .parquet file of this dataset is a split {split}; its files: {there}"
    return RegistryError(problem, where=repo, fix="name a file with --artifact")


def _fetch_split(
    hub: Hub, repo: str, files: Sequence[str], split: str, target: Path, revision: str | None, meter: Meter
) -> Digest:
    found = split_files(files, split, repo)
    if not found:
        raise _no_split(repo, files, repr(split))
    if len(found) == 1 and found[0].endswith(_LINES):
        return hub.fetch(repo, found[0], target, revision, meter)
    # Several pieces, or another format: they wait beside the target until all are there.
    folder = target.with_name(f".{target.name}.pieces")
    pieces = [folder / f"{number:05}{Path(path).suffix}" for number, path in enumerate(found)]
    for path, piece in zip(found, pieces, strict=True):
        hub.fetch(repo, path, piece, revision, meter)
    with whole_file(target) as joined:
        for piece in pieces:
            joined.writelines(_piece_lines(piece))
    rmtree(folder)
    return digest_of(target)


def _piece_lines(piece: Path) -> Iterator[bytes]:
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
