"""Which virtual environments a set of servers needs: what goes into each, and where it lives.

Servers that ask for the same things share one environment; its folder is named after what is in it. Nothing here
runs or writes anything: `venv_build` does.
"""

import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from nemo_gym.catalog.roots import CACHE_DIR, PARENT_DIR, WORKING_DIR
from nemo_gym.launch.instances import Instance
from nemo_gym.launch.requirements import (
    OURS,
    TEST_EXTRA,
    extras_of_ours,
    is_ours,
    packages,
    project_table,
    requirement_file,
    wanted_python,
)

STAMP = "nemo-gym-environment.json"
"""Written last: an environment without it was never finished."""
RELATIVE = re.compile(r"(-r|-c|--requirement|--constraint|-e)[\s=]|\.{0,2}/|.*@\s*(\.|file:)")
INCLUDED = re.compile(r"(?:-r|-c|--requirement|--constraint)[\s=]*(\S+)")


@dataclass(frozen=True)
class VenvSettings:
    """What the configuration says about environments."""

    shared: Path
    """Folder of the environments that servers share."""
    per_server: Path | None = None
    """`uv_venv_dir` when somebody chose one: each server then has `<type>/<name>/.venv` below it."""
    cache: Path | None = None
    """`uv_cache_dir` when somebody chose one."""
    python: str = sys.executable
    """The interpreter of servers that do not care."""
    python_version: str = platform.python_version()
    skip_if_present: bool = False
    verbose: bool = False
    required: tuple[str, ...] = ()
    """Installed everywhere."""
    constraints: tuple[str, ...] = ()
    """Versions to keep to where a package is installed at all."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "VenvSettings":
        """Read them from a resolved configuration; keys that hold their computed default count as unset."""
        cache_dir = Path(config.get("cache_dir") or CACHE_DIR)
        venv_dir, uv_cache = config.get("uv_venv_dir"), config.get("uv_cache_dir")
        version = str(config.get("python_version") or platform.python_version())
        pins = [str(pin) for pin in config.get("head_server_deps") or ()]
        # Ray is joined by every server once a cluster is named; otherwise its version only matters to those who use it.
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
class Recipe:
    """Everything that decides what is in an environment."""

    lines: tuple[str, ...]
    """Requirements, as uv reads them from a file in the server's folder."""
    constraints: tuple[str, ...]
    overrides: str
    python: str
    ours: str
    """Which nemo-gym this is; part of the recipe because its own requirements are."""
    folder: str | None
    """The server's folder when the lines refer to files in it, so that equal lines may mean different things."""
    included: str

    @property
    def key(self) -> str:
        """The name of an environment made from this recipe."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:20]


@dataclass(frozen=True)
class Environment:
    """One environment to make or to use."""

    recipe: Recipe
    target: Path
    folder: Path
    """Where uv runs, so that relative requirements mean what their author meant."""
    servers: tuple[str, ...]

    @property
    def python(self) -> Path:
        return self.target / "bin" / "python"

    @property
    def is_ready(self) -> bool:
        """Whether it was finished, from this very recipe; looks at two files and starts nothing."""
        try:
            stamp = json.loads((self.target / STAMP).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return isinstance(stamp, dict) and stamp.get("key") == self.recipe.key and self.python.exists()

    @property
    def is_present(self) -> bool:
        """Whether there is any environment at all, whoever made it."""
        return self.python.exists() and (self.target / "bin" / "activate").exists()


def own_requirement(extras: Iterable[str] = ()) -> tuple[str, str]:
    """The line that installs this very nemo-gym, and a text that changes when it would install something else."""
    chosen = f"[{','.join(sorted(extras))}]" if extras else ""
    try:
        distribution = Distribution.from_name(OURS)
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        version = distribution.version
    except PackageNotFoundError:
        origin, version = {}, "source"
    url = str(origin.get("url", ""))
    checkout = Path(url2pathname(urlsplit(url).path)) if origin.get("dir_info", {}).get("editable") else None
    if checkout is None and not url and (PARENT_DIR / "pyproject.toml").exists():
        checkout = PARENT_DIR
    if checkout is not None:
        project = checkout / "pyproject.toml"
        content = project.read_bytes() if project.exists() else b""
        return f"-e {checkout}{chosen}", f"{checkout} {hashlib.sha256(content).hexdigest()}"
    line = f"{OURS}{chosen} @ {url}" if url else f"{OURS}{chosen}=={version}"
    return line, f"{line} {version}"


def recipe_for(folder: Path, settings: VenvSettings, *, tests: bool = False) -> Recipe:
    """What an environment for a server folder consists of; with `tests`, also what its own tests need.

    Raises:
        ConfigError: it cannot be said what the folder asks for.
    """
    asked = packages(folder)
    extras = {extra for line in asked if is_ours(line) for extra in extras_of_ours(line)} - {TEST_EXTRA}
    own, fingerprint = own_requirement(extras | ({TEST_EXTRA} if tests else set()))
    project = _project_to_install(folder)
    others = [line for line in asked if not is_ours(line)] if project is None else [f"-e {folder}"]
    relative = any(RELATIVE.match(line) for line in others)
    overrides = folder / "overrides.txt"
    return Recipe(
        lines=(own, *others, *settings.required),
        constraints=settings.constraints,
        overrides=overrides.read_text(encoding="utf-8") if overrides.exists() else "",
        python=_python_for(folder, settings),
        ours=fingerprint,
        folder=str(folder) if relative or overrides.exists() else None,
        included=_included(folder, others, project),
    )


def _python_for(folder: Path, settings: VenvSettings) -> str:
    wish = wanted_python(folder)
    return settings.python if wish is None or wish.contains(settings.python_version) else str(wish)


def _project_to_install(folder: Path) -> Path | None:
    """The project file of a folder that has code to build or settings for uv; it is installed as a whole."""
    file = requirement_file(folder)
    if file is None or file.name != "pyproject.toml":
        return None
    table = project_table(file)
    return file if "build-system" in table or "uv" in table.get("tool", {}) else None


def _included(folder: Path, lines: Sequence[str], project: Path | None) -> str:
    """The text of the files that requirements refer to."""
    named = [folder / match[1] for line in lines if (match := INCLUDED.match(line))]
    files = [*named, *([project] if project else [])]
    return "\n".join(path.read_text(encoding="utf-8") for path in files if path.is_file())


def environment_for(
    server: str, kind: str, implementation: str, folder: Path, settings: VenvSettings, *, tests: bool = False
) -> Environment:
    """The environment of one server folder."""
    recipe = recipe_for(folder, settings, tests=tests)
    target = settings.shared / recipe.key
    if settings.per_server is not None:
        target = settings.per_server / kind / implementation / (".venv-test" if tests else ".venv")
    made_by_hand = Environment(recipe, folder / ".venv", folder, (server,))
    if settings.skip_if_present and made_by_hand.is_present:
        return made_by_hand
    return Environment(recipe, target, folder, (server,))


def environments_for(found: Iterable[Instance], settings: VenvSettings) -> dict[str, Environment]:
    """The environment of every instance that does not run in this one, by the instance's name.

    Raises:
        ConfigError: it cannot be said what a folder asks for.
    """
    isolated = [instance for instance in found if instance.hosting == "venv"]
    single = {
        one.name: environment_for(one.name, one.kind, one.implementation, one.folder, settings) for one in isolated
    }
    return {name: merged for merged in distinct(single.values()) for name in merged.servers}


def distinct(environments: Iterable[Environment]) -> list[Environment]:
    """Each environment once, naming all servers that use it."""
    by_place: dict[tuple[Path, str], Environment] = {}
    for one in environments:
        place = (one.target, one.recipe.key)
        known = by_place.get(place)
        servers = (*known.servers, *one.servers) if known else one.servers
        by_place[place] = Environment(one.recipe, one.target, known.folder if known else one.folder, servers)
    return list(by_place.values())


def inside(environment: Environment, tree: Path, surroundings: Mapping[str, str]) -> dict[str, str]:
    """The process environment of something that runs in `environment`; `tree` is the root its folder belongs to."""
    kept = {key: value for key, value in surroundings.items() if key != "PYTHONHOME"}
    path = [str(environment.target / "bin"), surroundings.get("PATH", "")]
    modules = [str(tree), surroundings.get("PYTHONPATH", "")]
    return {
        **kept,
        "VIRTUAL_ENV": str(environment.target),
        "PATH": os.pathsep.join(part for part in path if part),
        "PYTHONPATH": os.pathsep.join(part for part in modules if part),
    }
