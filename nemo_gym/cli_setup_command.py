"""Where `nemo_gym.cli.setup_command` used to be; its names are still found here, with a warning."""

import importlib
import warnings
from typing import Any

_HOME = "nemo_gym.cli.setup_command"


def __getattr__(name: str) -> Any:
    if name not in ("run_command", "setup_env_command"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"import {name} from {_HOME}", DeprecationWarning, stacklevel=2)
    return getattr(importlib.import_module(_HOME), name)
