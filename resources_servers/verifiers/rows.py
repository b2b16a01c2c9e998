"""The rows of an environment of verifiers: those of its dataset."""

from collections.abc import Iterator
from typing import Any

from resources_servers.verifiers.episode import load_environment


def make_rows(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the first `size` rows of the dataset for evaluation, or of that for training with `split=train`."""
    row = {"environment": request["id"], "seed": request["seed"], "arguments": request["arguments"]}
    env = load_environment(row)
    dataset = env.get_dataset() if request["split"] == "train" else env.get_eval_dataset()
    for number, example in enumerate(dataset.select(range(min(request["size"], len(dataset))))):
        fields = {key: value for key, value in example.items() if value is not None}
        yield {
            "responses_create_params": {"input": []},
            **row,
            "seed": request["seed"] + number,
            "example": fields,
        }
