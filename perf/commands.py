"""Measure the CPU time of quick commands: help, completion, listing and validation."""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from nemo_gym.cli.parser import GROUPS, TOP_LEVEL_COMMANDS

BEST_OF = 5
COMPONENTS = 120
SERVER = """
server_{number}:
  resources_servers:
    server_{number}: {{entrypoint: app.py, domain: math, verified: false, description: Number {number} of many}}
server_{number}_agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {{type: resources_servers, name: server_{number}}}
      model_server: {{type: responses_api_models, name: policy_model}}
      datasets: [{{name: d, type: example, jsonl_fpath: d.jsonl}}]
"""
HELP_LIMIT = 0.15
COMMANDS: dict[str, tuple[list[str], float]] = {
    "gym --help": (["--help"], HELP_LIMIT),
    "completion": (["completion", "--words", "4", "--", "gym", "eval", "run", "--environment", "a"], 0.15),
    "completion of flags": (["completion", "--words", "3", "--", "gym", "eval", "run", "--re"], 0.15),
    "gym env validate": (["env", "validate", "--environment", "arithmetic"], 0.7),
    f"gym list environments ({COMPONENTS} more)": (["list", "environments"], 0.5),
}


def write_components(root: Path) -> None:
    for number in range(COMPONENTS):
        folder = root / "resources_servers" / f"server_{number}" / "configs"
        folder.mkdir(parents=True)
        (folder / f"server_{number}.yaml").write_text(SERVER.format(number=number))


def cpu_seconds(words: list[str], root: Path) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    env = {**os.environ, "NEMO_GYM_EXTRA_ROOTS": str(root)}
    result = subprocess.run(
        [sys.executable, "-m", "nemo_gym.cli.main", *words], capture_output=True, text=True, env=env, check=False
    )
    if result.returncode:
        raise SystemExit(f"gym {' '.join(words)} ended with {result.returncode}:\n{result.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure() -> dict[str, Any]:
    """Return the CPU seconds (best of several) and the limit of each command and of the slowest `--help`."""
    with tempfile.TemporaryDirectory() as name:
        write_components(Path(name))
        figures = {what: _best_time(words, limit, Path(name)) for what, (words, limit) in COMMANDS.items()}
        helps = {" ".join(words): _best_time([*words, "--help"], HELP_LIMIT, Path(name)) for words in every_command()}
    slowest = max(helps, key=lambda command: helps[command]["best_seconds"])
    return {**figures, f"slowest of {len(helps)} --help ({slowest})": helps[slowest]}


def every_command() -> list[list[str]]:
    grouped = [[group, name] for group, (_, commands) in GROUPS.items() for name in commands]
    return [*grouped, *([name] for name in TOP_LEVEL_COMMANDS)]


def _best_time(words: list[str], limit: float, root: Path) -> dict[str, float]:
    return {"best_seconds": min(cpu_seconds(words, root) for _ in range(BEST_OF)), "limit_seconds": limit}
