"""Install programs that servers start, such as coding agents: npm packages and Python packages in separate folders.

Servers with the same packages share a folder, which is named after a hash of its content and never changed afterwards.
"""

import asyncio
import hashlib
import json
import os
import re
import shutil
import signal
import stat
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from nemo_gym.config.search_roots import CACHE_DIR
from nemo_gym.errors import ConfigError
from nemo_gym.launch.supervisor import TAIL_LINES, LineCallback
from nemo_gym.launch.venv_build import (
    UV_LAUNCHER,
    InstallFailed,
    find_interpreter,
    holding_lock,
    likely_install_cause,
    uv_executable,
    without_credentials,
)
from nemo_gym.processes import signal_group

PROGRAMS_KEY = "programs"
"""The key of a server block with the packages of its programs."""
INSTALL_SECONDS = 1800.0
_INSTALLER_VARIABLES = {
    "UV_COMPILE_BYTECODE": "1",  # boxes cannot write it, and would compile every module at every start
    "UV_PYTHON_DOWNLOADS": "never",
    "UV_NO_PROGRESS": "1",
    "npm_config_update_notifier": "false",
}
STAMP = "programs.json"
"""Name of the file that is written last; an installation without it is incomplete."""
_EXACT_VERSION = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")
_NPM_NAME = re.compile(r"(@[a-z0-9._~-]+/)?[a-z0-9._~-]+")
_PINNED = re.compile(r"[A-Za-z0-9._-]+(\[[A-Za-z0-9._,-]+\])?==\d[^\s;*,]*")


class Programs(BaseModel):
    """The packages with the programs of a server. Versions are exact, so that results can be repeated."""

    model_config = ConfigDict(extra="forbid")

    npm: dict[str, str] = {}
    """Packages and their versions."""
    npm_scripts: list[str] = []
    """Packages whose installation scripts run; those of other packages do not."""
    pip: list[str] = []
    """Requirements `name==version`, installed in a virtual environment."""

    @field_validator("npm")
    @classmethod
    def _check_versions(cls, packages: dict[str, str]) -> dict[str, str]:
        for name, version in packages.items():
            if not _NPM_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not the name of an npm package")
            if not _EXACT_VERSION.fullmatch(version):
                raise ValueError(f"{name}: {version!r} is not an exact version")
        return packages

    @field_validator("pip")
    @classmethod
    def _check_pins(cls, requirements: list[str]) -> list[str]:
        for requirement in requirements:
            if not _PINNED.fullmatch(requirement):
                raise ValueError(f"{requirement!r} must have the form name==version")
        return requirements

    @model_validator(mode="after")
    def _check_scripts(self) -> "Programs":
        if unknown := sorted(set(self.npm_scripts) - set(self.npm)):
            raise ValueError(f"npm_scripts: {', '.join(unknown)} must be listed in `npm`")
        return self

    @property
    def is_empty(self) -> bool:
        return not self.npm and not self.pip

    @property
    def packages(self) -> str:
        """Return the packages as text, for messages."""
        return ", ".join([*(f"{name}@{version}" for name, version in self.npm.items()), *self.pip])

    def folder(self, cache_dir: str | Path | None = None) -> Path:
        """Return the folder in which the packages are installed."""
        content = {**self.model_dump(), "python": list(sys.version_info[:2])}
        key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:20]
        return Path(cache_dir or CACHE_DIR) / "programs" / key

    def search_folders(self, installed: Path) -> list[Path]:
        """Return the folders of the programs in an installation, for `PATH`."""
        npm = [installed / "node_modules" / ".bin"] if self.npm else []
        return [*npm, installed / "venv" / "bin"] if self.pip else npm


def programs_of(blocks: Mapping[str, Any]) -> dict[str, Programs]:
    """Return the programs of every server block of a configuration by instance name.

    Raises:
        ConfigError: the description of a program is invalid.
    """
    programs_by_instance: dict[str, Programs] = {}
    for instance, kinds in blocks.items():
        for kind in kinds.values() if isinstance(kinds, Mapping) else ():
            for name, block in kind.items() if isinstance(kind, Mapping) else ():
                value = block.get(PROGRAMS_KEY) if isinstance(block, Mapping) else None
                if not isinstance(value, Mapping):
                    continue
                try:
                    programs = Programs.model_validate(value)
                except ValidationError as error:
                    problem = "; ".join(str(each["msg"]) for each in error.errors())
                    raise ConfigError(problem, where=f"{instance}.{name}.{PROGRAMS_KEY}") from None
                if not programs.is_empty:
                    programs_by_instance[instance] = programs
    return programs_by_instance


