"""What a server folder says it needs, and whether this interpreter already has it."""

import re
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from nemo_gym.errors import ConfigError

OURS = "nemo-gym"
TEST_EXTRA = "dev"
"""What a folder's own tests need; running its server does not."""
WHERE_OPTIONS = ("--index-url", "-i ", "--extra-index-url", "--find-links", "-f ", "--pre", "--prefer-binary")
"""Lines that say where packages come from, and ask for none."""


def requirement_file(folder: Path) -> Path | None:
    """The one file in which a folder says what it needs, if it says anything.

    Raises:
        ConfigError: both files exist, so nobody can say which one counts.
    """
    listed, project = folder / "requirements.txt", folder / "pyproject.toml"
    if listed.exists() and project.exists():
        raise ConfigError(
            "has both requirements.txt and pyproject.toml", where=str(folder), fix="keep the one that counts"
        )
    return next((path for path in (listed, project) if path.exists()), None)


def project_table(path: Path) -> dict[str, Any]:
    """A folder's `pyproject.toml`.

    Raises:
        ConfigError: it is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"is not valid TOML: {error}", where=str(path)) from error


def packages(folder: Path) -> list[str]:
    """The lines of `requirements.txt`, or the dependencies of `pyproject.toml`."""
    path = requirement_file(folder)
    if path is None:
        return []
    if path.name == "pyproject.toml":
        return [str(line) for line in project_table(path).get("project", {}).get("dependencies", [])]
    lines = (line.split(" #")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def wanted_python(folder: Path) -> SpecifierSet | None:
    """The Python versions a folder's project file allows; None when it does not care.

    Raises:
        ConfigError: `requires-python` is not a version specifier.
    """
    path = requirement_file(folder)
    if path is None or path.name != "pyproject.toml":
        return None
    wish = project_table(path).get("project", {}).get("requires-python")
    try:
        return SpecifierSet(wish) if wish else None
    except InvalidSpecifier as error:
        raise ConfigError(f"requires-python = {wish!r} is not a version specifier", where=str(path)) from error


def declared(folder: Path) -> list[str]:
    """Everything `folder` asks for, as lines; a Python other than this one is a line like `python>=3.13`.

    Raises:
        ConfigError: it cannot be said what the folder asks for.
    """
    wish = wanted_python(folder)
    here = ".".join(str(part) for part in sys.version_info[:3])
    return [*packages(folder), *([f"python{wish}"] if wish is not None and not wish.contains(here) else [])]


def unsatisfied(folder: Path) -> list[str]:
    """The requirements of `folder` that the running interpreter does not meet; empty when it can be hosted here."""
    return [line for line in declared(folder) if not _is_met(line)]


def has_test_tools() -> bool:
    """Whether this interpreter can run the tests of server folders."""
    return _extra_is_met(OURS, TEST_EXTRA)


def is_ours(line: str) -> bool:
    """Whether a line asks for this very package, as `-e nemo-gym[dev] @ ../../`, the customary first line, does."""
    if re.fullmatch(r"-e\s+\.\./\.\./?(\[[^]]*\])?", line):
        return True
    name = re.match(r"(?:-e\s+)?([\w.-]+)", line)
    return name is not None and canonicalize_name(name[1]) == OURS


def extras_of_ours(line: str) -> set[str]:
    """The extras that a line asking for this package names: `{"dev"}` for `-e nemo-gym[dev] @ ../../`."""
    inside = line.partition("[")[2].partition("]")[0]
    return {extra.strip() for extra in inside.split(",") if extra.strip()}


def _is_met(line: str) -> bool:
    if line.startswith(WHERE_OPTIONS):
        return True
    if is_ours(line):
        return all(_extra_is_met(OURS, extra) for extra in extras_of_ours(line) - {TEST_EXTRA})
    try:
        wanted = Requirement(line.removeprefix("-e ").strip())
    except InvalidRequirement:
        return False
    if wanted.marker is not None and not wanted.marker.evaluate():
        return True
    if wanted.url:
        return False
    return _is_installed(wanted) and all(_extra_is_met(wanted.name, extra) for extra in wanted.extras)


def _is_installed(wanted: Requirement) -> bool:
    try:
        return wanted.specifier.contains(version(wanted.name), prereleases=True)
    except PackageNotFoundError:
        return False


def _extra_is_met(package: str, extra: str) -> bool:
    """Whether what an extra adds is installed; extras of extras are believed."""
    try:
        added = [Requirement(line) for line in requires(package) or ()]
    except PackageNotFoundError:
        return package == OURS  # run from a source tree: nothing says what the extra is
    surroundings: Mapping[str, str] = {"extra": extra}
    return all(
        _is_installed(one)
        for one in added
        if one.marker is not None and one.marker.evaluate(dict(surroundings)) and not one.marker.evaluate({"extra": ""})
    )
