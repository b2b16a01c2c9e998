"""Find the server instances of a configuration with their folders and hosting."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from nemo_gym.config.instances import server_instances
from nemo_gym.config.search_roots import component_folder, follow_rename
from nemo_gym.errors import ConfigError
from nemo_gym.launch.requirements import unmet_requirements

Hosting = Literal["cell", "process", "venv"]

DECLARATION = re.compile(r"""^[ \t]+HOSTING\b[^=\n]*=[ \t]*["'](cell|process|venv)["']""", re.MULTILINE)
"""`HOSTING = "cell"` in a class, with or without an annotation."""


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
    """Return the `HOSTING = …` of the server class in `source` without running the file; the default is `process`."""
    match = DECLARATION.search(source.read_text(encoding="utf-8", errors="replace"))
    return cast("Hosting", match[1]) if match else "process"


def server_folder(name: str, kind: str, implementation: str, roots: Sequence[Path]) -> Path:
    """Return the folder of an implementation.

    Raises:
        ConfigError: no search root contains it.
    """
    folder = component_folder(kind, implementation, roots)
    if folder is not None:
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
    """Return the instance of one server block; adapt its hosting to unmet requirements and several workers."""
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
