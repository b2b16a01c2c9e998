"""The rows of an Aviary environment: seeds, or the tasks of a dataset."""

import importlib
from collections.abc import Iterator
from typing import Any

from resources_servers.aviary.episode import find_class, is_dataset


def make_rows(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row for each seed or, of a `TaskDataset`, for each of the first `size` tasks."""
    name, size, arguments = request["id"], request["size"], request["arguments"]
    found_class = find_class(name)
    row = {"responses_create_params": {"input": []}, "environment": name, "arguments": arguments}
    if not is_dataset(found_class):
        if not issubclass(found_class, importlib.import_module("aviary.env").Environment):
            raise TypeError(f"{name} is neither an Environment nor a TaskDataset")
        yield from ({**row, "seed": request["seed"] + number} for number in range(size))
        return
    try:
        available = len(found_class(**arguments))
    except TypeError:  # the package says so of an endless dataset
        raise TypeError(f"{name} has no length, so that its tasks have no numbers") from None
    for number in range(min(size, available)):
        yield {**row, "seed": request["seed"] + number, "index": number}
