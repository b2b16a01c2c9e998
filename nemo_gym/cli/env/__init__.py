"""`gym env`: run, inspect and check environments, one module per command; `run_helper` starts servers from a program.

Programs import `RunHelper` and the configuration classes from this package. They are loaded on first use, because
`--help` imports this package and they are slow to import. The functions run a command with the arguments of the
process, for scripts of earlier versions.
"""

import sys
from types import ModuleType
from typing import Any

from nemo_gym.cli.legacy import command_function

__all__ = [
    "GlobalConfigDictParserConfig", "PipListConfig", "RunConfig", "RunHelper", "ServersNotRunning", "TestAllConfig",
    "TestConfig", "VersionConfig", "dump_config", "init_resources_server", "pip_list", "run", "status", "test",
    "test_all", "validate",
]  # fmt: skip

run = command_function("env", "start")
test = command_function("env", "test")
test_all = command_function("env", "test")
init_resources_server = command_function("env", "init")
dump_config = command_function("env", "resolve")
validate = command_function("env", "validate")
status = command_function("env", "status")
pip_list = command_function("env", "packages")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from nemo_gym.cli.env import run_helper

    return getattr(run_helper, name)


class _EnvPackage(ModuleType):
    """Keeps the functions `test`, `status` and `validate`; importing the modules of these names would replace them."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _EnvPackage
