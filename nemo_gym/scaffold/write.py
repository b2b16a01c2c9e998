"""Writing a new resources server or environment, all of it or nothing, and never over what is there."""

import json
import keyword
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from string import Template

from nemo_gym.errors import ConfigError
from nemo_gym.scaffold import templates

FORM = re.compile(r"[a-z][a-z0-9_]*")


class ScaffoldConflictError(ConfigError, FileExistsError):
    """Something is already where the new folder would be."""


@dataclass(frozen=True)
class ScaffoldResult:
    """What was made."""

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


def scaffold_resources_server(directory: Path, checkout_root: Path | None = None) -> ScaffoldResult:
    """Write a resources server into `directory`, whose last part is its name.

    Inside `checkout_root` its requirements name that checkout, elsewhere the published package.

    Raises:
        ScaffoldConflictError: there is something already; it is left as it is.
        ConfigError: the name cannot be one.
    """
    name = checked_name(directory.name)
    inside = checkout_root is not None and directory.absolute().is_relative_to(checkout_root)
    place = os.path.relpath(checkout_root, directory.absolute()) if inside and checkout_root else ""
    own = f"-e nemo-gym[dev] @ {place}/" if inside else "nemo-gym[dev]"
    files = {
        "__init__.py": "",
        "app.py": templates.APP,
        f"configs/{name}.yaml": templates.CONFIG,
        "data/example.jsonl": _rows(),
        "data/.gitignore": templates.DATA_IGNORED,
        "requirements.txt": "$own\n",
        "tests/__init__.py": "",
        "tests/test_app.py": templates.TESTS,
        "tests/verifier_cases.jsonl": templates.CASES,
        "README.md": templates.README,
    }
    return _write(directory, files, _words(name, own))


def scaffold_environment(root: Path, name: str, checkout_root: Path | None = None) -> ScaffoldResult:
    """Write `environments/<name>` below `root`, and its resources server unless one of that name is there.

    Raises:
        ScaffoldConflictError: the environment exists, or a server of that name that this environment cannot use.
        ConfigError: the name cannot be one.
    """
    checked_name(name)
    folder, server = root / "environments" / name, root / "resources_servers" / name
    _refuse(folder)
    if server.exists() and not (server / "configs" / f"{name}.yaml").is_file():
        raise ScaffoldConflictError(f"has no configs/{name}.yaml to build on", where=str(server), fix="another name")
    created: tuple[Path, ...] = ()
    if not server.exists():
        created = scaffold_resources_server(server, checkout_root).created
    files = {
        "__init__.py": "",
        "config.yaml": templates.ENVIRONMENT_CONFIG,
        "data/example.jsonl": _rows(),
        "README.md": templates.ENVIRONMENT_README,
    }
    made = _write(folder, files, _words(name, ""))
    return ScaffoldResult(folder, (*created, *made.created), () if created else (server,))


def _words(name: str, own: str) -> dict[str, str]:
    parts = [part for part in name.split("_") if part]
    return {
        "name": name,
        "Name": "".join(part.capitalize() for part in parts),
        "title": " ".join(parts).capitalize(),
        "own": own,
    }


def _rows() -> str:
    """Five rows that an exact match can grade."""
    rows = [
        {
            "responses_create_params": {"input": [{"role": "user", "content": templates.QUESTION.format(word=word)}]},
            "expected_answer": word[::-1],
        }
        for word in templates.WORDS
    ]
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def _refuse(folder: Path) -> None:
    if folder.exists() or folder.is_symlink():
        raise ScaffoldConflictError("exists already and is left as it is", where=str(folder), fix="another name")


def _write(folder: Path, files: Mapping[str, str], words: Mapping[str, str]) -> ScaffoldResult:
    """Write the files beside `folder`, then give them its name in one step."""
    _refuse(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = folder.with_name(f".{folder.name}.{token_hex(4)}")
    try:
        for relative, text in files.items():
            path = unfinished / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            filled = text if path.suffix == ".jsonl" else Template(text).substitute(words)
            path.write_text(filled, encoding="utf-8")
        unfinished.rename(folder)
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", where=str(folder)) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return ScaffoldResult(folder, tuple(folder / relative for relative in files))
