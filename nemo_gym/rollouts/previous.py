"""Earlier results, kept aside when a run starts over: one generation, in a folder beside the output.

The folder holds the files under their own names, so what is in it can be read, profiled and even resumed.
"""

import logging
import shutil
from pathlib import Path

from nemo_gym.rollouts.jsonl import StoreError
from nemo_gym.rollouts.paths import (
    aggregate_metrics_path_for,
    failures_path_for,
    index_folder_for,
    materialized_path_for,
    previous_folder_for,
    run_path_for,
)

logger = logging.getLogger("nemo_gym.rollouts")

DERIVED_ENDINGS = ("_reward_profiling.jsonl", "_agent_metrics.json")
"""Made from the output by other commands; beside another output they would be wrong."""


def files_of(output: Path) -> list[Path]:
    """What a run leaves, in the order it is taken away: without its rows, an output can no longer be resumed."""
    derived = [output.with_name(output.stem + ending) for ending in DERIVED_ENDINGS]
    own = (materialized_path_for, run_path_for, index_folder_for, failures_path_for, aggregate_metrics_path_for)
    return [*(path_of(output) for path_of in own), *derived, output]


def put_aside(output: Path) -> Path | None:
    """Move the files of an earlier run into their folder and return it; None when there is nothing worth keeping.

    A generation kept before is replaced, but never by a run without a single result. A move that was interrupted is
    finished by the next one.

    Raises:
        StoreError: they cannot be moved; those not moved are where they were.
    """
    folder = previous_folder_for(output)
    moving = folder.with_name(f"{folder.name}.partial")
    if not moving.exists() and not any(_has_content(path) for path in (output, failures_path_for(output))):
        remove(output)
        return None
    check_ours(output)
    try:
        moving.mkdir(parents=True, exist_ok=True)
        for path in files_of(output):
            if path.exists():
                path.replace(moving / path.name)
        if folder.exists():
            shutil.rmtree(folder)
        moving.replace(folder)
    except OSError as error:
        raise _stuck("move aside", error) from error
    return folder


def remove(output: Path) -> None:
    """Remove the files of an earlier run."""
    check_ours(output)
    for path in files_of(output):
        try:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise _stuck("remove", error) from error


def check_ours(output: Path) -> None:
    """Make sure that nothing is moved or removed that is not a run's: only our folders hold only our files.

    Raises:
        StoreError: a folder is where a file of the run belongs, or holds something else.
    """
    folders = {index_folder_for(output): {"inputs", "scored", "failed"}}
    own = {path.name for path in files_of(output)}
    for folder in (
        previous_folder_for(output),
        previous_folder_for(output).with_name(f"{output.stem}_previous.partial"),
    ):
        folders[folder] = own
    for path in files_of(output):
        if path.is_dir() and path not in folders:
            raise StoreError("this is a folder, not a file of results", where=str(path), fix="choose another output")
    for folder, known in folders.items():
        strange = sorted(path.name for path in folder.iterdir() if path.name not in known) if folder.is_dir() else []
        if strange:
            raise StoreError(
                f"this folder holds something that is not of a run: {strange[0]}",
                where=str(folder),
                fix="move it away or choose another output",
            )


def _has_content(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _stuck(what: str, error: OSError) -> StoreError:
    return StoreError(f"cannot {what}: {error.strerror or error}", where=str(error.filename or ""))
