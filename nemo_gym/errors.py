"""Every failure we can explain, in one tree.

GymError                              what went wrong, where, and what to do next
├── ConfigError                       the configuration cannot be used as written
│   ├── ConfigPathNotFoundError       (FileNotFoundError)
│   ├── MalformedConfigPathsError     (ValueError, like all below)
│   ├── NoServerInstancesError
│   ├── ConfigMissingValuesError
│   ├── ConfigInterpolationError
│   ├── ServerRefNotFoundError
│   ├── InheritPathNotFoundError
│   └── AlmostServerError
├── ConversionError                   a dialect cannot express this (NotImplementedError, ValueError)
├── ServerUnreachable                 nobody answered at that address (ConnectionError)
├── DeadlineExceeded                  the time allowed for a call ran out (TimeoutError)
├── CircuitOpen                       an endpoint failed too often and is resting (ConnectionError)
└── RolloutFailed                     one rollout has no reward
    ├── ModelFailed
    ├── EnvFailed
    └── AgentFailed

Anything that is not a `GymError` is a bug and keeps its traceback. A class keeps the builtin parent that
callers already catch, survives pickling, and never holds a configuration value that could be a secret.
"""

import re
from typing import ClassVar


class GymError(Exception):
    """A failure we can explain: what went wrong, where, and what to do next."""

    exit_status: ClassVar[int] = 1
    code: ClassVar[str] = "gym-error"
    """The class's name as people type it: `gym explain config-path-not-found`."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        cls.code = re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__.removesuffix("Error")).lower()

    def __init__(self, problem: str, *, where: str | None = None, fix: str | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        advice = f"\n  try: {self.fix}" if self.fix else ""
        return f"{place}{self.problem}{advice}"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.problem, self.where, self.fix, self.__dict__)


def _rebuild(
    kind: type[GymError], problem: str, where: str | None, fix: str | None, state: dict[str, object]
) -> GymError:
    error = kind.__new__(kind)
    GymError.__init__(error, problem, where=where, fix=fix)
    error.__dict__.update(state)
    return error


class ConfigError(GymError):
    """The configuration cannot be used as written."""


class ConfigPathNotFoundError(ConfigError, FileNotFoundError):
    """A file named in `config_paths` is in none of the search roots."""


class MalformedConfigPathsError(ConfigError, ValueError):
    """`config_paths` is not a list of paths."""


class NoServerInstancesError(ConfigError, ValueError):
    """Servers were asked for, but the merged configuration defines none."""


class ConfigMissingValuesError(ConfigError, ValueError):
    """Required values (`???`) are still unset after merging."""


class ConfigInterpolationError(ConfigError, ValueError):
    """A `${…}` refers to something that is not there."""


class ServerRefNotFoundError(ConfigError, ValueError):
    """A reference names a server instance that the merged configuration does not define."""


class InheritPathNotFoundError(ConfigError, ValueError):
    """An `_inherit_from` or `_copy` directive names a path that does not exist."""


class AlmostServerError(ConfigError, ValueError):
    """A block has the shape of a server instance but fails validation."""


class ConversionError(GymError, NotImplementedError, ValueError):
    """One API dialect cannot express what the other said; nothing is dropped silently."""


class ServerUnreachable(GymError, ConnectionError):
    """Nobody answered at that address."""


class DeadlineExceeded(GymError, TimeoutError):
    """The time allowed for a call ran out."""


class CircuitOpen(GymError, ConnectionError):
    """An endpoint failed too often in a row and is left alone for a while."""


class RolloutFailed(GymError):
    """One rollout has no reward, and this is why."""


class ModelFailed(RolloutFailed):
    """The model endpoint did not give a usable answer."""


class EnvFailed(RolloutFailed):
    """The resources server failed while seeding, running a tool or verifying."""


class AgentFailed(RolloutFailed):
    """The agent server itself failed."""
