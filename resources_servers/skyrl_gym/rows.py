"""The rows of a SkyRL-gym environment, from a JSONL file in the format of its datasets."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any


def make_rows(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the first `size` tasks of the file; the prompt becomes the input of the row."""
    data = request["settings"].get("data")
    if not data:
        raise ValueError("the tasks of SkyRL-gym come from a file: add data=FILE.jsonl to the name")
    with Path(data).open(encoding="utf-8") as lines:
        for number, line in enumerate(islice(lines, request["size"])):
            task = json.loads(line)
            if not isinstance(task.get("prompt"), list):
                raise ValueError(f"{data}:{number + 1}: has no prompt, which is a list of messages")
            yield {
                "responses_create_params": {"input": task["prompt"]},
                "environment": request["id"],
                "seed": request["seed"] + number,
                "arguments": request["arguments"],
                "prompt": task["prompt"],
                "extras": {key: value for key, value in task.items() if key != "prompt"},
            }
