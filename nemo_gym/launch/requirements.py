"""Read the requirements of a server folder and check them against this interpreter."""

import ast
import platform
import re
import tomllib
from collections.abc import Iterator
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
COMPAT_PACKAGES = {
    "datasets": "datasets>=4",
    "jinja2": "jinja2>=3.1",
    "mlflow": "mlflow-skinny>=3",
    "numpy": "numpy>=2",
    "openai": "openai>=2.7",
    "pandas": "pandas>=2.3",
    "psutil": "psutil>=7",
    "pyarrow": "pyarrow>=21",
    "ray": "ray[default]>=2.56",
    "requests": "requests>=2.32",
    "scipy": "scipy>=1.16",
    "tqdm": "tqdm>=4.67",
    "wandb": "wandb>=0.22",
    "yappi": "yappi>=1.7.6",
}
"""Modules that folders written for NeMo Gym import without requiring them, because its core brings them.

A folder whose requirements name nemo-gym gets those that it imports; the extra `compat` has all of them.
"""
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
        lines = [str(line) for line in read_pyproject(path).get("project", {}).get("dependencies", [])]
    else:
        text = (line.split(" #")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
        lines = [line for line in text if line and not line.startswith("#")]
    return [*lines, *_implied_packages(folder, lines)] if any(map(requires_nemo_gym, lines)) else lines


def _implied_packages(folder: Path, lines: list[str]) -> list[str]:
    """Return requirements for the packages of `COMPAT_PACKAGES` that `app.py` loads and that no line requires.

    The modules of the folder that `app.py` imports are searched, too; scripts that prepare data are not.
    """
    imported: set[str] = set()
    pending, searched = [folder / "app.py"], set()
    while pending:
        path = pending.pop()
        if path in searched or not path.is_file():
            continue
        searched.add(path)
        names = list(_imported_names(path))
        imported.update(name.partition(".")[0] for name in names)
        pending += [folder / f"{part}.py" for name in names for part in name.split(".")]
    required = {canonicalize_name(match[0]) for line in lines if (match := re.match(r"[\w.-]+", line))}
    packages = {name: line for name, line in COMPAT_PACKAGES.items() if name in imported}
    return [line for line in packages.values() if canonicalize_name(Requirement(line).name) not in required]


def _imported_names(path: Path) -> Iterator[str]:
    """Yield the full names that a module imports at its top level; none if it cannot be parsed."""
    try:
        statements = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return
    for statement in statements:
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            prefix = f"{statement.module}." if statement.module else ""
            yield from (("." * statement.level) + prefix + alias.name for alias in statement.names)


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
