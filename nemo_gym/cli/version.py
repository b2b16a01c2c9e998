"""What this installation is and stands on."""

import platform
import sys
from importlib.metadata import PackageNotFoundError, version

import nemo_gym
from nemo_gym.cli import output


def show() -> None:
    """Print the version of NeMo Gym, Python and the packages people ask about first."""
    rows = [("nemo-gym", nemo_gym.__version__), ("python", platform.python_version()), ("executable", sys.executable)]
    for name in ("pydantic", "fastapi", "openai", "ray"):
        try:
            rows.append((name, version(name)))
        except PackageNotFoundError:
            rows.append((name, "not installed"))
    rows.append(("platform", platform.platform()))
    output.table(rows)
