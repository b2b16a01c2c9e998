"""Writing new files, all of them or none, and never over what is there."""

import keyword
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nemo_gym.catalog.files import whole_file
from nemo_gym.errors import ConfigError

FORM = re.compile(r"[a-z][a-z0-9_]*")


class ScaffoldConflictError(ConfigError, FileExistsError):
    """Something else is already where a new file would be."""


@dataclass(frozen=True)
class ScaffoldResult:
    """What was made, and what was there already as it would have been made."""

    asset_dir: Path
    created: tuple[Path, ...]
    existing: tuple[Path, ...] = ()


def checked_name(name: str) -> str:
    """`name`, if a folder and a Python module can be called that.

    Raises:
        ConfigError: it cannot; a name that could is offered.
    """
    if FORM.fullmatch(name) and not keyword.iskeyword(name):
        return name
    offer = re.sub(r"\W+", "_", name.lower(), flags=re.ASCII).strip("_")
    if not FORM.fullmatch(offer) or keyword.iskeyword(offer):
        offer = f"my_{offer}".rstrip("_")
    raise ConfigError(f"'{name}' cannot be the name of a Python module", where="name", fix=offer)


def write_all(root: Path, asset_dir: Path, files: Mapping[Path, str]) -> ScaffoldResult:
    """Write the files, whose paths lie below `root`. Those that are there and say the same are kept.

    Raises:
        ScaffoldConflictError: a file is there that says something else, or leads elsewhere; nothing was written.
        ConfigError: one could not be written; nothing is left of the others.
    """
    existing = {path: text for path, text in files.items() if path.exists() or path.is_symlink()}
    differing = [path for path, text in existing.items() if not _says(path, text)]
    differing += [folder for path in files for folder in _links(root, path) if folder not in differing]
    if differing:
        shown = ", ".join(str(path.relative_to(root)) for path in dict.fromkeys(differing))
        raise ScaffoldConflictError(
            f"exists already and is left as it is: {shown}", where=str(asset_dir), fix="another name"
        )
    created: list[Path] = []
    made: list[Path] = []
    try:
        for path, text in files.items():
            if path not in existing:
                made += [folder for folder in reversed(path.parents) if not folder.exists()]
                with whole_file(path) as stream:
                    stream.write(text.encode())
                created.append(path)
    except OSError as error:
        _undo(created, made)
        raise ConfigError(f"cannot be written: {error.strerror}", where=str(asset_dir)) from error
    return ScaffoldResult(asset_dir, tuple(created), tuple(existing))


def _says(path: Path, text: str) -> bool:
    return path.is_file() and not path.is_symlink() and path.read_bytes() == text.encode()


def _links(root: Path, path: Path) -> list[Path]:
    """The folders between `root` and `path` that are links: who follows them writes somewhere else."""
    return [folder for folder in path.parents if folder.is_relative_to(root) and folder != root and folder.is_symlink()]


def _undo(created: list[Path], made: list[Path]) -> None:
    for path in created:
        path.unlink(missing_ok=True)
    for folder in reversed(made):
        with suppress(OSError):  # somebody else has put something there meanwhile
            folder.rmdir()
