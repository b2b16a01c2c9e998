"""What the commands that move datasets share: their settings, a progress bar, the question before a deletion."""

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from nemo_gym.cli import output
from nemo_gym.cli.options import UsageError, resolved_without_model
from nemo_gym.data.gitlab_client import Registry
from nemo_gym.data.hub_transfer import Digest, Meter, no_meter
from nemo_gym.errors import GymError

Given = Mapping[str, tuple[str, Any]]
TOKEN_KEY, TOKEN_VARIABLE = "hf_token", "HF_TOKEN"
PAUSE = 0.1
"""Seconds between two looks of the bar at the numbers; they may come by the million."""
URI_KEY, GITLAB_TOKEN_KEY = "mlflow_tracking_uri", "mlflow_tracking_token"


def configuration(rest: Sequence[str]) -> DictConfig:
    """env.yaml and the overrides of the command line."""
    return resolved_without_model(rest).config


def hub_token(config: DictConfig) -> tuple[str, str | None]:
    """Where the Hub's token belongs, and what it is."""
    return f"{TOKEN_KEY} in env.yaml", config.get(TOKEN_KEY) or os.environ.get(TOKEN_VARIABLE) or None


def gitlab_address(config: DictConfig, command: str) -> tuple[str, str | None]:
    """Where the GitLab registry is, and the token for it.

    Raises:
        UsageError: the configuration does not say.
    """
    uri = config.get(URI_KEY)
    if not uri:
        fix = f"{URI_KEY}: https://<gitlab>/api/v4/projects/<id>/ml/mlflow, and {GITLAB_TOKEN_KEY}, in env.yaml"
        raise UsageError(f"{URI_KEY} is not set", where=command, fix=fix)
    token = config.get(GITLAB_TOKEN_KEY)
    return str(uri), str(token) if token else None


def gitlab_registry(config: DictConfig, command: str) -> Registry:
    """The GitLab registry of the configuration."""
    return Registry(*gitlab_address(config, command))


@contextmanager
def files_explained() -> Iterator[None]:
    """A file that cannot be read or written, told like every other problem.

    Raises:
        FileProblem: in place of the system's error.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, GymError) or error.filename is None:
            raise
        raise FileProblem(error.strerror or str(error), where=str(error.filename)) from None


class FileProblem(GymError):
    """The system does not let us read or write a file."""

    exit_status = 3


@contextmanager
def progress_bar(what: str) -> Iterator[Meter]:
    """A bar on the terminal for as long as the block runs; elsewhere nothing."""
    if not sys.stderr.isatty():
        yield no_meter
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as progress:
        task = progress.add_task(what, total=None)
        told = 0.0

        def meter(done: int, total: int | None) -> None:
            nonlocal told
            now = time.monotonic()
            if now - told >= PAUSE or done == total:
                told = now
                progress.update(task, completed=done, total=total)

        yield meter


def agreed(question: str, *, yes: bool) -> bool:
    """Whether the user wants this to happen.

    Raises:
        UsageError: nobody is there to be asked.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError("this deletes data, and nobody is at the terminal to agree", fix="say --yes")
    output.talk(f"{question} [y/N]")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def among(versions: Sequence[str]) -> str:
    """The versions we know of; GitLab tells only the latest."""
    return f", among them {', '.join(versions)}," if versions else ""


def file_facts(path: str | Path, digest: Digest) -> dict[str, Any]:
    """A file for `--json`."""
    return {"path": str(path), "bytes": digest.size, "sha256": digest.sha256}


def size_text(size: int) -> str:
    """A size for people."""
    value, units = float(size), ["B", "kB", "MB", "GB"]
    while value >= 1000 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"
