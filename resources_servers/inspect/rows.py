"""The rows of an Inspect task: the samples of its dataset."""

from collections.abc import Iterator
from typing import Any

from resources_servers.inspect.episode import load_task, refuse_local_sandbox


def make_rows(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row for each of the first `size` samples."""
    task = load_task(request["id"], request["arguments"])
    for number, sample in enumerate(task.dataset[: request["size"]]):
        refuse_local_sandbox(request["id"], task.sandbox, sample.sandbox)
        fields = sample.model_dump(mode="json", exclude_none=True)
        yield {
            "responses_create_params": {"input": []},
            "environment": request["id"],
            "seed": request["seed"] + number,
            "arguments": request["arguments"],
            **request["settings"],
            "sample": {"id": number + 1, **fields},
        }
