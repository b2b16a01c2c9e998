"""Download a dataset from Hugging Face (default) or GitLab.

A file gets its name only when it is complete and its checksum is right; the next download continues an interrupted one.
Exit status: 0 done, 1 the checksum is wrong, 2 wrong usage, 3 the registry rejected the request or cannot be reached.

  gym dataset download --repo-id org/name --artifact train.jsonl -o data/train.jsonl
  gym dataset download --repo-id org/name --output-dir data
  gym dataset download --storage gitlab --name sums --revision 0.0.1 --artifact train.jsonl -o data/train.jsonl
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_gym.cli.dataset.upload import SPLITS
from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output
from nemo_gym.errors import raising_file_problems

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from nemo_gym.data.file_transfer import Digest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags = options.FlagGroup(parser)
    parser.add_argument("--storage", choices=("hf", "gitlab"), default="hf", help="registry (default: hf)")
    flags.value("--repo-id", "ORG/NAME", "Hugging Face: name of the dataset (repo_id)")
    flags.value("--name", "NAME", "GitLab: name of the dataset (dataset_name)", "dataset_name")
    flags.value("--revision", "NAME", "Hugging Face: branch, tag or commit; GitLab: version")
    flags.value("--artifact", "PATH", "file inside the dataset (artifact_fpath)", "artifact_fpath")
    flags.value("-o --output", "FILE", "file to write (output_fpath)", "output_fpath")
    flags.value("--output-dir", "DIR", "Hugging Face: folder for all splits (output_dirpath)", "output_dirpath")
    parser.add_argument("--split", choices=SPLITS, help="Hugging Face: split to download (default: all)")
    options.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    from nemo_gym.cli.shared.registries import file_facts, format_size

    config = options.resolve_config(args.overrides, needs_model=False).config
    with raising_file_problems():
        files = _download_from_gitlab(args, config) if args.storage == "gitlab" else _download_from_hub(args, config)
    if args.json:
        output.write_json(
            {"storage": args.storage, "files": [file_facts(path, digest) for path, digest in files.items()]}
        )
        return 0
    for path, digest in files.items():
        output.write(f"✓ {path} ({format_size(digest.size)}, sha256 {digest.sha256})")
    return 0


def _download_from_hub(args: argparse.Namespace, config: DictConfig) -> dict[Path, Digest]:
    """Download from Hugging Face and return the checksum of each file."""
    from nemo_gym.cli.shared.registries import load_hub_options
    from nemo_gym.config_types import DownloadJsonlDatasetHuggingFaceConfig
    from nemo_gym.data import hub

    settings = load_hub_options(DownloadJsonlDatasetHuggingFaceConfig, config, args)
    revision = args.revision or config.get("revision") or config.get("version")
    with output.transfer_meter("downloading") as meter:
        return hub.download(settings, revision=revision, meter=meter)


def _download_from_gitlab(args: argparse.Namespace, config: DictConfig) -> dict[Path, Digest]:
    """Download from GitLab and return the checksum of the file."""
    from nemo_gym.cli.shared.registries import open_registry
    from nemo_gym.config_types import DownloadJsonlDatasetGitlabConfig
    from nemo_gym.data import gitlab

    labels = {"version": "--revision"}
    settings = options.load_options(DownloadJsonlDatasetGitlabConfig, config, args, {"version": args.revision}, labels)
    registry, target = open_registry(config, args.prog), Path(settings.output_fpath)
    with output.transfer_meter("downloading") as meter:
        return {target: gitlab.fetch(settings, target, registry, meter=meter)}
