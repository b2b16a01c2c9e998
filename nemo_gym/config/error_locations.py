"""Find the locations of values for errors: `file:line:column`, or the override on the command line.

Locations are not recorded while a configuration is read. To report a problem, the files are parsed again with line and
column, from the source with the highest priority to the lowest.
"""

from collections.abc import Sequence
from dataclasses import replace

from nemo_gym.config.load import ConfigSource
from nemo_gym.config.overrides import Override
from nemo_gym.config.problems import ConfigProblem, KeyPath
from nemo_gym.config.trees import ABSENT, lookup
from nemo_gym.config.yaml_text import Marks, read_yaml

_MAX_ORIGINS = 20


class ErrorLocations:
    """Finds the location of a value of the final tree in its sources."""

    def __init__(self, sources: Sequence[ConfigSource], overrides: Sequence[Override]) -> None:
        self.sources = sources
        self.overrides = overrides
        self.moves: list[tuple[KeyPath, KeyPath]] = []
        """(new path, old path) of every block that a directive inherited or copied."""
        self._marks: dict[int, Marks] = {}

    def where(self, path: KeyPath) -> str | None:
        """Return the location of the value at `path`, or of the nearest enclosing block with a location."""
        for length in range(len(path), 0, -1):
            for candidate in self._origins(path[:length]):
                location = self._exact_location(candidate)
                if location:
                    return location
        return None

    def locate(self, problems: Sequence[ConfigProblem]) -> list[ConfigProblem]:
        """Return the problems; those with a path and no location get their location."""
        return [
            replace(problem, where=self.where(problem.path)) if problem.path and not problem.where else problem
            for problem in problems
        ]

    def is_in_file(self, path: KeyPath) -> bool:
        """Return whether a config file (not only env.yaml or the command line) has a value at `path`."""
        return any(path in self._marks_of(source) for source in self.sources if source.kind == "file")

    def _origins(self, path: KeyPath) -> list[KeyPath]:
        """Return the path, and the paths of the blocks from which it was inherited or copied."""
        origins = [path]
        for origin in origins:  # the list grows while it is read: an origin may be inherited, too
            if len(origins) > _MAX_ORIGINS:
                break
            for new, old in self.moves:
                if origin[: len(new)] == new and (*old, *origin[len(new) :]) not in origins:
                    origins.append((*old, *origin[len(new) :]))
        return origins

    def _exact_location(self, path: KeyPath) -> str | None:
        """Return the location of exactly this path: an override, else a source, else an override of a child."""
        keys = tuple(str(part) for part in path)
        setting_overrides = [override for override in reversed(self.overrides) if override.action != "delete"]
        for override in setting_overrides:
            start, rest = keys[: len(override.path)], keys[len(override.path) :]
            if start == override.path and lookup(override.value, rest, default=ABSENT) is not ABSENT:
                return override.where
        for source in reversed(self.sources):
            mark = self._marks_of(source).get(path)
            if mark:
                return f"{source.name}:{mark[0]}:{mark[1]}"
        return next((override.where for override in setting_overrides if override.path[: len(keys)] == keys), None)

    def _marks_of(self, source: ConfigSource) -> Marks:
        """Return the line and column of each key of a source, which is parsed again on first use."""
        if id(source) not in self._marks:
            marks: Marks = {}
            if source.text is not None:
                read_yaml(source.text, source.name, marks=marks)
            self._marks[id(source)] = marks
        return self._marks[id(source)]
