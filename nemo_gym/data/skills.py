"""Skills: folders of instructions for agents, each with a `SKILL.md`.

A row records the skills of its run: their path, a hash of all files, and name, description and version of each skill.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from nemo_gym.errors import GymError

SKILL_FILE = "SKILL.md"
HASH_LENGTH = 12
HEADER = re.compile(r"---\s*\n(.*?)^---\s*$", re.DOTALL | re.MULTILINE)
IGNORED_FOLDERS = frozenset({"__pycache__", ".git"})
"""Folders that are not part of the skills."""


class SkillsError(GymError, ValueError):
    """A skills folder cannot be used."""


class SkillsConfig(BaseModel):
    """The skills for the agents of a run."""

    path: str
    """A folder of skill folders."""


class Skill(BaseModel):
    """The header of one `SKILL.md`."""

    name: str
    description: str | None = None
    version: str | None = None


class SkillsRef(BaseModel):
    """What a row records about the skills of its run."""

    path: str
    hash: str
    skills: list[Skill]


def load_skill_directory(path: str | Path) -> SkillsRef:
    """Return the `skills_ref` of rows: absolute path, hash, and each skill's name, description and version.

    Raises:
        SkillsError: (a ValueError) the folder is missing or has no skills, a skill is malformed, or two skills have the
            same name.
    """
    root = _existing_folder(path)
    if (root / SKILL_FILE).is_file():
        raise SkillsError("this is one skill, not a folder of skills", where=str(root), fix=f"use {root.parent}")
    folders = sorted(entry for entry in root.iterdir() if entry.is_dir() and entry.name not in IGNORED_FOLDERS)
    skills = [parse_skill_md(folder / SKILL_FILE) for folder in folders]
    if not skills:
        raise SkillsError("the folder has no skills", where=str(root), fix=f"add <skill>/{SKILL_FILE}")
    names = [skill.name for skill in skills]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise SkillsError(f"two skills have the name {duplicates[0]!r}", where=str(root), fix="rename one of them")
    return SkillsRef(path=str(root), hash=hash_skill_dir(root), skills=skills)


def parse_skill_md(path: str | Path) -> Skill:
    """Read name, description and version from the header of a `SKILL.md`; a missing description or version is None.

    Raises:
        SkillsError: (a ValueError) the file is missing, has no header, or its header has no name.
    """
    file = Path(path)
    location = str(file)
    header = _parse_header(file)
    name, description = header.get("name"), header.get("description")
    if not isinstance(name, str) or not name.strip():
        raise SkillsError("the header has no name", where=location, fix="add 'name: <name of the skill>'")
    if description is not None and not isinstance(description, str):
        raise SkillsError("the description must be text", where=location)
    metadata = header.get("metadata")
    version = metadata.get("version") if isinstance(metadata, dict) else None
    return Skill(name=name, description=description, version=None if version is None else str(version))


def hash_skill_dir(path: str | Path) -> str:
    """Return a hash of twelve hexadecimal digits over the paths and contents of all files.

    The hash is the same on every machine: it does not depend on times, modes or the order of the file system.
    """
    root = _existing_folder(path)
    digest = hashlib.sha256()
    for relative, file in _files(root):
        content = file.read_bytes()
        # The lengths distinguish "ab" + "c" from "a" + "bc".
        digest.update(f"{len(os.fsencode(relative))}:{len(content)}:".encode())
        digest.update(os.fsencode(relative))
        digest.update(content)
    return digest.hexdigest()[:HASH_LENGTH]


def stage_skills(path: str | Path, dest: str | Path) -> Path:
    """Copy the skills into `dest` and return it; existing files of the same name are replaced, others are kept.

    Raises:
        SkillsError: (a ValueError) the folder is missing, has a link or file that cannot be copied, contains `dest` or
            is inside it.
    """
    root = _existing_folder(path)
    target = Path(dest)
    if target.resolve().is_relative_to(root) or root.is_relative_to(target.resolve()):
        raise SkillsError(f"cannot copy into {target}: one folder contains the other", where=str(root))
    files = list(_files(root))
    target.mkdir(parents=True, exist_ok=True)
    for relative, file in files:
        copy = target / relative
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.unlink(missing_ok=True)  # so that copying does not write through an existing link
        shutil.copy(file, copy)
    return target


def _existing_folder(path: str | Path) -> Path:
    folder = Path(path).resolve()
    if not folder.is_dir():
        raise SkillsError("skills folder not found", where=str(path), fix="check skills.path")
    return folder


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield every file below `root`, except in ignored folders, with its relative path; sorted by path.

    Links to files inside `root` are followed. Other links, and files that are not regular, raise SkillsError.
    """
    entries: list[tuple[str, Path]] = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in IGNORED_FOLDERS]
        linked_folders = [name for name in folders if Path(folder, name).is_symlink()]  # os.walk does not enter them
        for name in (*linked_folders, *files):
            file = Path(folder, name)
            if not file.resolve().is_relative_to(root):
                fix = "replace the link by a copy"
                raise SkillsError("the link points outside the skills folder", where=str(file), fix=fix)
            if not file.is_file():
                fix = "replace it by a regular file, or remove it"
                raise SkillsError("not a regular file", where=str(file), fix=fix)
            entries.append((file.relative_to(root).as_posix(), file))
    yield from sorted(entries, key=lambda entry: os.fsencode(entry[0]))


def _parse_header(file: Path) -> dict[str, Any]:
    """Parse the YAML header between the first two `---` lines."""
    location = str(file)
    if not file.is_file():
        raise SkillsError(f"file not found: {SKILL_FILE}", where=str(file.parent), fix="add it, or remove the folder")
    try:
        match = HEADER.match(file.read_text(encoding="utf-8-sig"))
        if match is None:
            raise SkillsError("the file must begin with a header between two lines '---'", where=location)
        header = yaml.safe_load(match[1])
    except UnicodeDecodeError:
        raise SkillsError("the file is not UTF-8 text", where=location) from None
    except yaml.YAMLError as error:
        raise SkillsError(f"the header is not valid YAML: {error}", where=location) from None
    if not isinstance(header, dict):
        raise SkillsError("the header must have the form 'name: …'", where=location)
    return header
