"""Read the requirements of a server folder and check them against this interpreter."""

import platform
import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from nemo_gym.errors import ConfigError

NEMO_GYM = "nemo-gym"
TEST_EXTRA = "dev"
"""The extra of nemo-gym that the tests of a folder need and its server does not."""
SOURCE_OPTIONS = ("--index-url", "-i ", "--extra-index-url", "--find-links", "-f ", "--pre", "--prefer-binary")
"""Starts of lines that set package sources and require no package."""


def requirement_file(folder: Path) -> Path | None:
    """Return `requirements.txt` or `pyproject.toml` of a folder; None if it has neither.

    Raises:
        ConfigError: both files exist.
    """
    lines, project = folder / "requirements.txt", folder / "pyproject.toml"
    if lines.exists() and project.exists():
        raise ConfigError("has both requirements.txt and pyproject.toml", where=str(folder), fix="delete one of them")
    return next((path for path in (lines, project) if path.exists()), None)


def read_pyproject(path: Path) -> dict[str, Any]:
    """Return the content of a `pyproject.toml`.

    Raises:
        ConfigError: the file is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"is not valid TOML: {error}", where=str(path)) from error


def required_packages(folder: Path) -> list[str]:
    """Return the lines of `requirements.txt` without comments, or the dependencies of `pyproject.toml`."""
    path = requirement_file(folder)
    if path is None:
        return []
    if path.name == "pyproject.toml":
        return [str(line) for line in read_pyproject(path).get("project", {}).get("dependencies", [])]
    lines = (line.split(" #")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def required_python(folder: Path) -> SpecifierSet | None:
    """Return `requires-python` of a folder's pyproject.toml; None if it is missing.

    Raises:
        ConfigError: `requires-python` is not a version specifier.
    """
    path = requirement_file(folder)
    if path is None or path.name != "pyproject.toml":
        return None
    specifier = read_pyproject(path).get("project", {}).get("requires-python")
    try:
        return SpecifierSet(specifier) if specifier else None
    except InvalidSpecifier as error:
        raise ConfigError(f"requires-python = {specifier!r} is not a version specifier", where=str(path)) from error


def unmet_requirements(folder: Path) -> list[str]:
    """Return the requirements of `folder` that this interpreter does not meet, such as `numpy>2` or `python>=3.13`.

    Raises:
        ConfigError: the folder's files are ambiguous or invalid.
    """
    python = required_python(folder)
    has_other_version = python is not None and not python.contains(platform.python_version())
    unmet = [line for line in required_packages(folder) if not _is_met(line)]
    return [*unmet, f"python{python}"] if has_other_version else unmet


def has_test_tools() -> bool:
    """Return True if this interpreter can run the tests of server folders."""
    return _is_extra_met(NEMO_GYM, TEST_EXTRA)


def requires_nemo_gym(line: str) -> bool:
    """Return True if a line requires nemo-gym, such as the usual first line `-e nemo-gym[dev] @ ../../`."""
    if re.fullmatch(r"-e\s+\.\./\.\./?(\[[^]]*\])?", line):
        return True
    name = re.match(r"(?:-e\s+)?([\w.-]+)", line)
    return name is not None and canonicalize_name(name[1]) == NEMO_GYM


def nemo_gym_extras(line: str) -> set[str]:
    """Return the extras in a line that requires nemo-gym: `{"dev"}` for `-e nemo-gym[dev] @ ../../`."""
    extras = line.partition("[")[2].partition("]")[0]
    return {extra.strip() for extra in extras.split(",") if extra.strip()}


def _is_met(line: str) -> bool:
    """Return True if this interpreter meets the requirement in a line; False if it cannot be parsed or names a URL."""
    if line.startswith(SOURCE_OPTIONS):
        return True
    if requires_nemo_gym(line):
        return all(_is_extra_met(NEMO_GYM, extra) for extra in nemo_gym_extras(line) - {TEST_EXTRA})
    try:
        requirement = Requirement(line.removeprefix("-e ").strip())
    except InvalidRequirement:
        return False
    if requirement.marker is not None and not requirement.marker.evaluate():
        return True
    if requirement.url:
        return False
    return _is_installed(requirement) and all(_is_extra_met(requirement.name, extra) for extra in requirement.extras)


def _is_installed(requirement: Requirement) -> bool:
    try:
        return requirement.specifier.contains(version(requirement.name), prereleases=True)
    except PackageNotFoundError:
        return False


def _is_extra_met(package: str, extra: str) -> bool:
    """Return True if the packages that an extra adds are installed; extras of extras are not checked."""
    try:
        requirements = [Requirement(line) for line in requires(package) or ()]
    except PackageNotFoundError:
        return package == NEMO_GYM  # run from a source tree, without metadata that lists the extra
    added = [
        requirement
        for requirement in requirements
        if (marker := requirement.marker) is not None
        and marker.evaluate({"extra": extra})
        and not marker.evaluate({"extra": ""})
    ]
    return all(map(_is_installed, added))
