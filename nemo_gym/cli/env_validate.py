"""Check a configuration, or an environment's manifest against it, and name everything that is wrong.

NAME is an environment or benchmark with a manifest: what it says is compared with its config.yaml (--sync writes it),
its script must define prepare(), every row must be one. Without NAME the configuration that the flags name is checked.
Nothing is started. Exit status: 0 valid, 1 not, 2 when there is nothing of that name.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from nemo_gym import component_search_roots
from nemo_gym.cli import output
from nemo_gym.cli.inputs import add_config_arguments, config_overrides, named

STAND_IN = ("policy_model",)
"""The instances that are there without any configuration: a model, for those that leave theirs open."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="an environment or benchmark: check its manifest")
    parser.add_argument("--kind", choices=("environment", "benchmark"), help="which of two that share the name")
    parser.add_argument("--manifest", type=Path, metavar="FILE", help="the manifest itself, wherever it is")
    parser.add_argument("--sync", action="store_true", help="write what config.yaml says into the manifest")
    add_config_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    name, words = named(args.name, rest)
    overrides = config_overrides(args, words)
    if name or args.manifest:
        from nemo_gym.cli.env_manifest import check_named  # imports the server bases

        return check_named(name, args)
    from omegaconf import OmegaConf  # none of these has a place in `--help`

    from nemo_gym.cli.options import UsageError
    from nemo_gym.config.resolve import Request, resolve
    from nemo_gym.global_config import GlobalConfigDictParserConfig, surroundings
    from nemo_gym.launch.check import check_server_blocks

    if args.sync or args.kind:
        raise UsageError("--sync and --kind are about a NAME or --manifest", where="gym env validate")
    stand_in = OmegaConf.to_container(GlobalConfigDictParserConfig.NO_MODEL_GLOBAL_CONFIG_DICT)
    assert isinstance(stand_in, dict)
    resolved = resolve(Request(overrides=overrides, initial=stand_in, offline=True), surroundings())
    names = [instance.name for instance in resolved.instances.valid]
    if names == list(STAND_IN) and not resolved.config.get("config_paths"):
        fix = "gym env validate --environment NAME, --config FILE, or NAME alone for its manifest"
        raise UsageError("there is nothing to check: no configuration is named", where="gym env validate", fix=fix)
    warnings = [*resolved.warnings, *check_server_blocks(resolved, component_search_roots())]
    for warning in warnings:
        output.talk(f"Warning: {warning}")
    if args.json:
        output.json({"valid": True, "instances": names, "warnings": warnings})
    else:
        count = "1 server instance" if len(names) == 1 else f"{len(names)} server instances"
        output.data(f"✓ Config is valid. {count}: {', '.join(names)}")
    return 0
