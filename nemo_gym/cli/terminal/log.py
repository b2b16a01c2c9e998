"""Log output of commands: show our log records on stderr."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from nemo_gym.cli.terminal import output

MAX_WARNINGS = 20
_RECORD = re.compile(r"(WARNING|ERROR|CRITICAL) (?:nemo_gym[\w.]*: )?(.*)")
"""A line of a server's log: level, logger and message."""
MIN_CAUSE_LENGTH = 8
"""Shorter texts are part of too many warnings to identify one."""
LIMIT_NOTICE = "further warnings are not shown; --verbose shows all"


_shown: list[str] = []
"""Texts of warnings that were printed since `logging_to_stderr` began."""


def was_shown(text: str) -> bool:
    """Return whether a warning that contains `text` has been printed during this command."""
    return len(text) >= MIN_CAUSE_LENGTH and any(text in shown for shown in _shown)


class _LimitedNotices:
    """Prints warnings to stderr, each text once: at most MAX_WARNINGS, then once that further ones are not shown."""

    def __init__(self) -> None:
        self._printed: set[str] = set()

    def __call__(self, text: str) -> None:
        if text in self._printed or len(self._printed) > MAX_WARNINGS:
            return
        self._printed.add(text)
        if len(self._printed) <= MAX_WARNINGS:
            _shown.append(text)
        output.notify(text if len(self._printed) <= MAX_WARNINGS else LIMIT_NOTICE)


class _StderrHandler(logging.Handler):
    """Prints log records to stderr: warnings without tracebacks, or everything if `verbose`."""

    def __init__(self, *, verbose: bool) -> None:
        super().__init__(logging.DEBUG if verbose else logging.WARNING)
        self._verbose = verbose
        self._print_warning = _LimitedNotices()

    def emit(self, record: logging.LogRecord) -> None:
        if self._verbose:
            output.notify(self.format(record))  # includes the traceback
        else:
            self._print_warning(f"{record.levelname.capitalize()}: {record.getMessage()}")


@contextmanager
def logging_to_stderr(*, verbose: bool) -> Iterator[None]:
    """Print warnings of `nemo_gym` without tracebacks, at most MAX_WARNINGS; with `verbose` print every record."""
    _shown.clear()
    logger = logging.getLogger("nemo_gym")
    previous_settings = logger.level, logger.propagate
    handler = _StderrHandler(verbose=verbose)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    logger.propagate = False
    if verbose:
        logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = previous_settings


class ServerLogPrinter:
    """Prints the output lines of servers: all if `verbose`, otherwise warnings and errors, at most MAX_WARNINGS."""

    def __init__(self, *, verbose: bool) -> None:
        self._verbose = verbose
        self._print_warning = _LimitedNotices()

    def __call__(self, server: str, line: str) -> None:
        if self._verbose:
            output.notify(f"({server}) {line}")
        elif record := _RECORD.match(line):
            # A record of a cell names its server; the number of the cell says nothing to a user.
            prefix = "" if server.startswith("cell ") else f"({server}) "
            self._print_warning(f"{prefix}{record[1].capitalize()}: {record[2]}")
