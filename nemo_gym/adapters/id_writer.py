"""Write the ids of sources: `python -m nemo_gym.adapters.id_writer [SOURCE ...] [--search-dir DIR]`.

`ids.json` of a folder has the version of the package and every id, with the reason for those that cannot be run.
Run it where the packages are installed.
"""

import argparse
import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from nemo_gym.catalog.atomic_files import whole_file
from nemo_gym.config.environment_sources import IDS_FILE, EnvironmentSource, find_environment_sources
from nemo_gym.config.search_roots import component_search_roots
from nemo_gym.errors import ConfigError
from nemo_gym.launch.requirements import unmet_requirements


def id_list(source: EnvironmentSource) -> dict[str, Any]:
    """Return the content of `ids.json`, from the package."""
    module = importlib.import_module(f"resources_servers.{source.folder.name}.ids")
    return {"version": version(source.file.package), "ids": dict(module.list_ids())}


def as_text(content: dict[str, Any]) -> str:
    """Return the list as JSON with a line for each id."""
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(facts)}" for name, facts in sorted(content["ids"].items()))
    return f'{{"version": {json.dumps(content["version"])}, "ids": {{\n{lines}\n}}}}\n'


def write_ids(sources: Mapping[str, EnvironmentSource], names: Sequence[str]) -> None:
    """Write the ids of the named sources; without names, of every source whose package is installed.

    Raises:
        ConfigError: a named source is unknown, or its package is not installed.
    """
    for name in names:
        if name not in sources:
            raise ConfigError("unknown source", where=name, fix=f"one of {', '.join(sources)}, or --search-dir")
        if unmet := unmet_requirements(sources[name].folder):
            raise ConfigError("its package is not installed here", where=name, fix=f"install {', '.join(unmet)}")
    for source in [sources[name] for name in names] or sources.values():
        if names or not unmet_requirements(source.folder):
            with whole_file(source.folder / IDS_FILE) as file:
                file.write(as_text(id_list(source)).encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", nargs="*", help="default: all whose package is installed")
    parser.add_argument("--search-dir", type=Path, action="append", default=[], help="folder with resources_servers/")
    args = parser.parse_args()
    roots = [*(folder.resolve() for folder in args.search_dir), *component_search_roots()]
    sys.path[:0] = [str(root) for root in roots if str(root) not in sys.path]
    try:
        write_ids(find_environment_sources(roots), args.source)
    except ConfigError as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
