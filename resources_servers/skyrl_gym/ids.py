"""The ids of SkyRL-gym, for `python -m nemo_gym.adapters.id_writer`."""

import importlib
from collections.abc import Iterator
from typing import Any

REASONS = {
    "lcb": "it runs code of the model outside of a sandbox",
    "search": "it needs a retrieval service",
    "searchcode": "it needs a retrieval service, and runs code of the model outside of a sandbox",
    "text2sql": "it needs the databases of its dataset, and is not tested",
}


def list_ids() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every registered environment."""
    for name in importlib.import_module("skyrl_gym.envs.registration").registry:
        yield name, {"refused": REASONS[name]} if name in REASONS else {}
