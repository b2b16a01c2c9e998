"""The only place that writes to the terminal: data to stdout, talk to stderr."""

import sys
from collections.abc import Sequence
from typing import Any

from nemo_gym.errors import GymError


def data(text: str) -> None:
    """What was asked for."""
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
    sys.stdout.flush()


def json(value: Any) -> None:
    """What was asked for, as one JSON document."""
    import orjson  # `--help` does without

    data(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def talk(text: str) -> None:
    """What is going on."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def passing(text: str) -> None:
    """How far it is, on a line that the next call replaces; nothing where nobody watches. Empty clears it."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def error(text: str) -> None:
    """What went wrong."""
    talk(f"Error: {text}")


def pointer(error: GymError) -> None:
    """Where more is written about an error; only for people, so only on a terminal."""
    if sys.stderr.isatty():
        talk(f"  more: gym explain {error.code}")


def table(rows: Sequence[Sequence[str]]) -> None:
    """Rows with their columns lined up."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    for row in rows:
        data("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
