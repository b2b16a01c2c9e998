"""The files of a run: their paths next to the output, finding runs, and keeping an earlier run's files.

When a run starts over, the files of the earlier run move into the folder `<stem>_previous` and keep their names, so
that they can be read, profiled and resumed there. One earlier run is kept.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nemo_gym.errors import GymError
from nemo_gym.journal import StoreError
from nemo_gym.keys import VERDICTS_ENDING

FAILURES_ENDING = "_failures.jsonl"
MATERIALIZED_ENDING = "_materialized_inputs.jsonl"
AGGREGATE_METRICS_ENDING = "_aggregate_metrics.json"
ANNOTATIONS_ENDING = "_annotations.jsonl"
PREVIOUS_ENDING = "_previous"
COLLATED_FOLDER = "preprocessed_datasets"
"""Folder of prepared dataset files, which are not outputs."""
PROFILE_ENDING = "_reward_profiling.jsonl"
DERIVED_ENDINGS = (PROFILE_ENDING, "_agent_metrics.json")
"""Files that other commands make from the output. They are moved with it, because they describe this output only."""
INDEX_NAMES = ("inputs", "scored", "failed")


class NothingToView(GymError, FileNotFoundError):
    """No rollouts were found at a path."""


def _sibling(output: str | Path, ending: str) -> Path:
    path = Path(output)
    return path.with_name(path.stem + ending)


def failures_path_for(output: str | Path) -> Path:
    """Return `dir/x_failures.jsonl` for `dir/x.jsonl`: the rollouts without a reward."""
    return _sibling(output, FAILURES_ENDING)


materialized_path_for = partial(_sibling, ending=MATERIALIZED_ENDING)
"""Returns `dir/x_materialized_inputs.jsonl` for `dir/x.jsonl`: every row as it is sent, repeats included."""
aggregate_metrics_path_for = partial(_sibling, ending=AGGREGATE_METRICS_ENDING)
"""Returns `dir/x_aggregate_metrics.json`: one entry per agent."""
run_path_for = partial(_sibling, ending="_run.json")
"""Returns `dir/x_run.json`: the identity of the run, for resume matching."""
labels_path_for = partial(_sibling, ending="_labels.json")
"""Returns `dir/x_labels.json`: environment, model, name and tags of the run."""
live_path_for = partial(_sibling, ending="_live.json")
"""Returns `dir/x_live.json`: the state of the run while it runs, for the viewer."""
annotations_path_for = partial(_sibling, ending=ANNOTATIONS_ENDING)
"""Returns `dir/x_annotations.jsonl`: what people noted about rollouts."""
index_folder_for = partial(_sibling, ending="_index")
"""Returns `dir/x_index`: the indexes of the files of the run; rebuilt when missing."""
previous_folder_for = partial(_sibling, ending=PREVIOUS_ENDING)
"""Returns `dir/x_previous`: the files of the previous run."""
lock_path_for = partial(_sibling, ending=".lock")
"""Returns `dir/x.lock`, which exists while a collector writes this output."""


@dataclass(frozen=True)
class RunFiles:
    """One output and its side files, any of which may be missing."""

    output: Path

    @property
    def name(self) -> str:
        """The end of the path, to distinguish runs: `folder/stem`."""
        return "/".join([*self.output.parts[-2:-1], self.output.stem]).lstrip("/")

    @property
    def failures(self) -> Path:
        return failures_path_for(self.output)

    @property
    def metrics(self) -> Path:
        return aggregate_metrics_path_for(self.output)

    @property
    def identity(self) -> Path:
        return run_path_for(self.output)


def find_runs(paths: Sequence[str | Path]) -> list[RunFiles]:
    """Return the runs at `paths`: files of rollouts, or folders with such files in them or in their direct subfolders.

    Raises:
        NothingToView: a path does not exist, or a folder holds no rollouts.
    """
    outputs: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = [file for file in sorted([*path.glob("*.jsonl"), *path.glob("*/*.jsonl")]) if is_output(file)]
            if not inside:
                raise NothingToView("this folder contains no rollouts (*.jsonl)", where=str(path))
            outputs += inside
        elif path.is_file() or failures_path_for(path).is_file() or run_path_for(path).is_file():
            outputs.append(output_of(path))  # a run without scored rollouts has side files but no output
        else:
            raise NothingToView("file or folder not found", where=str(path), fix="gym runs list")
    unique: dict[Path, Path] = {}
    for output in outputs:  # a link such as `latest` shows a run a second time
        unique.setdefault(output.resolve(), output.absolute())
    return [RunFiles(output) for output in unique.values()]


def is_output(path: Path) -> bool:
    """Return False for a side file of an output (failures, inputs, profile, verdicts) and for a prepared dataset."""
    endings = (FAILURES_ENDING, MATERIALIZED_ENDING, PROFILE_ENDING, ANNOTATIONS_ENDING, VERDICTS_ENDING)
    return not path.name.endswith(endings) and path.parent.name != COLLATED_FOLDER


def output_of(path: Path) -> Path:
    """Return the output that a side file belongs to; other paths are returned unchanged."""
    for ending in (FAILURES_ENDING, MATERIALIZED_ENDING, AGGREGATE_METRICS_ENDING, ANNOTATIONS_ENDING):
        if path.name.endswith(ending):
            return path.with_name(path.name.removesuffix(ending) + ".jsonl")
    return path


def files_of_run(output: Path) -> list[Path]:
    """List the files of a run in the order they are moved: rows first, so that a half-moved run is not resumed."""
    derived = [_sibling(output, ending) for ending in DERIVED_ENDINGS]
    own = (materialized_path_for, run_path_for, index_folder_for, failures_path_for, aggregate_metrics_path_for)
    notes = (labels_path_for, live_path_for, annotations_path_for)
    return [*(path_for(output) for path_for in (*own, *notes)), *derived, output]


def move_aside(output: Path) -> Path | None:
    """Move the files of an earlier run into the folder `<stem>_previous`, replacing its content, and return the folder.

    If the run has no results, its files are removed instead, `<stem>_previous` stays as it is, and None is returned. An
    interrupted move is completed by the next call.

    Raises:
        StoreError: a file cannot be moved; it is unchanged.
    """
    folder = previous_folder_for(output)
    partial_folder = folder.with_name(f"{folder.name}.partial")
    if not partial_folder.exists() and not any(_has_content(path) for path in (output, failures_path_for(output))):
        remove_run(output)
        return None
    check_no_foreign_files(output)
    try:
        partial_folder.mkdir(parents=True, exist_ok=True)
        for path in files_of_run(output):
            if path.exists():
                path.replace(partial_folder / path.name)
        if folder.exists():
            shutil.rmtree(folder)
        partial_folder.replace(folder)
    except OSError as error:
        raise _file_error("move aside", error) from error
    return folder


def remove_run(output: Path) -> None:
    """Remove the files of an earlier run."""
    check_no_foreign_files(output)
    for path in files_of_run(output):
        try:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise _file_error("remove", error) from error


def check_no_foreign_files(output: Path) -> None:
    """Check that moving or removing the run's files and folders affects no other files.

    Raises:
        StoreError: a folder has the name of a file of the run, or a folder of the run contains another file.
    """
    files = files_of_run(output)
    previous = previous_folder_for(output)
    names = {path.name for path in files}
    folders = {index_folder_for(output): set(INDEX_NAMES), previous: names}
    folders[previous.with_name(f"{previous.name}.partial")] = names
    for path in files:
        if path.is_dir() and path not in folders:
            raise StoreError("this is a folder, not a file of results", where=str(path), fix="choose another output")
    for folder, expected in folders.items():
        others = sorted(path.name for path in folder.iterdir() if path.name not in expected) if folder.is_dir() else []
        if others:
            raise StoreError(
                f"this folder contains a file that is not part of a run: {others[0]}",
                where=str(folder),
                fix="move the file or choose another output",
            )


def _has_content(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _file_error(action: str, error: OSError) -> StoreError:
    return StoreError(f"cannot {action}: {error.strerror or error}", where=str(error.filename or ""))