def is_installed(folder: Path) -> bool:
    """Return whether an installation is complete."""
    return (folder / STAMP).exists()


async def install_programs(programs: Programs, folder: Path, where: str, on_line: LineCallback | None = None) -> bool:
    """Install programs into a folder; return False if they are installed already.

    Raises:
        InstallFailed: they could not be installed; the error has the cause and the last lines of the installer.
        ConfigError: npm is missing.
    """
    if is_installed(folder):
        return False
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        async with holding_lock(folder.with_name(f"{folder.name}.lock"), where) as lock:
            if is_installed(folder):
                return False
            async with asyncio.timeout(INSTALL_SECONDS):
                await _install(_ProgramInstaller(folder, where, lock, on_line), programs)
            return True
    except TimeoutError:
        raise InstallFailed(f"its programs were not installed after {INSTALL_SECONDS:g} s", where=where) from None
    except OSError as error:
        if isinstance(error, InstallFailed):
            raise
        raise InstallFailed(f"its programs cannot be installed in {folder}: {error.strerror}", where=where) from error


@dataclass(frozen=True)
class _ProgramInstaller:
    """Runs npm and uv for one folder and explains their failures."""

    folder: Path
    where: str
    lock: BinaryIO
    on_line: LineCallback | None

    async def run(self, program: str, *arguments: str) -> None:
        """Run an installer to its end.

        Raises:
            InstallFailed: it failed, with the likely cause and its last lines.
        """
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-ISc", UV_LAUNCHER, str(os.getpid()), program, *arguments,
            cwd=self.folder,
            env={**os.environ, **_INSTALLER_VARIABLES},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            pass_fds=[self.lock.fileno()],
            start_new_session=True,
        )  # fmt: skip
        lines: deque[str] = deque(maxlen=TAIL_LINES)
        try:
            assert process.stdout is not None
            async for raw_line in process.stdout:
                line = without_credentials(raw_line.decode("utf-8", "replace").rstrip())
                lines.append(line)
                if self.on_line:
                    self.on_line(self.where, line)
            status = await process.wait()
        except BaseException:
            signal_group(process.pid, signal.SIGKILL)
            await process.wait()
            raise
        if status:
            name, tail = Path(program).name, "\n".join(lines)
            cause, fix = likely_install_cause(tail)
            problem = f"its programs cannot be installed: {cause} ({name} ended with status {status}); last lines:\n"
            failure = InstallFailed(problem + tail, where=self.where, fix=fix)
            failure.status = status if status > 0 else 1
            raise failure


async def _install(installer: _ProgramInstaller, programs: Programs) -> None:
    """Install the packages from scratch, and write the stamp file last."""
    folder = installer.folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    if programs.npm:
        await _install_npm(installer, programs)
    if programs.pip:
        uv, venv = str(uv_executable()), folder / "venv"
        python = find_interpreter(sys.executable)
        await installer.run(uv, "venv", "--clear", "--no-project", "--python", python, str(venv))
        await installer.run(uv, "pip", "install", "--python", str(venv / "bin" / "python"), *programs.pip)
    await asyncio.to_thread(_make_readable, folder)
    partial = folder / f"{STAMP}.partial"
    partial.write_text(programs.model_dump_json(indent=2), encoding="utf-8")
    partial.replace(folder / STAMP)


def _make_readable(folder: Path) -> None:
    """Let every user read a folder: boxes have separate users, and the umask of this process may forbid it."""
    folder.chmod(0o755)
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(parent, name)
            mode = path.lstat().st_mode
            if not stat.S_ISLNK(mode):
                path.chmod(stat.S_IMODE(mode) | 0o444 | (0o111 if mode & stat.S_IXUSR else 0))


async def _install_npm(installer: _ProgramInstaller, programs: Programs) -> None:
    npm = shutil.which("npm")
    if npm is None:
        fix = "install nodejs with npm"
        raise ConfigError(f"npm is not installed, and {programs.packages} needs it", where=installer.where, fix=fix)
    prefix = ("--prefix", str(installer.folder), "--no-audit", "--no-fund", "--loglevel", "error")
    packages = [f"{name}@{version}" for name, version in programs.npm.items()]
    await installer.run(npm, "install", *prefix, "--ignore-scripts", "--save-exact", *packages)
    if programs.npm_scripts:
        await installer.run(npm, "rebuild", *prefix, *programs.npm_scripts)
