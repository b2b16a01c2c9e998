"""Install NeMo Gym and what its tests need again, from this clone."""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from nemo_gym import PARENT_DIR
from nemo_gym.cli import output


def add_arguments(parser: argparse.ArgumentParser) -> None:  # noqa: ARG001 - there is nothing to choose
    return


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:  # noqa: ARG001
    if not (PARENT_DIR / "pyproject.toml").is_file():
        output.error(f"{PARENT_DIR} is not a clone of the repository; use pip to reinstall the package")
        return 1
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv) if uv.exists() else "uv", "pip", "install", "--python", sys.executable, "-e", ".[dev]"]
    return subprocess.run(command, cwd=PARENT_DIR, check=False).returncode
