"""Measure the CPU time of importing the package, beyond starting a bare interpreter.

    python perf/imports.py

CPU time (user + system of a fresh process with its children) instead of wall time, because a busy machine changes it
less. The figure is the best of five; the median shows the noise.
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
"""Dependencies of every server: the part of the cost outside this package."""


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _cpu_seconds(statement: str) -> float:
    """Return user and system time of a fresh interpreter that runs `statement`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", statement], env=_environment(), check=True, timeout=120)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def _imported_packages(statement: str) -> set[str]:
    script = f"{statement}; import sys, json; sys.stdout.write(json.dumps(sorted(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", script], env=_environment(), check=True, capture_output=True, timeout=120
    )
    return {name.split(".")[0] for name in json.loads(result.stdout)}


def measure(runs: int = RUNS) -> dict[str, Any]:
    """Return, for each import, best and median CPU seconds, the limit and the forbidden modules it loads."""
    compileall.compile_dir(PACKAGE, quiet=1)
    bare = [_cpu_seconds("pass") for _ in range(runs)]
    third_party = [_cpu_seconds(THIRD_PARTY) for _ in range(runs)]
    figures: dict[str, Any] = {}
    for module, limit in LIMITS.items():
        statement = f"import {module}"
        _cpu_seconds(statement)  # compile the byte-code of dependencies
        times = [_cpu_seconds(statement) for _ in range(runs)]
        figures[module] = {
            "best_seconds": round(min(times) - min(bare), 4),
            "median_seconds": round(statistics.median(times) - statistics.median(bare), 4),
            "limit_seconds": limit,
            "third_party_seconds": round(min(third_party) - min(bare), 4),
            "forbidden": sorted(_imported_packages(statement).intersection(FORBIDDEN)),
        }
    return figures


def within_limits(figures: dict[str, Any]) -> bool:
    return all(row["best_seconds"] <= row["limit_seconds"] and not row["forbidden"] for row in figures.values())


if __name__ == "__main__":
    result = measure()
    print(json.dumps(result, indent=2))
    sys.exit(0 if within_limits(result) else 1)
