"""The ids of OpenEnv: its environments are servers and packages of users, so there is no list."""

from collections.abc import Iterator
from typing import Any


def list_ids() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield nothing: an id is the URL of a server, or the application `module:app` of a package."""
    yield from ()
