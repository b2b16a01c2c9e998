"""Rows of an environment source: generated, or made by its package, and written once to a file."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_gym.catalog.atomic_files import whole_file
from nemo_gym.config.environment_sources import EnvironmentName, is_source_name, parse_name
from nemo_gym.errors import ConfigError
from nemo_gym.keys import RESOURCES
from nemo_gym.launch.requirements import unmet_requirements
from nemo_gym.launch.venv import VenvSettings, folder_venv, venv_process_env
from nemo_gym.launch.venv_build import build_venvs, is_usable, without_credentials

ROWS_SECONDS = 1800.0
"""Longest time that a package may take to make its rows."""

Notify = Callable[[str], Any]


def write_missing_rows(config: Mapping[str, Any], roots: Sequence[Path], notify: Notify = print) -> list[Path]:
    """Write the rows of the environments named in `config_paths` that have no file yet; return the paths of all.

    Raises:
        ConfigError: a name is wrong, its package cannot be installed, or the package cannot make the rows.
    """
    paths = []
    for entry in config.get("config_paths") or ():
        if not is_source_name(str(entry)):
            continue
        name = parse_name(str(entry), roots)
        paths.append(name.rows_path)
        if name.rows_path.is_file():
            continue
        if name.source.file.has_own_rows:
            _write_package_rows(name, config, notify)
        else:
            with whole_file(name.rows_path) as file:
                file.writelines(json.dumps(row).encode() + b"\n" for row in generated_rows(name))
    return paths


def generated_rows(name: EnvironmentName) -> Iterator[dict[str, Any]]:
    """Yield rows that differ in their seed, and with `player=alternate` (the default) in the player of the policy."""
    facts = name.source.ids.get(name.id, {})
    fields = name.row_fields
    players = int(fields.get("num_players") or facts.get("players") or 1)
    for number in range(name.size):
        row: dict[str, Any] = {"responses_create_params": {"input": []}, "environment": name.id}
        row |= {"seed": name.first_seed + number, "arguments": name.arguments, **fields}
        if "player" in name.source.file.settings:
            row |= {"num_players": players, "player": _player(fields.get("player", "alternate"), players, number, name)}
        yield row


def _player(value: Any, players: int, number: int, name: EnvironmentName) -> int:
    if value == "alternate":
        return number % players
    if type(value) is not int or not 0 <= value < players:
        problem = f"player={value} is neither alternate nor a number from 0 to {players - 1}"
        raise ConfigError(problem, where=name.text)
    return value


def _write_package_rows(name: EnvironmentName, config: Mapping[str, Any], notify: Notify) -> None:
    """Let `rows.py` of the source's folder make the rows, in an environment that has the package."""
    folder = name.source.folder
    python, env = sys.executable, {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if unmet_requirements(folder):
        settings = VenvSettings.from_config(config)
        venv = folder_venv(name.source.name, RESOURCES, folder.name, folder, settings)
        if not is_usable(venv, settings):
            notify(f"building the environment of {name.source.name} in {venv.target}")
            asyncio.run(build_venvs([venv], settings))
        python, env = str(venv.python), venv_process_env(venv, folder.parents[1], os.environ)
    request = {
        "id": name.id,
        "size": name.size,
        "seed": name.first_seed,
        "split": name.split,
        "arguments": name.arguments,
        "settings": dict(name.row_fields),
    }
    notify(f"making {name.size:,} rows of {name.text}")
    with tempfile.TemporaryFile() as rows:
        module = f"{RESOURCES}.{folder.name}.rows"
        command = [python, "-m", "nemo_gym.adapters.row_writer", str(folder.parents[1]), module]
        try:
            result = subprocess.run(
                command, input=json.dumps(request).encode(), stdout=rows, stderr=subprocess.PIPE, env=env,
                timeout=ROWS_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            problem = f"{name.source.name} made no rows within {ROWS_SECONDS:g} s"
            raise ConfigError(problem, where=name.text, fix="a smaller size=N") from None
        if result.returncode:
            lines = without_credentials(result.stderr.decode(errors="replace")).strip().splitlines()
            reason = lines[-1] if lines else f"status {result.returncode}"
            raise ConfigError(f"the rows cannot be made: {reason}", where=name.text)
        rows.seek(0)
        with whole_file(name.rows_path) as file:
            file.writelines(rows)
