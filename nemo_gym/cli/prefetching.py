"""What `gym env prefetch` does."""

import argparse
import asyncio
from collections.abc import Sequence
from typing import Any

from omegaconf import OmegaConf

from nemo_gym.catalog.roots import component_search_roots
from nemo_gym.cli import output
from nemo_gym.cli.inputs import config_overrides
from nemo_gym.config.resolve import Request, resolve
from nemo_gym.global_config import GlobalConfigDictParser, GlobalConfigDictParserConfig, surroundings
from nemo_gym.launch.instances import instances
from nemo_gym.launch.venv import VenvSettings, distinct, environments_for
from nemo_gym.launch.venv_build import build_each, is_usable


def prefetch(args: argparse.Namespace, rest: Sequence[str]) -> int:
    stand_in = OmegaConf.to_container(GlobalConfigDictParserConfig.NO_MODEL_GLOBAL_CONFIG_DICT)
    assert isinstance(stand_in, dict)
    resolved = resolve(Request(overrides=config_overrides(args, rest), initial=stand_in, offline=True), surroundings())
    GlobalConfigDictParser().raise_on_no_server_instances(resolved.config)
    plain = OmegaConf.to_container(resolved.config, resolve=True)
    assert isinstance(plain, dict)
    real = {str(key): value for key, value in plain.items() if not _is_stand_in(value, stand_in.get(key))}
    found = instances(real, component_search_roots())
    settings = VenvSettings.from_config(resolved.config)
    wanted = distinct(environments_for(found, settings).values())
    if not wanted:
        output.data(f"none of the {len(found)} servers needs an environment of its own")
        return 0
    present = {one.target for one in wanted if is_usable(one, settings)}
    outcomes = asyncio.run(build_each(wanted, settings, lambda name, line: output.talk(f"({name}) {line}")))
    rows = [("SERVERS", "ENVIRONMENT", "")]
    for one in wanted:
        state = "failed" if outcomes[one.target] else "was there" if one.target in present else "made"
        rows.append((", ".join(dict.fromkeys(one.servers)), str(one.target), state))
    output.table(rows)
    failures = [failure for failure in outcomes.values() if failure is not None]
    for failure in failures:
        output.error(str(failure))
    return failures[0].status if failures else 0


def _is_stand_in(block: Any, stand_in: Any) -> bool:
    """Whether a server block is the model that takes the place of one nobody named."""
    if not isinstance(block, dict) or not isinstance(stand_in, dict):
        return False
    return all(isinstance(block.get(kind), dict) and block[kind].keys() == stand_in[kind].keys() for kind in stand_in)
