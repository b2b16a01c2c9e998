"""What our own modules log, told on the terminal in a readable amount."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from nemo_gym.cli import output

MOST = 20


class _Teller(logging.Handler):
    def __init__(self, *, everything: bool) -> None:
        super().__init__(logging.DEBUG if everything else logging.WARNING)
        self._everything = everything
        self._told = 0

    def emit(self, record: logging.LogRecord) -> None:
        self._told += 1
        if self._everything:
            output.talk(self.format(record))  # with its traceback, if it has one
        elif self._told <= MOST:
            output.talk(f"{record.levelname.capitalize()}: {record.getMessage()}")
        elif self._told == MOST + 1:
            output.talk("further warnings are not shown; --verbose shows all")


@contextmanager
def heard(*, everything: bool) -> Iterator[None]:
    """Warnings are told while the block runs, up to a number; with `everything` all that is logged, and tracebacks."""
    logger = logging.getLogger("nemo_gym")
    before = logger.level, logger.propagate
    teller = _Teller(everything=everything)
    teller.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logger.addHandler(teller)
    logger.propagate = False
    if everything:
        logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.removeHandler(teller)
        logger.level, logger.propagate = before
