"""Which server instances a configuration asks for, where their code is and in which kind of process each runs."""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from nemo_gym.catalog.roots import renamed
from nemo_gym.errors import ConfigError
from nemo_gym.keys import SERVER_TYPES
from nemo_gym.launch.requirements import unsatisfied

Hosting = Literal["cell", "process", "venv"]


@dataclass(frozen=True)
class Instance:
    """One server to run."""

    name: str
    kind: str
    implementation: str
    folder: Path
    entrypoint: str
    host: str
    port: int
    hosting: Hosting
    num_workers: int = 1

    @property
    def module(self) -> str:
        """The dotted name under which a cell imports it."""
        return ".".join([self.kind, self.folder.name, *Path(self.entrypoint).with_suffix("").parts])


def declared_hosting(source: Path) -> Hosting:
    """What the server class in `source` declares with `HOSTING = …`, read without running the file.

    A file that declares nothing, or cannot be parsed, gets a process of its own, as it always had.
    """
    try:
        tree = ast.parse(source.read_bytes())
    except (SyntaxError, ValueError):
        return "process"
    for cls in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        for statement in cls.body:
            targets = _assigned(statement)
            value = getattr(statement, "value", None)
            if "HOSTING" in targets and isinstance(value, ast.Constant) and value.value in ("cell", "process", "venv"):
                return cast("Hosting", value.value)
    return "process"


def _assigned(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.Assign):
        return [target.id for target in statement.targets if isinstance(target, ast.Name)]
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return [statement.target.id]
    return []


def server_folder(name: str, kind: str, implementation: str, roots: Sequence[Path]) -> Path:
    """The folder of an implementation; the first root that has it wins.

    Raises:
        ConfigError: no root has it.
    """
    for root in roots:
        folder = root / kind / implementation
        if folder.is_dir():
            return folder.resolve()
    now = renamed(Path(kind, implementation))
    if now is not None:
        return server_folder(name, kind, now.name, roots)
    searched = ", ".join(str(root) for root in roots)
    raise ConfigError(
        f"there is no folder {kind}/{implementation} in {searched}",
        where=name,
        fix=f"write the folder's name under '{kind}', or add its tree with --search-dir",
    )


def instances(config: Mapping[str, Any], roots: Sequence[Path]) -> list[Instance]:
    """Every server instance of a resolved configuration (plain data), in its order."""
    found = []
    for name, block in config.items():
        kind = next((key for key in SERVER_TYPES if isinstance(block, Mapping) and key in block), None)
        if kind is None:
            continue
        implementation, settings = next(iter(block[kind].items()))
        found.append(_instance(name, kind, implementation, settings, roots))
    return found


def _instance(
    name: str, kind: str, implementation: str, settings: Mapping[str, Any], roots: Sequence[Path]
) -> Instance:
    folder = server_folder(name, kind, implementation, roots)
    if "entrypoint" not in settings:
        raise ConfigError(
            "has no entrypoint: only overrides of it were given, and no file that they could override",
            where=f"{name}.{kind}.{implementation}",
            fix="add the file that configures it to config_paths, or correct its name",
        )
    source = folder / settings["entrypoint"]
    if not source.is_file():
        raise ConfigError(f"there is no file {source}", where=name, fix="correct 'entrypoint'")
    hosting = settings.get("hosting") or declared_hosting(source)
    if hosting != "venv" and unsatisfied(folder):
        hosting = "venv"
    workers = settings.get("num_workers") or 1
    if hosting == "cell" and workers > 1:
        hosting = "process"
    return Instance(
        name=name,
        kind=kind,
        implementation=implementation,
        folder=folder,
        entrypoint=settings["entrypoint"],
        host=settings["host"],
        port=settings["port"],
        hosting=hosting,
        num_workers=workers,
    )
