"""The ids of GEM, for `python -m nemo_gym.adapters.id_writer`."""

import importlib
from collections.abc import Iterator
from typing import Any

DOWNLOADED = ("code", "eval", "logic", "math", "qa")
"""Groups of ids whose data are on a hub."""


def list_ids() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every id, with the reason why it does not start without a network if there is one."""
    package = importlib.import_module("gem")
    for name in importlib.import_module("gem.envs.registration").ENV_REGISTRY:
        if name.partition(":")[0] in DOWNLOADED:
            yield name, {"refused": "its data are downloaded at run time"}
            continue
        try:
            package.make(name).reset(seed=0)
        except Exception as error:  # the boundary: code of the package
            reason = next((line for line in str(error).splitlines() if line.strip(" *")), type(error).__name__)
            is_corpus = isinstance(error, LookupError) and "NLTK" in str(error)
            yield name, {"refused": "needs a corpus of NLTK, which is downloaded" if is_corpus else reason[:160]}
        else:
            yield name, {}
