"""Build virtual environments and install the programs of a configuration's servers, without starting the servers.

Afterwards `gym env start` and `gym eval run` need no package registry. If something cannot be installed, the exit
status is the installer's.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output
from nemo_gym.config.search_roots import component_search_roots

if TYPE_CHECKING:
    from pathlib import Path

    from nemo_gym.launch.programs import Programs
    from nemo_gym.launch.venv_build import InstallFailed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    import asyncio

    from nemo_gym.cli.terminal.log import ServerLogPrinter
    from nemo_gym.config.instances import is_placeholder
    from nemo_gym.config.omegaconf_adapter import as_dict
    from nemo_gym.global_config import GlobalConfigDictParser
    from nemo_gym.launch.hosted_instances import find_instances
    from nemo_gym.launch.programs import programs_of
    from nemo_gym.launch.venv import VenvSettings, instance_venvs, merge_equal_venvs
    from nemo_gym.launch.venv_build import is_usable, try_build_venvs

    config = options.resolve_config(args, needs_model=False).config
    GlobalConfigDictParser().raise_on_no_server_instances(config)
    blocks = {name: block for name, block in as_dict(config).items() if not is_placeholder(block)}
    servers = find_instances(blocks, component_search_roots())
    settings = VenvSettings.from_config(config)
    venvs = merge_equal_venvs(instance_venvs(servers, settings).values())
    programs = programs_of(blocks)
    if not venvs and not programs:
        output.write(f"none of the {len(servers)} servers needs a virtual environment or programs")
        return 0
    existing = {venv.target for venv in venvs if is_usable(venv, settings)}
    failures = asyncio.run(try_build_venvs(venvs, settings, ServerLogPrinter(verbose=True)))
    rows = [("SERVERS", "ENVIRONMENT", "")]
    for venv in venvs:
        target = venv.target
        state = "failed" if failures[target] else "existed already" if target in existing else "built"
        rows.append((", ".join(dict.fromkeys(venv.servers)), str(target), state))
    errors: list[InstallFailed] = [failure for failure in failures.values() if failure is not None]
    for name, each in programs.items():
        folder, state, failure = _install_programs(name, each, config.get("cache_dir"))
        rows.append((f"{name} ({each.packages})", str(folder), state))
        errors += [failure] if failure is not None else []
    output.write_table(rows)
    for error in errors:
        output.report_error(str(error))
    return errors[0].status if errors else 0


def _install_programs(name: str, programs: Programs, cache_dir: str | None) -> tuple[Path, str, InstallFailed | None]:
    """Install the programs of a server; return their folder, what was done, and the failure, if any."""
    import asyncio

    from nemo_gym.cli.terminal.log import ServerLogPrinter
    from nemo_gym.launch.programs import install_programs
    from nemo_gym.launch.venv_build import InstallFailed

    folder = programs.folder(cache_dir)
    try:
        is_new = asyncio.run(install_programs(programs, folder, name, ServerLogPrinter(verbose=True)))
    except InstallFailed as failure:
        return folder, "failed", failure
    return folder, "installed" if is_new else "existed already", None
