"""List the packages of a server's virtual environment.

A server whose requirements this installation meets has no virtual environment; then the packages of this installation
are listed.
"""

import argparse
import os
import subprocess
import sys

from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output
from nemo_gym.config.search_roots import component_search_roots
from nemo_gym.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags = options.FlagGroup(parser)
    flags.server_folder()
    flags.switch("--outdated", "list only packages with a newer version")
    flags.json()


def run(args: argparse.Namespace) -> int:
    from nemo_gym.launch.folder_tests import folder_tests_of, server_venv
    from nemo_gym.launch.venv import VenvSettings
    from nemo_gym.launch.venv_build import installer_process_env, is_usable, uv_executable

    config = options.resolve_config(args).config
    if not config.get("entrypoint"):
        raise ConfigError("is missing", where="--resources-server", fix=f"{args.prog} --resources-server NAME")
    suite, settings = folder_tests_of(config["entrypoint"], component_search_roots()), VenvSettings.from_config(config)
    environment = server_venv(suite, settings, tests=False)
    if environment is not None and not is_usable(environment, settings):
        raise ConfigError(
            f"its virtual environment is not built yet ({environment.target})",
            where=suite.label,
            fix="gym env prefetch, with a configuration that uses the server",
        )
    form = "json" if args.json else config.get("format")
    if not form:
        location = environment.target if environment else f"{sys.prefix} (the server needs no virtual environment)"
        output.notify(f"{suite.label}: {location}")
    words = ["pip", "list", "--python", str(environment.python if environment else sys.executable)]
    words += [f"--format={form}"] if form else []
    words += ["--outdated"] if args.outdated or config.get("outdated") else []
    process = subprocess.run(
        [str(uv_executable()), *words],
        env=installer_process_env(settings, os.environ),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    output.write(process.stdout)
    return process.returncode
