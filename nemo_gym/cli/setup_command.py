"""Bash commands that build the virtual environment of a server folder and run a program in it.

For code written for earlier versions; `gym env start` does not use them.
"""

import argparse
import asyncio
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from nemo_gym.cli.terminal import output
from nemo_gym.cli.terminal.log import ServerLogPrinter
from nemo_gym.errors import GymError
from nemo_gym.launch.venv import VenvSettings, folder_venv
from nemo_gym.launch.venv_build import build_venvs, is_usable

SETTINGS = (
    "cache_dir", "uv_venv_dir", "uv_cache_dir", "python_version", "head_server_deps", "ray_head_node_address",
    "skip_venv_if_present", "pip_install_verbose",
)  # fmt: skip
"""Configuration keys that affect virtual environments."""


def setup_env_command(dir_path: Path, global_config_dict: Mapping[str, Any], prefix: str) -> str:
    """Return a bash command that builds the virtual environment of a folder if it is missing, and activates it."""
    settings = {key: global_config_dict[key] for key in SETTINGS if global_config_dict.get(key) is not None}
    kind, venv_settings = dir_path.parent.name, VenvSettings.from_config(settings)
    target = folder_venv(prefix, kind, dir_path.name, dir_path, venv_settings).target
    command = [sys.executable, "-P", "-m", "nemo_gym.cli.setup_command", str(dir_path)]
    command += ["--name", prefix, "--settings", json.dumps(settings, default=list)]
    return f"{shlex.join(command)} && source {shlex.quote(str(target / 'bin' / 'activate'))}"


def run_command(
    command: str,
    working_dir_path: Path,
    server_name: str = "",
    project_root: Path | None = None,
    *,
    global_config_dict: Mapping[str, Any] | None = None,
    stdout_target: int | IO[Any] | None = None,
    stderr_target: int | IO[Any] | None = None,
) -> "subprocess.Popen[bytes]":
    """Start a bash command in a folder; its PYTHONPATH contains that folder and the project root."""
    del server_name  # an argument of earlier versions; the lines of the installer already have the name
    env = dict(os.environ)
    modules = [str(working_dir_path.absolute()), str(project_root.absolute()) if project_root else ""]
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [*modules, env.get("PYTHONPATH", "")]))
    cache = (global_config_dict or {}).get("uv_cache_dir")
    env |= {"UV_CACHE_DIR": str(cache)} if cache else {}
    return subprocess.Popen(
        ["/bin/bash", "-c", command], cwd=working_dir_path, env=env, stdout=stdout_target, stderr=stderr_target
    )


def main() -> int:
    """Build one virtual environment; the command of `setup_env_command` runs this."""
    parser = argparse.ArgumentParser(description="build the virtual environment of one server folder")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--name", default="")
    parser.add_argument("--settings", type=json.loads, default={})
    args = parser.parse_args()
    folder, settings = args.folder, VenvSettings.from_config(args.settings)
    venv = folder_venv(args.name, folder.parent.name, folder.name, folder, settings)
    if is_usable(venv, settings):
        return 0
    try:
        asyncio.run(build_venvs([venv], settings, ServerLogPrinter(verbose=True)))
    except GymError as error:
        output.report_error(str(error))
        return error.exit_status
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
