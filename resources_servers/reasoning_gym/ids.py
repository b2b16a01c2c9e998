"""The ids of reasoning-gym, for `python -m nemo_gym.adapters.id_writer`."""

from collections.abc import Iterator
from typing import Any

from resources_servers.reasoning_gym.names import DATASETS


def list_ids() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every dataset; `composite` needs a list of others, which a name cannot hold."""
    for name in sorted(DATASETS):
        yield name, {"refused": "it is made of other datasets; name those"} if name == "composite" else {}
