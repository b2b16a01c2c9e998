"""The folders in which components and configuration files are looked for, earliest first.

Extra roots (`NEMO_GYM_EXTRA_ROOTS`, `--search-dir`) shadow the working directory, which shadows what is installed.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from nemo_gym.config.renamed import current_path, rename_note
from nemo_gym.keys import EXTRA_ROOTS_ENV_VAR

logger = logging.getLogger(__name__)

NEMO_GYM_EXTRA_ROOTS_ENV_VAR_NAME = EXTRA_ROOTS_ENV_VAR

ROOT_DIR = Path(__file__).resolve().parent.parent
PARENT_DIR = ROOT_DIR.parent
WORKING_DIR = PARENT_DIR if (PARENT_DIR / "pyproject.toml").exists() else Path.cwd()
CACHE_DIR = WORKING_DIR / "cache"
RESULTS_DIR = WORKING_DIR / "results"


def extra_roots() -> list[Path]:
    """The entries of `NEMO_GYM_EXTRA_ROOTS`, read now."""
    return [Path(entry) for entry in os.environ.get(EXTRA_ROOTS_ENV_VAR, "").split(os.pathsep) if entry]


def component_search_roots(*, sys_path: Iterable[str] | None = None) -> list[Path]:
    """Folders to search, in order, each once: extra roots, `sys_path` if given, the working directory, the install."""
    ends = [Path.cwd(), PARENT_DIR]
    resolved_ends = {end.resolve() for end in ends}
    middle = [Path(entry) for entry in sys_path or () if Path(entry or ".").resolve() not in resolved_ends]
    seen: dict[Path, Path] = {}
    for root in [*extra_roots(), *middle, *ends]:
        seen.setdefault(root.resolve(), root)
    return list(seen.values())


def _resolve_under_cwd_or_install(
    rel_path: str | os.PathLike[str], *, validator: Callable[[Path], bool] | None = None
) -> Path:
    """The first root's `rel_path` that exists (or pleases `validator`), else the path under the first root.

    For reading only: what is written goes where the user said.
    """
    path = Path(rel_path)
    if path.is_absolute():
        return path
    accepts = validator or Path.exists
    roots = component_search_roots()
    found = next((root / path for root in roots if accepts(root / path)), None)
    if found is None and (now := renamed(path)) is not None:
        found = next((root / now for root in roots if accepts(root / now)), None)
    return found or roots[0] / path


def renamed(path: str | Path) -> Path | None:
    """Where a relative path of an earlier release is now, saying so once; None for every other path."""
    now = current_path(path)
    if now is not None:
        _say(rename_note(path))
    return now


@cache  # remembers what was said
def _say(note: str) -> None:
    logger.warning(note)


def _augment_sys_path() -> None:
    """Put extra roots first on `sys.path`, the working directory and the install last. Safe to repeat."""
    first = [str(root) for root in extra_roots()]
    last = [str(Path.cwd()), str(PARENT_DIR)]
    kept = [entry for entry in sys.path if entry not in first and entry not in last]
    sys.path[:] = list(dict.fromkeys([*first, *kept, *last]))
