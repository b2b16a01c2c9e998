"""The rows of a name such as `reasoning_gym:sudoku?size=20&seed=3`, made by the package."""

import importlib
from collections.abc import Iterator
from typing import Any

from resources_servers.reasoning_gym.generate import row


def make_rows(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the first `size` entries of a dataset; the arguments of the name are those of its configuration."""
    package = importlib.import_module("reasoning_gym")
    dataset = package.create_dataset(
        request["id"], seed=request["seed"] % 2**32, size=request["size"], **request["arguments"]
    )
    for number in range(request["size"]):
        yield row(dataset[number])
