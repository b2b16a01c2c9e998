"""Options, confirmation and output of the commands that use a dataset registry: Hugging Face or GitLab."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.filesize import decimal

from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output
from nemo_gym.config_types import UploadJsonlDatasetHuggingFaceConfig
from nemo_gym.data.file_transfer import Digest
from nemo_gym.data.gitlab import Registry, registry_address
from nemo_gym.data.hub import PublishedFile
from nemo_gym.errors import ConfigMissingValuesError

TOKEN_KEY, TOKEN_VARIABLE = "hf_token", "HF_TOKEN"


def load_hub_options(options_class: Any, config: DictConfig, args: argparse.Namespace) -> Any:
    """Load the options of a transfer to or from the Hub; the token comes from the configuration or from HF_TOKEN."""
    token = config.get(TOKEN_KEY) or os.environ.get(TOKEN_VARIABLE) or None
    labels = {TOKEN_KEY: f"{TOKEN_KEY} in env.yaml"}
    return options.load_options(options_class, config, args, {TOKEN_KEY: token}, labels)


def load_gitlab_options(options_class: Any, config: DictConfig, args: argparse.Namespace) -> Any:
    """Load the options of a transfer to or from GitLab; the version of the dataset comes from --revision."""
    return options.load_options(options_class, config, args, {"version": args.revision}, {"version": "--revision"})


def open_registry(config: DictConfig, command: str) -> Registry:
    """Return the GitLab registry that the configuration names."""
    try:
        return Registry(*registry_address(config))
    except ConfigMissingValuesError as error:
        raise options.UsageError(error.problem, where=command, fix=error.fix) from None


def migrate_dataset(
    settings: UploadJsonlDatasetHuggingFaceConfig, config: DictConfig, args: argparse.Namespace, question: str
) -> int:
    """Upload a dataset to the Hub and delete it from GitLab, after a confirmation; return the exit status.

    `{dataset}` in `question` is replaced by the dataset to delete.
    """
    from nemo_gym.data.gitlab import dataset_name_of, migrate_to_hub, refuse_other_branch, versions_to_delete

    refuse_other_branch(settings)
    registry, name = open_registry(config, args.prog), dataset_name_of(settings)
    dataset = describe_dataset(name, versions_to_delete(registry, name))
    if not confirm(question.format(dataset=dataset), yes=args.yes):
        output.notify("nothing was uploaded, nothing was deleted")
        return 1
    with output.transfer_meter("uploading") as meter:
        published = migrate_to_hub(settings, registry, meter=meter)
    print_published(published, as_json=args.json, deleted=name)
    return 0


def confirm(question: str, *, yes: bool) -> bool:
    """Print the question and return True if the user types yes; with `yes` return True without a question."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise options.UsageError("this deletes data and needs a confirmation, but stdin is not a terminal", fix="--yes")
    output.notify(f"{question} [y/N]")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def describe_dataset(name: str, versions: Sequence[str]) -> str:
    """Return a phrase with the name and latest versions of a GitLab dataset; after versions it ends with a comma."""
    return f"'{name}' with all its versions" + (f", among them {', '.join(versions)}," if versions else "")


def print_published(published: PublishedFile, *, as_json: bool, deleted: str | None = None) -> None:
    """Print where a dataset is on the Hub and whether it was uploaded now; `deleted` is its former name in GitLab."""
    facts = {
        "storage": "hf",
        "repo_id": published.repo,
        **file_facts(published.path, published.digest),
        "revision": published.revision,
        "url": published.url,
        "pull_request_url": published.pull_request,
        "uploaded": published.changed,
        "deleted_from_gitlab": deleted,
    }

    def print_text() -> None:
        print_uploaded(f"{published.repo}/{published.path}", published.digest, changed=published.changed)
        output.write(f"  {published.pull_request or published.url}")
        if deleted:
            output.write(f"  deleted from GitLab: {deleted}")

    output.write_result(facts, print_text, as_json=as_json)


def print_uploaded(name: str, digest: Digest, *, changed: bool) -> None:
    """Print the size and checksum of a file in a registry; `changed` if it was uploaded now."""
    state = "uploaded and verified" if changed else "the registry has exactly this file already"
    output.write(f"✓ {name}: {state} ({decimal(digest.size)})\n  sha256 {digest.sha256}")


def file_facts(path: str | Path, digest: Digest) -> dict[str, Any]:
    """Return path, size and checksum of a file for `--json`."""
    return {"path": str(path), "bytes": digest.size, "sha256": digest.sha256}
