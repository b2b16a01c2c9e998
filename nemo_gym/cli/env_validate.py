"""Check a configuration without starting anything.

Exits 0 when it can be used, 1 with every problem found when not. A model is not required: `${policy_*}` resolves
against a stand-in unless a model is named.
"""

import argparse
from collections.abc import Sequence

from omegaconf import OmegaConf

from nemo_gym import component_search_roots
from nemo_gym.cli import output
from nemo_gym.cli.inputs import add_config_arguments, config_overrides
from nemo_gym.config.resolve import Request, resolve
from nemo_gym.global_config import GlobalConfigDictParserConfig, surroundings
from nemo_gym.launch.check import check_server_blocks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    stand_in = OmegaConf.to_container(GlobalConfigDictParserConfig.NO_MODEL_GLOBAL_CONFIG_DICT)
    assert isinstance(stand_in, dict)
    resolved = resolve(Request(overrides=config_overrides(args, rest), initial=stand_in, offline=True), surroundings())
    warnings = [*resolved.warnings, *check_server_blocks(resolved, component_search_roots())]
    for warning in warnings:
        output.talk(f"Warning: {warning}")
    names = [instance.name for instance in resolved.instances.valid]
    if args.json:
        output.json({"valid": True, "instances": names, "warnings": warnings})
    else:
        output.data(f"✓ Config is valid. {len(names)} server instances: {', '.join(names)}")
    return 0
