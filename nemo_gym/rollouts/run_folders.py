"""One folder per run: `<results>/<time>-<environment>-<model>/rollouts.jsonl`, and a link `latest` to the newest.

A run has labels (environment, model, name, tags), which `<stem>_labels.json` stores next to the output.
"""

import contextlib
import json
import re
import shutil
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from nemo_gym.catalog.atomic_files import whole_file
from nemo_gym.errors import ConfigError, GymError
from nemo_gym.journal import StoreError, unwritable_file
from nemo_gym.rollouts.lock import RunLock
from nemo_gym.rollouts.run_files import (
    RunFiles,
    files_of_run,
    find_runs,
    labels_path_for,
    lock_path_for,
    remove_run,
)

OUTPUT_NAME = "rollouts.jsonl"
LATEST = "latest"
LONGEST_LABEL = 40
MAX_FOLDERS_PER_SECOND = 1000
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._+-]+")


class RunNotFound(GymError, LookupError):
    """No stored run has this name."""

    exit_status = 2


class RunLabels(BaseModel):
    """What a run is called: by its configuration, and by its user."""

    model_config = ConfigDict(extra="ignore")

    environment: str = ""
    model: str = ""
    name: str = ""
    tags: list[str] = []
    command: str = ""
    """The command that started the run, without secrets."""
    prices: dict[str, Any] = {}
    """The price table of the run (`metrics.prices`)."""

    @classmethod
    def read(cls, output: Path) -> "RunLabels":
        """Read the labels of an output; empty labels if the file is missing or damaged."""
        try:
            return cls.model_validate_json(labels_path_for(output).read_bytes())
        except (OSError, ValidationError):
            return cls()

    def write(self, output: Path) -> None:
        """Write the labels of an output."""
        path = labels_path_for(output)
        try:
            with whole_file(path) as file:
                file.write(json.dumps(self.model_dump(), indent=2, ensure_ascii=False).encode() + b"\n")
        except OSError as error:
            raise unwritable_file(path, error) from error

    def names(self) -> dict[str, Any]:
        """Return environment, model, name and tags, as JSON data."""
        return self.model_dump(exclude={"command", "prices"})

    @property
    def folder_suffix(self) -> str:
        """The part of the folder's name after the time."""
        return "-".join(filter(None, map(file_name_part, (self.environment, self.model))))


def file_name_part(text: str) -> str:
    """Return a text as part of a file name: other characters than letters, digits and `._+-` become `_`."""
    return _NOT_IN_NAMES.sub("_", text).strip("._-")[:LONGEST_LABEL]


def create_run_folder(results: Path, labels: RunLabels, now: datetime) -> Path:
    """Create the folder of a new run and return the path of its output."""
    stem = "-".join(filter(None, (now.strftime("%Y%m%d-%H%M%S"), labels.folder_suffix)))
    for number in range(1, MAX_FOLDERS_PER_SECOND):
        folder = results / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if not results.is_dir():
                raise StoreError("this is a file, not a folder of results", where=str(results)) from None
            continue
        except OSError as error:
            raise unwritable_file(folder, error) from error
        return folder / OUTPUT_NAME
    raise StoreError("too many runs start at the same time", where=str(results))


def discard_if_unused(output: Path) -> None:
    """Remove the folder of a run that ended before its first rollout was planned, by us or by a driver."""
    if not any(path.exists() for path in files_of_run(output) if path != labels_path_for(output)):
        shutil.rmtree(output.parent, ignore_errors=True)


def link_latest(output: Path) -> None:
    """Let `latest` next to the run's folder point to it. A file system without links has no `latest`."""
    link = output.parent.parent / LATEST
    if link.exists() and not link.is_symlink():
        return  # a folder of the user
    partial = link.with_name(f".{LATEST}.{output.parent.name}")
    with contextlib.suppress(OSError):
        partial.unlink(missing_ok=True)
        partial.symlink_to(output.parent.name, target_is_directory=True)
        partial.replace(link)


