"""Run the tests of NeMo Gym itself, with coverage.

Other words are passed to pytest: `gym dev test tests/config`.
"""

import argparse
import subprocess
import sys

from nemo_gym import PARENT_DIR
from nemo_gym.cli.terminal import output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="WORD", help="arguments for pytest")


def run(args: argparse.Namespace) -> int:
    if not (PARENT_DIR / "tests").is_dir():
        output.report_error(f"there are no tests in {PARENT_DIR}, which is not a clone of the repository")
        return 1
    command = [sys.executable, "-m", "pytest", "--cov=.", "--durations=10", *args.words, *args.overrides]
    return subprocess.run(command, cwd=PARENT_DIR, check=False).returncode
