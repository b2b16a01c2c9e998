"""Build virtual environments of servers with uv. During a venv build, a lock keeps other processes from the folder."""

import asyncio
import errno
import fcntl
import json
import logging
import os
import re
import shutil
import signal
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import BinaryIO

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from nemo_gym.errors import ConfigError
from nemo_gym.launch.requirements import NEMO_GYM
from nemo_gym.launch.supervisor import TAIL_LINES, LineCallback, ServerDidNotStart
from nemo_gym.launch.venv import STAMP, Venv, VenvSettings, merge_equal_venvs
from nemo_gym.processes import signal_group

logger = logging.getLogger(__name__)

CONCURRENT_BUILDS = 4
BUILD_SECONDS = 3600.0
LOCK_PAUSE = 0.1

# Runs uv with PR_SET_PDEATHSIG, so that uv is killed with the command and does not continue to write files.
UV_LAUNCHER = """
import os, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, 9)
    if os.getppid() != int(sys.argv[1]):
        raise SystemExit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class InstallFailed(ServerDidNotStart):
    """A server's virtual environment could not be built."""

    status: int = 1
    """The installer's exit status."""


CAUSES: tuple[tuple[str, str, str], ...] = (
    (r"No space left|os error 28|quota exceeded", "the disk is full",
     "free some space, or point uv_venv_dir and uv_cache_dir at another disk"),
    (r"No interpreter found|Failed to inspect Python|No Python at|Python .* not found",
     "the Python it requires is not on this machine",
     "install that Python, or change 'requires-python' or 'python_version'"),
    (r"No solution found|unsatisfiable|not found in the package registry|no version of|conflicting URLs",
     "its requirements cannot be met", "correct its requirements.txt or pyproject.toml"),
    (r"Failed to fetch|error sending request|dns error|[Cc]onnection (refused|reset)|timed out|tcp connect",
     "the package registry cannot be reached",
     "check the network and UV_INDEX_URL; `gym env prefetch` builds environments in advance"),
    (r"Permission denied|os error 13|Read-only file system", "the folder cannot be written",
     "point uv_venv_dir at a writable folder"),
    (r"Failed to build|build backend", "one of its requirements could not be built",
     "read the lines above; a compiler or header may be missing"),
    (r"Couldn't parse|Failed to parse|Expected one of|Invalid", "its requirements cannot be read",
     "correct its requirements.txt or pyproject.toml"),
)  # fmt: skip
"""Pattern of a line of uv, the cause that the line shows, and the fix."""


def likely_install_cause(output: str) -> tuple[str, str | None]:
    """Return the likely reason why an installer failed, from its last lines, and a fix if one is known."""
    for pattern, cause, fix in CAUSES:
        if re.search(pattern, output):
            return cause, fix
    return "the installer failed", None


def uv_executable() -> Path:
    """Return the uv that is installed with this Python, else the one on PATH.

    Raises:
        ConfigError: uv is not installed.
    """
    try:
        return Path(import_module("uv").find_uv_bin())
    except (ImportError, FileNotFoundError):
        sibling = Path(sys.executable).with_name("uv")
        path = str(sibling) if sibling.exists() else shutil.which("uv")
    if path is None:
        raise ConfigError(
            "uv, which builds the virtual environments of servers, is not installed", where="uv", fix="pip install uv"
        )
    return Path(path)


def find_interpreter(python: str, installations: Path | None = None) -> str:
    """Return the newest Python installed next to ours that satisfies `python`: a version, a specifier or a path.

    Without one, or for a path, return `python` itself. uv then searches PATH, where the shims of version managers find
    one version only.
    """
    if Path(python).is_absolute():
        return python
    specifier = python
    if python[:1].isdigit():
        specifier = f"=={python}" if python.count(".") > 1 else f"=={python}.*"
    try:
        allowed = SpecifierSet(specifier)
    except InvalidSpecifier:
        return python
    candidates = []
    for folder in (installations or Path(sys.base_prefix).parent).iterdir():
        version = re.fullmatch(r"(?:cpython-)?(\d+\.\d+\.\d+)(?:-.*)?", folder.name)
        if version and allowed.contains(version[1]) and (folder / "bin" / "python3").exists():
            candidates.append((Version(version[1]), str(folder / "bin" / "python3")))
    return max(candidates)[1] if candidates else python


