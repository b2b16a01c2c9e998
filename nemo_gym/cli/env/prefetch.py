"""Build the virtual environments of a configuration's servers in advance, without starting the servers.

Afterwards `gym env start` and `gym eval run` need no package registry. If a virtual environment cannot be built, the
exit status is that of the installer.
"""

import argparse

from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output
from nemo_gym.config.search_roots import component_search_roots


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    import asyncio

    from nemo_gym.cli.terminal.log import ServerLogPrinter
    from nemo_gym.config.instances import is_placeholder
    from nemo_gym.config.omegaconf_adapter import as_dict
    from nemo_gym.global_config import GlobalConfigDictParser
    from nemo_gym.launch.hosted_instances import find_instances
    from nemo_gym.launch.venv import VenvSettings, instance_venvs, merge_equal_venvs
    from nemo_gym.launch.venv_build import is_usable, try_build_venvs

    config = options.resolve_config(args, needs_model=False).config
    GlobalConfigDictParser().raise_on_no_server_instances(config)
    blocks = {name: block for name, block in as_dict(config).items() if not is_placeholder(block)}
    servers = find_instances(blocks, component_search_roots())
    settings = VenvSettings.from_config(config)
    venvs = merge_equal_venvs(instance_venvs(servers, settings).values())
    if not venvs:
        output.write(f"none of the {len(servers)} servers needs a virtual environment")
        return 0
    existing = {venv.target for venv in venvs if is_usable(venv, settings)}
    failures = asyncio.run(try_build_venvs(venvs, settings, ServerLogPrinter(verbose=True)))
    rows = [("SERVERS", "ENVIRONMENT", "")]
    for venv in venvs:
        target = venv.target
        state = "failed" if failures[target] else "existed already" if target in existing else "built"
        rows.append((", ".join(dict.fromkeys(venv.servers)), str(target), state))
    output.write_table(rows)
    errors = [failure for failure in failures.values() if failure is not None]
    for error in errors:
        output.report_error(str(error))
    return errors[0].status if errors else 0
