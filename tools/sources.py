"""Write the ids of every source: `python -m tools.sources [SOURCE ...]`, where their packages are installed.

`ids.json` of a folder has the version of the package and every id, with the reason for those that cannot be run.
"""

import argparse
import importlib
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from nemo_gym.config.environment_sources import IDS_FILE, EnvironmentSource, find_environment_sources
from nemo_gym.launch.requirements import unmet_requirements

ROOT = Path(__file__).resolve().parents[1]


def id_list(source: EnvironmentSource) -> dict[str, Any]:
    """Return the content of `ids.json`, from the package."""
    module = importlib.import_module(f"resources_servers.{source.folder.name}.ids")
    return {"version": version(source.file.package), "ids": dict(module.list_ids())}


def as_text(content: dict[str, Any]) -> str:
    """Return the list as JSON with a line for each id."""
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(facts)}" for name, facts in sorted(content["ids"].items()))
    return f'{{"version": {json.dumps(content["version"])}, "ids": {{\n{lines}\n}}}}\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", nargs="*", help="default: all whose package is installed")
    args = parser.parse_args()
    for name, source in find_environment_sources([ROOT]).items():
        if (args.source and name not in args.source) or unmet_requirements(source.folder):
            continue
        (source.folder / IDS_FILE).write_text(as_text(id_list(source)), encoding="utf-8")


if __name__ == "__main__":
    main()
