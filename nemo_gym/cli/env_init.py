"""Make a new resources server or environment that works and whose tests pass, ready to be changed.

It is written below the working directory: resources_servers/NAME, or environments/NAME with a resources server of the
same name. Nothing that exists is changed.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from nemo_gym.catalog.roots import PARENT_DIR
from nemo_gym.cli import output
from nemo_gym.errors import ConfigError
from nemo_gym.scaffold.write import ScaffoldResult, scaffold_environment, scaffold_resources_server

ENTRYPOINT = "+entrypoint=resources_servers/"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--resources-server", metavar="NAME", help="a resources server")
    what.add_argument("--environment", metavar="NAME", help="an environment with its resources server")


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    here = Path.cwd()
    checkout = PARENT_DIR if (PARENT_DIR / "pyproject.toml").exists() else None
    if args.environment:
        made = scaffold_environment(here, args.environment, checkout)
        return _tell(made, args.environment, "environment")
    named = [word.removeprefix(ENTRYPOINT) for word in rest if word.startswith(ENTRYPOINT)]
    name = args.resources_server or (named[0] if named else None)
    if not name:
        raise ConfigError("of what?", where="gym env init", fix="--resources-server NAME or --environment NAME")
    folder = here / "resources_servers" / name
    if folder.exists():
        output.talk(f"{folder} exists already; nothing was changed")
        return 0
    return _tell(scaffold_resources_server(folder, checkout), name, "resources-server")


def _tell(made: ScaffoldResult, name: str, kind: str) -> int:
    here = Path.cwd()
    for path in made.created:
        output.data(str(path.relative_to(here)))
    for path in made.existing:
        output.talk(f"{path.relative_to(here)} was there and is used as it is")
    output.talk(
        f"\ntest it:  gym env test --resources-server {name}\n"
        f"run it:   gym eval run --{kind} {name} --model-type openai_model\n"
        f"change:   resources_servers/{name}/app.py"
    )
    return 0
