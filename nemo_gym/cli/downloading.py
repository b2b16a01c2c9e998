"""What `gym dataset download` does."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig

from nemo_gym.cli import output
from nemo_gym.cli.dataset_publish import (
    configuration,
    file_facts,
    files_explained,
    gitlab_address,
    hub_token,
    progress_bar,
    size_text,
)
from nemo_gym.cli.options import options
from nemo_gym.config_types import DownloadJsonlDatasetGitlabConfig, DownloadJsonlDatasetHuggingFaceConfig
from nemo_gym.data import gitlab, hub
from nemo_gym.data.hub_transfer import Digest

COMMAND = "gym dataset download"


def download(args: argparse.Namespace, rest: Sequence[str]) -> int:
    config = configuration(rest)
    with files_explained():
        written = _from_gitlab(args, config) if args.storage == "gitlab" else _from_hub(args, config)
    if args.json:
        output.json({"storage": args.storage, "files": [file_facts(path, got) for path, got in written.items()]})
        return 0
    for path, got in written.items():
        output.data(f"✓ {path} ({size_text(got.size)}, sha256 {got.sha256})")
    return 0


def _from_hub(args: argparse.Namespace, config: DictConfig) -> dict[Path, Digest]:
    given = {
        "hf_token": hub_token(config),
        "repo_id": ("--repo-id", args.repo_id),
        "artifact_fpath": ("--artifact", args.artifact),
        "output_fpath": ("--output", args.output),
        "output_dirpath": ("--output-dir", args.output_dir),
        "split": ("--split", args.split),
    }
    settings = options(DownloadJsonlDatasetHuggingFaceConfig, config, given, command=COMMAND)
    revision = args.revision or config.get("revision") or config.get("version")
    with progress_bar("downloading") as meter:
        return hub.download(settings, revision=revision, meter=meter)


def _from_gitlab(args: argparse.Namespace, config: DictConfig) -> dict[Path, Digest]:
    given = {
        "dataset_name": ("--name", args.name),
        "version": ("--revision", args.revision),
        "artifact_fpath": ("--artifact", args.artifact),
        "output_fpath": ("--output", args.output),
    }
    settings = options(DownloadJsonlDatasetGitlabConfig, config, given, command=COMMAND)
    uri, token = gitlab_address(config, COMMAND)
    with progress_bar("downloading") as meter:
        return gitlab.download(settings, tracking_uri=uri, token=token, meter=meter)
