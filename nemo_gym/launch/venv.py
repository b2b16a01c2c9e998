"""Describe the virtual environments of servers: their settings, and the content and folder of each.

Servers with the same requirements share a virtual environment, whose folder is named after a hash of its content.
"""

import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from nemo_gym.config.search_roots import CACHE_DIR, PARENT_DIR, WORKING_DIR
from nemo_gym.launch.hosted_instances import Instance
from nemo_gym.launch.requirements import (
    NEMO_GYM,
    TEST_EXTRA,
    nemo_gym_extras,
    read_pyproject,
    required_packages,
    required_python,
    requirement_file,
    requires_nemo_gym,
)

STAMP = "nemo-gym-environment.json"
"""Name of the file that is written last; a virtual environment without it is incomplete."""
_LOCAL_LINE = re.compile(r"(-r|-c|--requirement|--constraint|-e)[\s=]|\.{0,2}/|.*@\s*(\.|file:)")
"""A requirement line that refers to a file or folder."""
_INCLUDE_LINE = re.compile(r"(?:-r|-c|--requirement|--constraint)[\s=]*(\S+)")
"""A line that includes another requirements file."""


@dataclass(frozen=True)
class VenvSettings:
    """Settings for building virtual environments."""

    shared: Path
    """Folder of the virtual environments that servers share."""
    per_server: Path | None = None
    """`uv_venv_dir` if it is set: each server then has `<type>/<name>/.venv` below it."""
    cache: Path | None = None
    """`uv_cache_dir` if it is set."""
    python: str = sys.executable
    """The interpreter of servers that require no specific version."""
    python_version: str = platform.python_version()
    skip_if_present: bool = False
    verbose: bool = False
    required: tuple[str, ...] = ()
    """Requirements that are installed in every virtual environment."""
    constraints: tuple[str, ...] = ()
    """Versions of packages, for the virtual environments that contain the package."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "VenvSettings":
        """Read the settings of a resolved configuration; a key with its computed default counts as unset."""
        cache_dir = Path(config.get("cache_dir") or CACHE_DIR)
        venv_dir, uv_cache = config.get("uv_venv_dir"), config.get("uv_cache_dir")
        version = str(config.get("python_version") or platform.python_version())
        pins = [str(pin) for pin in config.get("head_server_deps") or ()]
        # With a Ray cluster every server connects to Ray; without one the version matters only to servers that use it.
        required = [pin for pin in pins if config.get("ray_head_node_address") and pin.startswith("ray")]
        return cls(
            shared=cache_dir / "venvs",
            per_server=Path(venv_dir) if venv_dir and Path(venv_dir) != WORKING_DIR else None,
            cache=Path(uv_cache) if uv_cache and Path(uv_cache) != cache_dir / "uv" else None,
            python=sys.executable if version == platform.python_version() else version,
            python_version=version,
            skip_if_present=bool(config.get("skip_venv_if_present")),
            verbose=bool(config.get("pip_install_verbose")),
            required=tuple(required),
            constraints=tuple(re.sub(r"\[.*\]", "", pin) for pin in pins if pin not in required),
        )


@dataclass(frozen=True)
class VenvRecipe:
    """All inputs that determine the content of a virtual environment."""

    lines: tuple[str, ...]
    """Requirements, as uv reads them from a file in the server's folder."""
    constraints: tuple[str, ...]
    overrides: str
    python: str
    nemo_gym_fingerprint: str
    """Fingerprint of the running nemo-gym, which is installed as well."""
    folder: str | None
    """The server's folder if the lines refer to files in it, because equal lines then have different meanings."""
    included: str
    """The text of the files that the lines refer to."""

    @property
    def key(self) -> str:
        """The folder name of a virtual environment made from this recipe."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:20]


@dataclass(frozen=True)
class Venv:
    """A virtual environment, built or not."""

    recipe: VenvRecipe
    target: Path
    """The folder of the virtual environment."""
    folder: Path
    """The server folder; uv runs in it, so that relative paths in requirements start there."""
    servers: tuple[str, ...]

    @property
    def python(self) -> Path:
        return self.target / "bin" / "python"

    @property
    def is_ready(self) -> bool:
        """True if it is complete and was built from this recipe; starts no process."""
        try:
            stamp = json.loads((self.target / STAMP).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return isinstance(stamp, dict) and stamp.get("key") == self.recipe.key and self.python.exists()

    @property
    def is_present(self) -> bool:
        """True if a virtual environment exists in this folder, even if it was made by hand."""
        return self.python.exists() and (self.target / "bin" / "activate").exists()


def nemo_gym_requirement(extras: Iterable[str] = ()) -> tuple[str, str]:
    """Return the requirement line that installs the running nemo-gym, and a fingerprint of its requirements."""
    suffix = f"[{','.join(sorted(extras))}]" if extras else ""
    try:
        distribution = Distribution.from_name(NEMO_GYM)
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        version = distribution.version
    except PackageNotFoundError:
        origin, version = {}, "source"
    url = str(origin.get("url", ""))
    checkout = Path(url2pathname(urlsplit(url).path)) if origin.get("dir_info", {}).get("editable") else None
    if checkout is None and not url and (PARENT_DIR / "pyproject.toml").exists():  # run from a source tree
        checkout = PARENT_DIR
    if checkout is not None:
        project = checkout / "pyproject.toml"
        content = project.read_bytes() if project.exists() else b""
        return f"-e {checkout}{suffix}", f"{checkout} {hashlib.sha256(content).hexdigest()}"
    line = f"{NEMO_GYM}{suffix} @ {url}" if url else f"{NEMO_GYM}{suffix}=={version}"
    return line, f"{line} {version}"


def venv_recipe(folder: Path, settings: VenvSettings, *, tests: bool = False) -> VenvRecipe:
    """Return the recipe for a server folder; with `tests`, including the requirements of its tests.

    Raises:
        ConfigError: the folder's requirements are ambiguous or invalid.
    """
    packages = required_packages(folder)
    extras = {extra for line in packages if requires_nemo_gym(line) for extra in nemo_gym_extras(line)} - {TEST_EXTRA}
    own, fingerprint = nemo_gym_requirement(extras | ({TEST_EXTRA} if tests else set()))
    project = _project_to_install(folder)
    others = [line for line in packages if not requires_nemo_gym(line)] if project is None else [f"-e {folder}"]
    overrides = folder / "overrides.txt"
    is_folder_specific = overrides.exists() or any(_LOCAL_LINE.match(line) for line in others)
    python = required_python(folder)
    return VenvRecipe(
        lines=(own, *others, *settings.required),
        constraints=settings.constraints,
        overrides=overrides.read_text(encoding="utf-8") if overrides.exists() else "",
        python=settings.python if python is None or python.contains(settings.python_version) else str(python),
        nemo_gym_fingerprint=fingerprint,
        folder=str(folder) if is_folder_specific else None,
        included=_included_text(folder, others, project),
    )


def _project_to_install(folder: Path) -> Path | None:
    """Return the `pyproject.toml` of a folder that uv installs as a project: one with a build system or uv settings."""
    file = requirement_file(folder)
    if file is None or file.name != "pyproject.toml":
        return None
    content = read_pyproject(file)
    return file if "build-system" in content or "uv" in content.get("tool", {}) else None


def _included_text(folder: Path, lines: Sequence[str], project: Path | None) -> str:
    """Return the text of the files that requirement lines include, and of the project file."""
    files = [folder / match[1] for line in lines if (match := _INCLUDE_LINE.match(line))]
    files += [project] if project else []
    return "\n".join(path.read_text(encoding="utf-8") for path in files if path.is_file())


def folder_venv(
    server: str, kind: str, implementation: str, folder: Path, settings: VenvSettings, *, tests: bool = False
) -> Venv:
    """Return the virtual environment of one server folder; `server` is its name in messages."""
    recipe = venv_recipe(folder, settings, tests=tests)
    target = settings.shared / recipe.key
    if settings.per_server is not None:
        target = settings.per_server / kind / implementation / (".venv-test" if tests else ".venv")
    in_folder = Venv(recipe, folder / ".venv", folder, (server,))
    if settings.skip_if_present and in_folder.is_present:
        return in_folder
    return Venv(recipe, target, folder, (server,))


def link_venv(folder: Path, target: Path, *, replace: bool) -> None:
    """Link the virtual environment of a server into its folder, for `source .venv/bin/activate`.

    Only in folders of the working directory. A `.venv` that is not a link was made by hand and is kept; a link is
    replaced if `replace` is set or its target is gone.
    """
    link = folder / ".venv"
    if not folder.is_relative_to(Path.cwd().resolve()) or not (target / "bin" / "activate").exists():
        return
    if link.exists() and not (replace and link.is_symlink()):
        return
    temporary = folder / f".venv.{os.getpid()}"
    with suppress(OSError):  # a read-only folder has no link
        temporary.symlink_to(target)
        temporary.replace(link)


def instance_venvs(instances: Iterable[Instance], settings: VenvSettings) -> dict[str, Venv]:
    """Return the virtual environment of every instance that has one, by the instance's name.

    Raises:
        ConfigError: a folder's requirements are ambiguous or invalid.
    """
    venvs = [
        folder_venv(one.name, one.kind, one.implementation, one.folder, settings)
        for one in instances
        if one.hosting == "venv"
    ]
    return {name: venv for venv in merge_equal_venvs(venvs) for name in venv.servers}


def merge_equal_venvs(venvs: Iterable[Venv]) -> list[Venv]:
    """Return each virtual environment once, with all servers that use it."""
    merged: dict[tuple[Path, str], Venv] = {}
    for venv in venvs:
        key = (venv.target, venv.recipe.key)
        first = merged.get(key)
        merged[key] = replace(first, servers=(*first.servers, *venv.servers)) if first else venv
    return list(merged.values())


def venv_process_env(venv: Venv, tree: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Return `env` for a process that runs in `venv`; `tree` is the search root that contains the server's folder."""
    inherited = {key: value for key, value in env.items() if key != "PYTHONHOME"}
    program_folders = [str(venv.target / "bin"), env.get("PATH", "")]
    module_folders = [str(tree), env.get("PYTHONPATH", "")]
    return {
        **inherited,
        "VIRTUAL_ENV": str(venv.target),
        "PATH": os.pathsep.join(filter(None, program_folders)),
        "PYTHONPATH": os.pathsep.join(filter(None, module_folders)),
    }
