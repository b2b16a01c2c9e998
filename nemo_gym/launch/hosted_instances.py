"""Find the server instances of a configuration with their folders and hosting."""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from nemo_gym.catalog.roots import follow_rename
from nemo_gym.config.instances import server_instances
from nemo_gym.errors import ConfigError
from nemo_gym.launch.requirements import unmet_requirements

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
        """The dotted module name of the entrypoint; a cell imports it."""
        return ".".join([self.kind, self.folder.name, *Path(self.entrypoint).with_suffix("").parts])


def declared_hosting(source: Path) -> Hosting:
    """Read `HOSTING = …` of the server class in `source` without running the file.

    The default, also for a file that cannot be parsed, is `process`.
    """
    try:
        tree = ast.parse(source.read_bytes())
    except (SyntaxError, ValueError):
        return "process"
    for cls in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        for statement in cls.body:
            value = getattr(statement, "value", None)
            if (
                "HOSTING" in _assigned_names(statement)
                and isinstance(value, ast.Constant)
                and value.value in ("cell", "process", "venv")
            ):
                return cast("Hosting", value.value)
    return "process"


def _assigned_names(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.Assign):
        return [target.id for target in statement.targets if isinstance(target, ast.Name)]
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return [statement.target.id]
    return []


def server_folder(name: str, kind: str, implementation: str, roots: Sequence[Path]) -> Path:
    """Return the folder of an implementation in the first search root that contains it.

    Raises:
        ConfigError: no search root contains it.
    """
    for root in roots:
        folder = root / kind / implementation
        if folder.is_dir():
            return folder.resolve()
    new_path = follow_rename(Path(kind, implementation))
    if new_path is not None:
        return server_folder(name, kind, new_path.name, roots)
    searched = ", ".join(str(root) for root in roots)
    raise ConfigError(
        f"folder {kind}/{implementation} not found in {searched}",
        where=name,
        fix=f"correct the folder's name under '{kind}', or add its search root with --search-dir",
    )


def find_instances(config: Mapping[str, Any], roots: Sequence[Path]) -> list[Instance]:
    """Return every server instance of a resolved configuration (plain data), in the order of the configuration.

    Raises:
        ConfigError: an instance has no folder or no entrypoint.
    """
    return [_make_instance(*instance.path, instance.fields, roots) for instance in server_instances(config).values()]


def _make_instance(
    name: str, kind: str, implementation: str, settings: Mapping[str, Any], roots: Sequence[Path]
) -> Instance:
    """Return the instance of one server block; unmet requirements make it `venv`, several workers `process`."""
    folder = server_folder(name, kind, implementation, roots)
    if "entrypoint" not in settings:
        raise ConfigError(
            "has no entrypoint: the configuration only overrides this instance and no file defines it",
            where=f"{name}.{kind}.{implementation}",
            fix="add the file that configures it to config_paths, or correct its name",
        )
    source = folder / settings["entrypoint"]
    if not source.is_file():
        raise ConfigError(f"file not found: {source}", where=name, fix="correct 'entrypoint'")
    hosting = settings.get("hosting") or declared_hosting(source)
    if hosting != "venv" and unmet_requirements(folder):
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
