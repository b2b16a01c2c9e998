"""Search roots: the folders that are searched for components and configuration files.

In order of precedence: extra roots (`NEMO_GYM_EXTRA_ROOTS`, `--search-dir`), working directory, installed package.
`import nemo_gym` imports this module, so it imports little.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path

from nemo_gym.config.component_imports import install_finder
from nemo_gym.errors import ConfigPathNotFoundError
from nemo_gym.keys import EXTRA_ROOTS_ENV_VAR

logger = logging.getLogger(__name__)

NEMO_GYM_EXTRA_ROOTS_ENV_VAR_NAME = EXTRA_ROOTS_ENV_VAR

ROOT_DIR = Path(__file__).resolve().parent.parent
PARENT_DIR = ROOT_DIR.parent
WORKING_DIR = PARENT_DIR if (PARENT_DIR / "pyproject.toml").exists() else Path.cwd()
CACHE_DIR = WORKING_DIR / "cache"
RESULTS_DIR = WORKING_DIR / "results"

RENAMED_FOLDERS = {
    f"resources_servers/{earlier}{old_subfolder}": f"resources_servers/example_single_tool_call{new_subfolder}"
    for earlier in ("simple_weather", "example_simple_weather")
    for old_subfolder, new_subfolder in (("/configs", "/configs/earlier_names"), ("", ""))
}
"""Path in an earlier release -> current path; the more specific path comes first."""


def extra_roots() -> list[Path]:
    """Return the folders in the environment variable `NEMO_GYM_EXTRA_ROOTS`."""
    return [Path(entry) for entry in os.environ.get(EXTRA_ROOTS_ENV_VAR, "").split(os.pathsep) if entry]


def component_search_roots(*, sys_path: Iterable[str] | None = None) -> list[Path]:
    """Return the search roots without duplicates: extra roots, `sys_path`, working directory, installed package."""
    last = [Path.cwd(), PARENT_DIR]
    resolved_last = {root.resolve() for root in last}
    middle = [Path(entry) for entry in sys_path or () if Path(entry or ".").resolve() not in resolved_last]
    unique: dict[Path, Path] = {}
    for root in [*extra_roots(), *middle, *last]:
        unique.setdefault(root.resolve(), root)
    return list(unique.values())


def component_folder(kind: str, name: str, roots: Sequence[Path]) -> Path | None:
    """Return the folder of a component in the first root that has it; one with Python files precedes one without.

    A root may contain only data of a component whose code is in a later root.
    """
    folders = [folder for root in roots if (folder := root / kind / name).is_dir()]
    return next((folder for folder in folders if any(folder.glob("*.py"))), next(iter(folders), None))


def is_second_name(folder: Path) -> bool:
    """Return whether a component folder is a link to one beside it: an earlier name, which listings leave out."""
    return folder.is_symlink() and folder.resolve().parent == folder.parent.resolve()


def find_file(path: str | Path, roots: Sequence[Path], subject: str = "config file") -> Path:
    """Return the file `path` in the first root that has it; a renamed path is also searched under its current name.

    Raises:
        ConfigPathNotFoundError: no root has the file; the message starts with `subject` and lists the searched paths.
    """
    text = str(path)
    if "\0" in text or not text.strip():
        raise ConfigPathNotFoundError(f"{text!r} is not a path")
    path = Path(text).expanduser() if text.startswith("~") else Path(text)
    candidates = [root / path for root in roots] if not path.is_absolute() else [path]
    short = text if len(text) <= 300 else text[:300] + "…"
    try:
        for candidate in candidates:
            if candidate.is_file():
                return candidate
    except OSError as error:
        raise ConfigPathNotFoundError(f"'{short}': {error.strerror or error}") from None
    renamed = follow_rename(path)
    if renamed is not None:
        return find_file(renamed, roots, subject)
    if any(candidate.is_dir() for candidate in candidates):
        raise ConfigPathNotFoundError(f"'{text}' is a folder, not a config file", fix="name the .yaml file in it")
    from nemo_gym.config.problems import did_you_mean  # needed only here, and slow to import

    folders = {candidate.parent for candidate in candidates if candidate.parent.is_dir()}
    siblings = {file.name for folder in folders for file in folder.iterdir() if file.suffix in {".yaml", ".yml"}}
    searched = "".join(f"\n    {candidate}" for candidate in candidates)
    guess = did_you_mean(path.name, siblings)
    raise ConfigPathNotFoundError(f"{subject} '{short}' does not exist{guess}\n  looked for{searched}")


def _resolve_under_cwd_or_install(
    rel_path: str | os.PathLike[str], *, validator: Callable[[Path], bool] | None = None
) -> Path:
    """Return the first existing `rel_path` in the search roots; if none exists, the path in the first root.

    An absolute path is returned unchanged; a renamed path is also searched under its new name. `validator` replaces the
    check for existence. Use only for input files: the result may be in the installed package.
    """
    path = Path(rel_path)
    if path.is_absolute():
        return path
    accepts = validator or Path.exists
    roots = component_search_roots()
    existing = next((root / path for root in roots if accepts(root / path)), None)
    if existing is None and (new := follow_rename(path)) is not None:
        existing = next((root / new for root in roots if accepts(root / new)), None)
    return existing or roots[0] / path


def current_path(path: str | Path) -> Path | None:
    """Return the current form of a relative path of an earlier release, or None for any other path."""
    for earlier, current in RENAMED_FOLDERS.items():
        if Path(path).is_relative_to(earlier):
            return Path(current) / Path(path).relative_to(earlier)
    return None


def follow_rename(path: str | Path) -> Path | None:
    """Return the new path of a path that was renamed since an earlier release, and warn once; None for other paths."""
    new = current_path(path)
    if new is not None:
        _warn_of_rename(Path(*Path(path).parts[:2]))
    return new


@cache
def _warn_of_rename(folder: Path) -> None:
    logger.warning("%s is called %s now; the earlier name still works", folder, current_path(folder))


def _augment_sys_path(*, with_working_directory: bool = True) -> None:
    """Put extra roots first on `sys.path`, the working directory and the installed package last. Idempotent.

    Component folders of all of them can be imported from then on.

    Commands leave the working directory out until they import a server folder, so that a stray module of that
    directory (`json.py`, `wandb.py`) is never imported.
    """
    first = [str(root) for root in extra_roots()]
    last = [str(Path.cwd()), str(PARENT_DIR)]
    elsewhere = {*first, *last} if with_working_directory else {*first, *last, ""}  # "" is the working directory
    middle = [entry for entry in sys.path if entry not in elsewhere]
    sys.path[:] = list(dict.fromkeys([*first, *middle, *(last if with_working_directory else last[1:])]))
    install_finder()
