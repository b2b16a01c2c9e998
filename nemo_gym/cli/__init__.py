"""The `gym` command.

Names that programs import from here have moved; they are still found, with a warning that says where they are now.
"""

import importlib
import warnings
from typing import Any

_MOVED = {
    "RunHelper": "nemo_gym.cli.env",
    "RunConfig": "nemo_gym.cli.env",
    "GlobalConfigDictParserConfig": "nemo_gym.global_config",
}


def __getattr__(name: str) -> Any:
    if name not in _MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _MOVED[name]
    warnings.warn(f"import {name} from {home}", DeprecationWarning, stacklevel=2)
    return getattr(importlib.import_module(home), name)
