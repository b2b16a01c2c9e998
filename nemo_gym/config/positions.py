"""Where a value came from: `file:line:column`, or the override on the command line.

Nothing is recorded while a configuration is read; only when there is something to report are the files parsed again
with positions, from the source that wins down to the one that loses.
"""

from collections.abc import Sequence
from dataclasses import replace

from nemo_gym.config.load import Source
from nemo_gym.config.merge import lookup
from nemo_gym.config.overrides import Override
from nemo_gym.config.problems import Path, Problem
from nemo_gym.config.yaml_text import Marks, read_yaml

_MAX_MOVES = 20


class Positions:
    """Answers where a path of the final tree was written."""

    def __init__(
        self, sources: Sequence[Source], overrides: Sequence[Override], moves: Sequence[tuple[Path, Path]] = ()
    ) -> None:
        self.sources = sources
        self.overrides = overrides
        self.moves = moves
        self._marks: dict[int, Marks] = {}

    def where(self, path: Path) -> str | None:
        """The place of the value at `path`, or of the nearest block around it that is written somewhere."""
        for length in range(len(path), 0, -1):
            for candidate in self._origins(path[:length]):
                found = self._written(candidate)
                if found:
                    return found
        return None

    def located(self, problems: Sequence[Problem]) -> list[Problem]:
        """The problems, each with its place."""
        return [
            replace(problem, where=self.where(problem.path)) if problem.path and not problem.where else problem
            for problem in problems
        ]

    def in_a_file(self, path: Path) -> bool:
        """Whether a config file (not only env.yaml or the command line) writes something at `path`."""
        return any(path in self._marks_of(source) for source in self.sources if source.kind == "file")

    def _origins(self, path: Path) -> list[Path]:
        """The path itself, then the places from which its block was inherited."""
        found = [path]
        for origin in found:
            if len(found) > _MAX_MOVES:
                break
            for new, old in self.moves:
                if origin[: len(new)] == new and (*old, *origin[len(new) :]) not in found:
                    found.append((*old, *origin[len(new) :]))
        return found

    def _written(self, path: Path) -> str | None:
        keys = tuple(str(part) for part in path)
        setters = [override for override in reversed(self.overrides) if override.action != "delete"]
        for override in setters:
            rest = keys[len(override.path) :]
            if keys[: len(override.path)] == override.path and lookup(override.value, rest, default=self) is not self:
                return override.where
        for source in reversed(self.sources):
            mark = self._marks_of(source).get(path)
            if mark:
                return f"{source.name}:{mark[0]}:{mark[1]}"
        return next((override.where for override in setters if override.path[: len(keys)] == keys), None)

    def _marks_of(self, source: Source) -> Marks:
        if id(source) not in self._marks:
            marks: Marks = {}
            if source.text is not None:
                read_yaml(source.text, source.name, marks=marks)
            self._marks[id(source)] = marks
        return self._marks[id(source)]
