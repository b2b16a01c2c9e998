"""Search roots: the folders that are searched for components and configuration files.

In order of precedence: extra roots (`NEMO_GYM_EXTRA_ROOTS`, `--search-dir`), working directory, installed package.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from nemo_gym.config.path_aliases import current_path, rename_notice
from nemo_gym.errors import ConfigPathNotFoundError
from nemo_gym.keys import EXTRA_ROOTS_ENV_VAR

logger = logging.getLogger(__name__)

NEMO_GYM_EXTRA_ROOTS_ENV_VAR_NAME = EXTRA_ROOTS_ENV_VAR

ROOT_DIR = Path(__file__).resolve().parent.parent
PARENT_DIR = ROOT_DIR.parent
WORKING_DIR = PARENT_DIR if (PARENT_DIR / "pyproject.toml").exists() else Path.cwd()
CACHE_DIR = WORKING_DIR / "cache"
RESULTS_DIR = WORKING_DIR / "results"


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


def find_file(path: str | Path, subject: str) -> Path:
    """Return the file `path` in the first search root that has it.

    Raises:
        ConfigPathNotFoundError: no root has the file; the message starts with `subject` and lists the searched paths.
    """
    candidates = [Path(path)] if Path(path).is_absolute() else [root / path for root in component_search_roots()]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    tried = "\n".join(f"  {candidate}" for candidate in candidates)
    raise ConfigPathNotFoundError(f"{subject} {str(path)!r} does not exist; searched\n{tried}")


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


def follow_rename(path: str | Path) -> Path | None:
    """Return the new path of a path that was renamed since an earlier release, and warn once; None for other paths."""
    new = current_path(path)
    if new is not None:
        _warn_once(rename_notice(path))
    return new


@cache
def _warn_once(note: str) -> None:
    logger.warning(note)


def _augment_sys_path() -> None:
    """Put extra roots first on `sys.path`, the working directory and the installed package last. Idempotent."""
    first = [str(root) for root in extra_roots()]
    last = [str(Path.cwd()), str(PARENT_DIR)]
    middle = [entry for entry in sys.path if entry not in first and entry not in last]
    sys.path[:] = list(dict.fromkeys([*first, *middle, *last]))
