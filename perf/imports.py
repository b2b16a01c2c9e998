"""What importing the package costs, in CPU time above a bare interpreter.

    python perf/imports.py

CPU time (user + system of a fresh process, children included) and not wall time, so that a busy machine does not
change the answer much; the best of five is the figure, the median shows the noise.
"""

import compileall
import json
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1] / "nemo_gym"
RUNS = 5
FORBIDDEN = ("ray", "hydra", "pandas", "wandb", "mlflow", "openai", "anthropic", "mcp")
LIMITS = {"nemo_gym": 0.06, "nemo_gym.base_resources_server": 0.9}
"""Seconds of CPU each import may cost."""
THIRD_PARTY = "import aiohttp, fastapi, omegaconf, orjson"
"""What a server cannot do without: the part of the cost that is not ours, and a measure of how busy the machine is."""


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _cpu_seconds(statement: str) -> float:
    """User and system time of one fresh interpreter that runs `statement`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", statement], env=_environment(), check=True, timeout=120)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def _loaded(statement: str) -> set[str]:
    script = f"{statement}; import sys, json; sys.stdout.write(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], env=_environment(), check=True, capture_output=True, timeout=120
    )
    return {name.split(".")[0] for name in json.loads(done.stdout)}


def measure(runs: int = RUNS) -> dict[str, Any]:
    """For each import: best and median CPU seconds above a bare interpreter, its limit, forbidden modules loaded."""
    compileall.compile_dir(PACKAGE, quiet=1)
    bare = [_cpu_seconds("pass") for _ in range(runs)]
    third_party = [_cpu_seconds(THIRD_PARTY) for _ in range(runs)]
    figures: dict[str, Any] = {}
    for module, limit in LIMITS.items():
        statement = f"import {module}"
        _cpu_seconds(statement)  # writes the bytecode of dependencies, if that is still to do
        taken = [_cpu_seconds(statement) for _ in range(runs)]
        figures[module] = {
            "best_seconds": round(min(taken) - min(bare), 4),
            "median_seconds": round(statistics.median(taken) - statistics.median(bare), 4),
            "limit_seconds": limit,
            "third_party_seconds": round(min(third_party) - min(bare), 4),
            "forbidden": sorted(_loaded(statement).intersection(FORBIDDEN)),
        }
    return figures


def within_limits(figures: dict[str, Any]) -> bool:
    return all(row["best_seconds"] <= row["limit_seconds"] and not row["forbidden"] for row in figures.values())


if __name__ == "__main__":
    result = measure()
    print(json.dumps(result, indent=2))
    sys.exit(0 if within_limits(result) else 1)
