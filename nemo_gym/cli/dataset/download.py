"""Download a dataset from Hugging Face (default) or GitLab.

A file gets its name only when it is complete and its checksum is right; the next download continues an interrupted one.
Exit status: 0 done, 1 the checksum is wrong, 2 wrong usage, 3 the registry rejected the request or cannot be reached.

  gym dataset download --repo-id org/name --artifact train.jsonl -o data/train.jsonl
  gym dataset download --repo-id org/name --output-dir data
  gym dataset download --storage gitlab --name sums --revision 0.0.1 --artifact train.jsonl -o data/train.jsonl
"""

import argparse
from pathlib import Path

from nemo_gym.cli.dataset.upload import SPLITS
from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags = options.FlagGroup(parser)
    flags.choice("--storage", ("hf", "gitlab"), "registry (default: hf)", "hf")
    flags.text("--repo-id", "ORG/NAME", "Hugging Face: name of the dataset (repo_id)")
    flags.text("--name", "NAME", "GitLab: name of the dataset (dataset_name)", "dataset_name")
    flags.text("--revision", "NAME", "Hugging Face: branch, tag or commit; GitLab: version")
    flags.text("--artifact", "PATH", "file inside the dataset (artifact_fpath)", "artifact_fpath")
    flags.text("-o --output", "FILE", "file to write (output_fpath)", "output_fpath")
    flags.text("--output-dir", "DIR", "Hugging Face: folder for all splits (output_dirpath)", "output_dirpath")
    flags.choice("--split", SPLITS, "Hugging Face: split to download (default: all)")
    flags.json()


def run(args: argparse.Namespace) -> int:
    from rich.filesize import decimal

    from nemo_gym.cli.shared.registries import file_facts, load_gitlab_options, load_hub_options, open_registry
    from nemo_gym.config_types import DownloadJsonlDatasetGitlabConfig, DownloadJsonlDatasetHuggingFaceConfig
    from nemo_gym.data import gitlab, hub

    config = options.resolve_config(args, needs_model=False).config
    with output.transfer_meter("downloading") as meter:
        if args.storage == "gitlab":
            settings = load_gitlab_options(DownloadJsonlDatasetGitlabConfig, config, args)
            registry, target = open_registry(config, args.prog), Path(settings.output_fpath)
            files = {target: gitlab.fetch(settings, target, registry, meter=meter)}
        else:
            settings = load_hub_options(DownloadJsonlDatasetHuggingFaceConfig, config, args)
            revision = args.revision or config.get("revision") or config.get("version")
            files = hub.download(settings, revision=revision, meter=meter)

    def print_files() -> None:
        for path, digest in files.items():
            output.write(f"✓ {path} ({decimal(digest.size)}, sha256 {digest.sha256})")

    facts = {"storage": args.storage, "files": [file_facts(path, digest) for path, digest in files.items()]}
    output.write_result(facts, print_files, as_json=args.json)
    return 0
