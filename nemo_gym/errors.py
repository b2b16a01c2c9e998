"""The failures we can explain: their base class and the classes that several packages raise or catch.

GymError                              the problem, its location and the fix
├── ConfigError                       the configuration cannot be used as written
│   ├── ConfigPathNotFoundError       (FileNotFoundError)
│   ├── MalformedConfigPathsError     (ValueError, like all below)
│   ├── NoServerInstancesError
│   ├── ConfigMissingValuesError
│   ├── ConfigInterpolationError
│   ├── ServerRefNotFoundError
│   ├── InheritPathNotFoundError
│   └── AlmostServerError
├── ConversionError                   an API dialect cannot express something (NotImplementedError, ValueError)
│   └── UnsupportedRequest            a model server cannot express a request for its endpoint
├── FileProblem                       a file cannot be read or written (OSError)
├── ServerUnreachable                 no server answers at an address (ConnectionError)
│   ├── RequestCancelled              code in the server's process cancelled a request of another server
│   └── SessionLost                   the process that kept the state of a session has ended
├── InvalidReply                      the answer of a server cannot be used (JSONDecodeError)
│   └── IncompleteReply               the connection was closed in the middle of an answer
├── DeadlineExceeded                  the time allowed for a call ran out (TimeoutError)
├── CircuitOpen                       an endpoint failed repeatedly and is not called (ConnectionError)
└── RolloutFailed                     a rollout has no reward
    ├── ModelFailed
    │   └── ModelAnswerTooLarge
    ├── EnvFailed
    │   └── InvalidReward             the verifier returned no usable number
    └── AgentFailed

A package defines further subclasses next to the code that raises them; `gym explain` lists all of them. Anything that
is not a `GymError` is a bug and keeps its traceback. A class keeps the builtin parent that callers already catch,
survives pickling, and never holds a configuration value that could be a secret.
"""

import errno
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar


class GymError(Exception):
    """A failure we can explain: the problem, its location and the fix."""

    exit_status: ClassVar[int] = 1
    code: ClassVar[str] = "gym-error"
    """The name of the class as users type it: `gym explain config-path-not-found`."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        words = re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*", cls.__name__.removesuffix("Error"))
        cls.code = "-".join(words).lower()

    def __init__(self, problem: str, *, where: str | None = None, fix: str | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        location = f"{self.where}: " if self.where else ""
        advice = f"\n  try: {self.fix}" if self.fix else ""
        return f"{location}{self.problem}{advice}"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[GymError], args: tuple[object, ...], state: dict[str, object]) -> GymError:
    error = kind.__new__(kind)  # not `kind(*args)`: subclasses have other parameters
    error.args = args
    error.__dict__.update(state)
    return error


class ConfigError(GymError):
    """The configuration cannot be used as written."""


class ConfigPathNotFoundError(ConfigError, FileNotFoundError):
    """A file named in `config_paths` is in none of the search roots."""


class MalformedConfigPathsError(ConfigError, ValueError):
    """`config_paths` is not a list of paths."""


class NoServerInstancesError(ConfigError, ValueError):
    """The merged configuration defines no server instance to start."""


class ConfigMissingValuesError(ConfigError, ValueError):
    """Required values (`???`) are still unset after merging."""


class ConfigInterpolationError(ConfigError, ValueError):
    """A `${…}` refers to a key that is not set."""


class ServerRefNotFoundError(ConfigError, ValueError):
    """A reference names a server instance that the merged configuration does not define."""


class InheritPathNotFoundError(ConfigError, ValueError):
    """An `_inherit_from` or `_copy` directive names a path that does not exist."""


class AlmostServerError(ConfigError, ValueError):
    """A block has the shape of a server instance but fails validation."""


class ConversionError(GymError, NotImplementedError, ValueError):
    """An API dialect cannot express something; nothing is dropped silently."""


class UnsupportedRequest(ConversionError):
    """The request has something that the dialect of the endpoint cannot express; `where` is its JSON path."""


class FileProblem(GymError, OSError):
    """A file cannot be read or written."""

    exit_status = 3


DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_DISK_ERRORS = (*DISK_FULL, errno.EFBIG, errno.EIO)
"""Errors of writing, which do not name the file."""


@contextmanager
def raising_file_problems() -> Iterator[None]:
    """Raise `FileProblem` in place of the system's error about a file; errors of connections pass."""
    try:
        yield
    except OSError as error:
        if isinstance(error, GymError) or (error.filename is None and error.errno not in _DISK_ERRORS):
            raise
        where = str(error.filename) if error.filename else None
        fix = "free space on this disk, or choose a path on another one" if error.errno in DISK_FULL else None
        raise FileProblem(error.strerror or str(error), where=where, fix=fix) from error


class ServerUnreachable(GymError, ConnectionError):
    """No server answers at an address."""


class RequestCancelled(ServerUnreachable):
    """Code in the process of a server cancelled a request that it did not belong to."""


class SessionLost(ServerUnreachable):
    """The process that kept the state of a session has ended, so the rollout cannot go on."""


class InvalidReply(GymError, json.JSONDecodeError):
    """The answer of a server cannot be used: it is not JSON, breaks off, or lacks what the caller needs."""

    def __init__(self, problem: str, *, where: str | None = None, fix: str | None = None, path: str = "") -> None:
        json.JSONDecodeError.__init__(self, problem, "", 0)
        self.problem, self.where, self.fix = problem, where, fix
        self.path = path
        """The path of the call."""


class IncompleteReply(InvalidReply):
    """The connection was closed in the middle of an answer: the process of the server ended, or its handler failed."""


class DeadlineExceeded(GymError, TimeoutError):
    """The time allowed for a call ran out."""


class CircuitOpen(GymError, ConnectionError):
    """The circuit breaker of an endpoint is open after repeated failures."""


class RolloutFailed(GymError):
    """A rollout has no reward."""


class ModelFailed(RolloutFailed):
    """The model endpoint did not give a usable answer."""


class ModelAnswerTooLarge(ModelFailed):
    """The answer of the model endpoint is larger than `max_model_answer_bytes`."""


class EnvFailed(RolloutFailed):
    """The resources server failed while seeding, running a tool or verifying."""


class InvalidReward(EnvFailed):
    """The verifier returned a reward that is not a usable number."""


class AgentFailed(RolloutFailed):
    """The agent server itself failed."""
