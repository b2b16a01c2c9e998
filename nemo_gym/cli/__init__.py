"""The `gym` command.

Names that programs import from here have moved; they are still found, with a warning that says where they are now.
"""

import importlib
import warnings
from typing import Any

_HOMES = {
    "nemo_gym.cli.env": (
        "PipListConfig", "RunConfig", "RunHelper", "TestAllConfig", "TestConfig",
        "dump_config", "init_resources_server", "pip_list", "run", "status", "test", "test_all",
    ),
    "nemo_gym.cli.eval": ("e2e_rollout_collection",),
    "nemo_gym.cli.dev": ("dev_test",),
    "nemo_gym.cli.general": ("VersionConfig", "version"),
    "nemo_gym.global_config": ("GlobalConfigDictParserConfig",),
}  # fmt: skip
_MOVED = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _MOVED[name]
    warnings.warn(f"import {name} from {home}", DeprecationWarning, stacklevel=2)
    return getattr(importlib.import_module(home), name)
