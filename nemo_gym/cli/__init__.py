"""The `gym` command: one folder per command group, one module per command.

`main` is the entry point, `parser` builds the argument parser, `legacy` keeps commands and functions of earlier
versions, `terminal` prints, and `shared` is code that several commands use. Names that earlier versions defined in this
package can still be imported from it, with a warning that names their new module.
"""

from nemo_gym.cli.legacy import moved_names

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

__getattr__ = moved_names(__name__, _MOVED_NAMES)
