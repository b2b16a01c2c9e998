"""The ids of Inspect: its tasks are in packages of users, so there is no list."""

from collections.abc import Iterator
from typing import Any


def list_ids() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield nothing: an id is `module:task`."""
    yield from ()
