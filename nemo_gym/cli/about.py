"""What this installation is and stands on."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import nemo_gym
from nemo_gym.cli import output

ASKED_ABOUT = ("openai", "ray", "pydantic", "fastapi")
GIB = 1024**3


def show(*, as_json: bool = False) -> None:
    """Print the version of NeMo Gym, Python and the packages people ask about first."""
    facts = installation()
    if as_json:
        output.json(facts)
        return
    rows = [("nemo-gym", facts["nemo_gym"]), ("python", facts["python"]), ("executable", facts["python_path"])]
    rows += [("installed at", facts["installation_path"])]
    rows += [(name, found or "not installed") for name, found in facts["dependencies"].items()]
    rows += [(name.replace("_", " "), str(value)) for name, value in facts["system"].items()]
    output.table(rows)


def installation() -> dict[str, Any]:
    """The facts a bug report needs."""
    return {
        "nemo_gym": nemo_gym.__version__,
        "python": platform.python_version(),
        "python_path": sys.executable,
        "installation_path": str(Path(nemo_gym.__file__).parent),
        "dependencies": {name: installed_version(name) for name in ASKED_ABOUT},
        "system": {
            "os": platform.system(),
            "platform": platform.platform(),
            "architecture": platform.machine(),
            "processor": platform.processor() or platform.machine(),
            "cpus": os.cpu_count(),
            "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB, 1),
        },
    }


def installed_version(name: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None
