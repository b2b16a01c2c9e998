"""What `gym env packages` does."""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence

from nemo_gym.catalog.roots import component_search_roots
from nemo_gym.cli import output
from nemo_gym.cli.env_target import target_config
from nemo_gym.errors import ConfigError
from nemo_gym.launch.venv import VenvSettings
from nemo_gym.launch.venv_build import installer_environment, is_usable, uv_executable
from nemo_gym.launch.venv_tests import named_suite, server_environment


def packages(args: argparse.Namespace, rest: Sequence[str]) -> int:
    config = target_config(args, rest)
    if not config.get("entrypoint"):
        raise ConfigError("which server?", where="--resources-server", fix="gym env packages --resources-server NAME")
    suite, settings = named_suite(config["entrypoint"], component_search_roots()), VenvSettings.from_config(config)
    environment = server_environment(suite, settings, tests=False)
    if environment is not None and not is_usable(environment, settings):
        raise ConfigError(
            f"its environment has not been made yet ({environment.target})",
            where=suite.label,
            fix="gym env prefetch, with the configuration that uses it",
        )
    form = "json" if args.json else config.get("format")
    if not form:
        place = environment.target if environment else f"{sys.prefix} (it needs no environment of its own)"
        output.talk(f"{suite.label}: {place}")
    words = ["pip", "list", "--python", str(environment.python if environment else sys.executable)]
    words += [f"--format={form}"] if form else []
    words += ["--outdated"] if args.outdated or config.get("outdated") else []
    done = subprocess.run(
        [str(uv_executable()), *words],
        env=installer_environment(settings, os.environ),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    output.data(done.stdout)
    return done.returncode
