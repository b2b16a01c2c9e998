"""The files of a run that somebody wants to look at."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_gym.errors import GymError
from nemo_gym.rollouts.paths import (
    AGGREGATE_METRICS_ENDING,
    FAILURES_ENDING,
    MATERIALIZED_ENDING,
    aggregate_metrics_path_for,
    failures_path_for,
    materialized_path_for,
    run_path_for,
)

JSON_LINES = ".jsonl"


class NothingToView(GymError, FileNotFoundError):
    """A path leads to no rollouts."""


@dataclass(frozen=True)
class RunFiles:
    """One output and what lies beside it; any of the others may be missing."""

    output: Path

    @property
    def name(self) -> str:
        """Enough of the path to tell runs apart: `folder/stem`."""
        return "/".join([*self.output.parts[-2:-1], self.output.stem]).lstrip("/")

    @property
    def failures(self) -> Path:
        return failures_path_for(self.output)

    @property
    def metrics(self) -> Path:
        return aggregate_metrics_path_for(self.output)

    @property
    def inputs(self) -> Path:
        return materialized_path_for(self.output)

    @property
    def identity(self) -> Path:
        return run_path_for(self.output)


def find_runs(paths: Sequence[str | Path]) -> list[RunFiles]:
    """The runs that `paths` name: files of rollouts, or folders that hold some (also one level down).

    Raises:
        NothingToView: a path does not exist, or a folder holds no rollouts.
    """
    found: list[RunFiles] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = [file for file in sorted([*path.glob("*.jsonl"), *path.glob("*/*.jsonl")]) if _is_output(file)]
            if not inside:
                raise NothingToView("this folder holds no rollouts (*.jsonl)", where=str(path))
            found += map(RunFiles, inside)
        elif path.is_file() or failures_path_for(path).is_file() or run_path_for(path).is_file():
            found.append(RunFiles(_output_of(path)))  # a run that has scored nothing yet has no output
        else:
            raise NothingToView("there is no such file or folder", where=str(path), fix="gym eval run --output FILE")
    return list(dict.fromkeys(RunFiles(run.output.absolute()) for run in found))


def _is_output(path: Path) -> bool:
    return not path.name.endswith((FAILURES_ENDING, MATERIALIZED_ENDING))


def _output_of(path: Path) -> Path:
    """The output that a file beside it belongs to, where somebody named the wrong one of the two."""
    for ending in (FAILURES_ENDING, MATERIALIZED_ENDING, AGGREGATE_METRICS_ENDING):
        if path.name.endswith(ending):
            return path.with_name(path.name.removesuffix(ending) + JSON_LINES)
    return path
