"""Shell commands that prepare a server folder's environment and run something in it, for programs that start servers.

`gym env start` needs none of this; it is here for code that was written against these two functions.
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

from nemo_gym.cli import output
from nemo_gym.errors import GymError
from nemo_gym.launch.venv import VenvSettings, environment_for
from nemo_gym.launch.venv_build import build_all, is_usable

SETTINGS = (
    "cache_dir",
    "uv_venv_dir",
    "uv_cache_dir",
    "python_version",
    "head_server_deps",
    "ray_head_node_address",
    "skip_venv_if_present",
    "pip_install_verbose",
)
"""The keys of the configuration that decide about environments."""


def setup_env_command(dir_path: Path, global_config_dict: Mapping[str, Any], prefix: str) -> str:
    """A line of bash that makes the environment of a server folder, unless it is there, and activates it."""
    settings = {key: global_config_dict[key] for key in SETTINGS if global_config_dict.get(key) is not None}
    known = json.dumps(settings, default=list)
    target = environment_for(
        prefix, dir_path.parent.name, dir_path.name, dir_path, VenvSettings.from_config(settings)
    ).target
    words = [sys.executable, "-m", "nemo_gym.cli.setup_command", str(dir_path), "--name", prefix, "--settings", known]
    return f"{shlex.join(words)} && source {shlex.quote(str(target / 'bin' / 'activate'))}"


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
    """Start a line of bash in a folder, its modules and those of the project importable; whoever asks ends it."""
    del server_name  # its lines carry the name already
    env = dict(os.environ)
    modules = [str(working_dir_path.absolute()), str(project_root.absolute()) if project_root else ""]
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [*modules, env.get("PYTHONPATH", "")]))
    cache = (global_config_dict or {}).get("uv_cache_dir")
    env |= {"UV_CACHE_DIR": str(cache)} if cache else {}
    return subprocess.Popen(
        ["/bin/bash", "-c", command], cwd=working_dir_path, env=env, stdout=stdout_target, stderr=stderr_target
    )


def main() -> int:
    """Make one environment; what the line of `setup_env_command` runs."""
    parser = argparse.ArgumentParser(description="make the environment of one server folder")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--name", default="")
    parser.add_argument("--settings", type=json.loads, default={})
    args = parser.parse_args()
    folder, settings = args.folder, VenvSettings.from_config(args.settings)
    environment = environment_for(args.name, folder.parent.name, folder.name, folder, settings)
    if is_usable(environment, settings):
        return 0
    try:
        asyncio.run(build_all([environment], settings, lambda name, line: output.talk(f"({name}) {line}")))
    except GymError as error:
        output.error(str(error))
        return error.exit_status
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
