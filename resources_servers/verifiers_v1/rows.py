"""The rows of a taskset of verifiers: its tasks, by position."""

from collections.abc import Iterator
from typing import Any

from resources_servers.verifiers_v1.episode import load_environment


def make_rows(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row for each of the first `size` tasks; an endless taskset has as many."""
    taskset = load_environment(request["id"], request["arguments"]).taskset
    for number, task in enumerate(taskset.take(request["size"])):
        yield {
            "responses_create_params": {"input": []},
            "environment": request["id"],
            "seed": request["seed"] + number,
            "arguments": request["arguments"],
            "index": task.data.idx,
            "key": task.key,
        }