def stored_runs(results: Path) -> list[RunFiles]:
    """Return the runs in a folder of results, newest first; empty if the folder holds none."""
    if not results.is_dir():
        return []
    try:
        runs = [run for run in find_runs([results]) if run.identity.is_file()]
    except GymError:
        return []
    return sorted(runs, key=lambda run: (started_at(run), str(run.output)), reverse=True)


def started_at(run: RunFiles) -> str:
    """Return when a run started, as ISO 8601; empty if its identity cannot be read."""
    return str(run_content(run).get("started_at", ""))


def run_content(run: RunFiles) -> dict[str, Any]:
    """Return the content of the identity file of a run; empty if it cannot be read."""
    try:
        content = json.loads(run.identity.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def latest_run(results: Path, labels: RunLabels) -> RunFiles | None:
    """Return the newest run with the same environment and model; None without one."""
    for run in stored_runs(results):
        stored = RunLabels.read(run.output)
        if (stored.environment, stored.model) == (labels.environment, labels.model):
            return run
    return None


def short_name(run: RunFiles) -> str:
    """Return the name of a run in lists: its folder; for a run with `--output`, its file without the ending."""
    return run.output.parent.name if run.output.name == OUTPUT_NAME else run.output.stem


def find_stored_run(results: Path, name: str) -> RunFiles:
    """Return the run that `name` identifies: `latest`, a path, the name of its folder, or the name given to it.

    Raises:
        RunNotFound: no run, or more than one, has this name.
    """
    for path in (results / name, Path(name)):
        if path.exists():
            runs = [run for run in find_runs([path]) if run.identity.is_file() or path.is_file()]
            if len(runs) == 1:
                return RunFiles(runs[0].output.resolve())
    runs = stored_runs(results)
    matches = [run for run in runs if name in (RunLabels.read(run.output).name, run.output.stem)]
    if len(matches) == 1:
        return matches[0]
    problem = f"{len(matches)} runs are called '{name}'" if matches else f"no run is called '{name}'"
    raise RunNotFound(problem, where=str(results), fix="gym runs list")


def check_name(results: Path, name: str, own: Path | None = None) -> None:
    """Raise ConfigError if another run has this name; a name identifies one run."""
    for run in stored_runs(results):
        if run.output != own and RunLabels.read(run.output).name == name:
            raise ConfigError(f"the run in {run.output.parent} has this name", where=name, fix="choose another name")


def change_tags(output: Path, *, name: str | None, added: Iterable[str], removed: Iterable[str]) -> RunLabels:
    """Change the name and the tags of a run and return its labels."""
    labels = RunLabels.read(output)
    tags = dict.fromkeys([*(tag for tag in labels.tags if tag not in set(removed)), *added])
    labels = labels.model_copy(update={"tags": list(tags), **({} if name is None else {"name": name})})
    labels.write(output)
    return labels


def delete_run(run: RunFiles) -> None:
    """Delete the files of a run, and its folder if nothing else is in it.

    Raises:
        OutputInUse: a collector writes this run.
        StoreError: a file cannot be removed.
    """
    output = run.output
    lock = RunLock(lock_path_for(output))
    lock.acquire()
    try:
        remove_run(output)
        shutil.rmtree(output.with_suffix("") / "preprocessed_datasets", ignore_errors=True)
    finally:
        lock.release()
    with contextlib.suppress(OSError):  # a folder that is not empty holds other runs
        lock_path_for(output).unlink(missing_ok=True)
        for folder in (output.with_suffix(""), output.parent):
            if folder.is_dir():
                folder.rmdir()
    results = output.parent.parent
    link = results / LATEST
    if link.is_symlink() and not link.exists():
        link.unlink()
        left = [run for run in stored_runs(results) if run.output.parent.parent == results]
        if left:
            link_latest(left[0].output)
