"""The ids of Aviary, for `python -m nemo_gym.adapters.id_writer`."""

import importlib
from collections.abc import Iterator
from typing import Any

REASONS = {
    "gsm8k": "its dataset is downloaded at run time",
    "hotpotqa": "its dataset is downloaded at run time, and its tools search Wikipedia",
}


def list_ids() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the registered environments and datasets; others are named as `module:Name`."""
    env = importlib.import_module("aviary.env")
    for name in {**env.TASK_DATASET_REGISTRY, **env.ENV_REGISTRY}:
        yield name, {"refused": REASONS[name]} if name in REASONS else {}
