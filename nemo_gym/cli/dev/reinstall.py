"""Reinstall NeMo Gym and the packages its tests need from this clone."""

import argparse
import subprocess
import sys

from nemo_gym import PARENT_DIR
from nemo_gym.cli.terminal import output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: this command has no options."""


def run(args: argparse.Namespace) -> int:  # noqa: ARG001 - this command has no options
    from nemo_gym.launch.venv_build import uv_executable

    if not (PARENT_DIR / "pyproject.toml").is_file():
        output.report_error(f"{PARENT_DIR} is not a clone of the repository; use pip to reinstall the package")
        return 1
    command = [str(uv_executable()), "pip", "install", "--python", sys.executable, "-e", ".[dev]"]
    return subprocess.run(command, cwd=PARENT_DIR, check=False).returncode
