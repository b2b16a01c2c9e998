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
    server, settings = folder_tests_of(config["entrypoint"], component_search_roots()), VenvSettings.from_config(config)
    venv = server_venv(server, settings, tests=False)
    if venv is not None and not is_usable(venv, settings):
        raise ConfigError(
            f"its virtual environment is not built yet ({venv.target})",
            where=server.label,
            fix="gym env prefetch, with a configuration that uses the server",
        )
    list_format = "json" if args.json else config.get("format")
    if not list_format:
        location = venv.target if venv else f"{sys.prefix} (the server needs no virtual environment)"
        output.notify(f"{server.label}: {location}")
    words = ["pip", "list", "--python", str(venv.python if venv else sys.executable)]
    words += [f"--format={list_format}"] if list_format else []
    words += ["--outdated"] if args.outdated or config.get("outdated") else []
    command, env = [str(uv_executable()), *words], installer_process_env(settings, os.environ)
    process = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=False)
    output.write(process.stdout)
    return process.returncode