async def build_venvs(venvs: Iterable[Venv], settings: VenvSettings, on_line: LineCallback | None = None) -> None:
    """Build every missing virtual environment, CONCURRENT_BUILDS at a time; the first failure cancels the others.

    Raises:
        InstallFailed: a build failed; the error has its servers, the cause and the last lines of uv.
    """
    slots = asyncio.Semaphore(CONCURRENT_BUILDS)
    try:
        async with asyncio.TaskGroup() as group:
            for venv in merge_equal_venvs(venvs):
                group.create_task(_build_if_missing(venv, settings, slots, on_line))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None


async def try_build_venvs(
    venvs: Iterable[Venv], settings: VenvSettings, on_line: LineCallback | None = None
) -> dict[Path, InstallFailed | None]:
    """Build every missing virtual environment; return by folder the failure of its build, or None."""
    slots = asyncio.Semaphore(CONCURRENT_BUILDS)
    failures: dict[Path, InstallFailed | None] = {}

    async def try_build(venv: Venv) -> None:
        try:
            failures[venv.target] = None
            await _build_if_missing(venv, settings, slots, on_line)
        except InstallFailed as failure:
            failures[venv.target] = failure

    await asyncio.gather(*map(try_build, merge_equal_venvs(venvs)))
    return failures


async def _build_if_missing(
    venv: Venv, settings: VenvSettings, slots: asyncio.Semaphore, on_line: LineCallback | None
) -> None:
    if not is_usable(venv, settings):
        uv = uv_executable()
        async with slots:
            await build_venv(venv, settings, uv, on_line)


def is_usable(venv: Venv, settings: VenvSettings) -> bool:
    """Return True if nothing has to be installed."""
    return venv.is_ready or (settings.skip_if_present and venv.is_present)


async def build_venv(venv: Venv, settings: VenvSettings, uv: Path, on_line: LineCallback | None = None) -> bool:
    """Build one virtual environment from scratch; return False if another process built it meanwhile.

    Raises:
        InstallFailed: the virtual environment could not be built.
    """
    where = ", ".join(venv.servers)
    try:
        venv.target.parent.mkdir(parents=True, exist_ok=True)
        async with holding_lock(venv.target.with_name(f"{venv.target.name}.lock"), where) as lock:
            if is_usable(venv, settings):
                return False
            if on_line is None:  # the installer may take a minute, and its output is not shown
                logger.warning("building a virtual environment for %s in %s (once)", where, venv.target)
            async with asyncio.timeout(BUILD_SECONDS):
                await _install(_Installer(venv, settings, uv, lock, on_line))
            return True
    except TimeoutError:
        raise InstallFailed(
            f"its virtual environment was not finished after {BUILD_SECONDS:g} s", where=where
        ) from None
    except OSError as error:
        if error.errno == errno.ENOEXEC:
            raise InstallFailed(f"{uv} cannot be executed", where=where, fix="pip install uv") from error
        cause, fix = likely_install_cause(str(error.strerror))
        problem = f"its virtual environment cannot be built in {venv.target}: {cause} ({error.strerror})"
        raise InstallFailed(problem, where=where, fix=fix) from error


