"""The `gym` command: one folder per command group, one module per command.

`main` is the entry point, `parser` builds the argument parser, `legacy` keeps commands and functions of earlier
versions, `terminal` prints, and `shared` is code that several commands use. Names that earlier versions defined in this
package can still be imported from it, with a warning that names their new module.
"""

import importlib
import warnings
from typing import Any

_MOVED_NAMES = {
    "nemo_gym.cli.env": (
        "PipListConfig", "RunConfig", "RunHelper", "TestAllConfig", "TestConfig", "VersionConfig",
        "dump_config", "init_resources_server", "pip_list", "run", "status", "test", "test_all",
    ),
    "nemo_gym.cli.eval": ("e2e_rollout_collection",),
    "nemo_gym.cli.dev": ("dev_test",),
    "nemo_gym.cli.legacy": ("version",),
    "nemo_gym.global_config": ("GlobalConfigDictParserConfig",),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _MOVED_NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULE_OF[name]
    warnings.warn(f"import {name} from {module}", DeprecationWarning, stacklevel=2)
    return getattr(importlib.import_module(module), name)
