"""The former place of `nemo_gym.cli.setup_command`; its names are still available here, with a warning."""

import importlib
import warnings
from typing import Any

_MODULE = "nemo_gym.cli.setup_command"


def __getattr__(name: str) -> Any:
    if name not in ("run_command", "setup_env_command"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"import {name} from {_MODULE}", DeprecationWarning, stacklevel=2)
    return getattr(importlib.import_module(_MODULE), name)