@dataclass(frozen=True)
class _Installer:
    """Runs uv for one virtual environment and explains its failures."""

    venv: Venv
    settings: VenvSettings
    uv: Path
    lock: BinaryIO
    on_line: LineCallback | None

    async def run(self, arguments: Sequence[str], content: str = "") -> None:
        """Run one uv command with `content` on its standard input.

        Raises:
            InstallFailed: the command failed, with the likely cause and its last lines.
        """
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-ISc", UV_LAUNCHER, str(os.getpid()), str(self.uv), *arguments,
            cwd=self.venv.folder,
            env=installer_process_env(self.settings, os.environ),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            # Inherited, so that the lock is held until the last process that writes to the folder exits.
            pass_fds=[self.lock.fileno()],
            start_new_session=True,
        )  # fmt: skip
        try:
            tail = await self._exchange(process, content)
            status = await process.wait()
        except BaseException:
            signal_group(process.pid, signal.SIGKILL)
            await process.wait()
            raise
        if status:
            cause, fix = likely_install_cause(tail)
            problem = f"its virtual environment cannot be built: {cause} (uv ended with status {status}); "
            failure = InstallFailed(f"{problem}uv's last lines:\n{tail}", where=", ".join(self.venv.servers), fix=fix)
            failure.status = status if status > 0 else 1
            raise failure

    async def _exchange(self, process: asyncio.subprocess.Process, content: str) -> str:
        """Write `content` to the process, pass on every line of its output and return the last lines."""
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(content.encode())
        process.stdin.close()
        tail: deque[str] = deque(maxlen=TAIL_LINES)
        async for raw_line in process.stdout:
            line = without_credentials(raw_line.decode("utf-8", "replace").rstrip())
            tail.append(line)
            if self.on_line:
                self.on_line(self.venv.servers[0], line)
        return "\n".join(tail)


async def _install(installer: _Installer) -> None:
    """Create the virtual environment, install its requirements, and write its stamp file last."""
    venv, settings = installer.venv, installer.settings
    recipe, target = venv.recipe, venv.target
    (target / STAMP).unlink(missing_ok=True)
    await installer.run(["venv", "--clear", "--no-project", "--python", find_interpreter(recipe.python), str(target)])
    arguments = ["pip", "install", "--python", str(venv.python), "-r", "-"]
    if recipe.constraints:
        constraints = target / "constraints.txt"
        constraints.write_text("\n".join(recipe.constraints) + "\n", encoding="utf-8")
        arguments += ["-c", str(constraints)]
    if recipe.overrides:
        arguments += ["--override", str(venv.folder / "overrides.txt")]
    if settings.verbose:
        arguments.append("-v")
    if os.environ.get("NEMO_GYM_ALLOW_PRERELEASE", "").lower() == "true":
        arguments += ["--prerelease", "allow", "--index-strategy", "unsafe-best-match"]
    await installer.run(arguments, "\n".join(recipe.lines) + "\n")
    partial = target / f"{STAMP}.partial"
    partial.write_text(json.dumps({"key": recipe.key, "recipe": asdict(recipe)}, indent=2), encoding="utf-8")
    partial.replace(target / STAMP)


def installer_process_env(settings: VenvSettings, env: Mapping[str, str]) -> dict[str, str]:
    """Return `env` for uv, without variables that select another virtual environment.

    nemo-gym is always the running one: a project of a folder may have a source for it, `[tool.uv.sources]` in its
    pyproject.toml, which is the checkout in which the folder was written.
    """
    removed = ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME")
    uv_env = {key: value for key, value in env.items() if key not in removed}
    cache = {"UV_CACHE_DIR": str(settings.cache)} if settings.cache else {}
    uv_env.setdefault("UV_PYTHON_DOWNLOADS", "never")  # downloading a Python is the user's decision
    uv_env["UV_NO_SOURCES_PACKAGE"] = f"{uv_env.get('UV_NO_SOURCES_PACKAGE', '')} {NEMO_GYM}".strip()
    return {**uv_env, **cache, "UV_COMPILE_BYTECODE": "1", "UV_NO_PROGRESS": "1"}


def without_credentials(line: str) -> str:
    """Replace the user and password of URLs in a line by `***`."""
    return re.sub(r"//[^/@\s]+@", "//***@", line)


@asynccontextmanager
async def holding_lock(path: Path, where: str) -> AsyncIterator[BinaryIO]:
    """Hold the file lock at `path` while the block runs; the kernel releases it even if this process is killed.

    Raises:
        InstallFailed: another process held the lock for BUILD_SECONDS.
    """
    with path.open("ab") as lock:
        deadline = time.monotonic() + BUILD_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    problem = f"another process has been building its virtual environment for {BUILD_SECONDS:g} s"
                    fix = f"end the process that holds {path}"
                    raise InstallFailed(problem, where=where, fix=fix) from None
                await asyncio.sleep(LOCK_PAUSE)
        yield lock
