"""The ids of tasksets of verifiers: they are packages of users, so there is no list."""

from collections.abc import Iterator
from typing import Any


def list_ids() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield nothing: an id is the name of an installed package with a `Taskset`."""
    yield from ()
