"""Making virtual environments with uv: once, several at a time, by one process each, and finished or not at all."""

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
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import BinaryIO

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from nemo_gym.errors import ConfigError
from nemo_gym.launch.supervisor import ServerDidNotStart
from nemo_gym.launch.venv import STAMP, Environment, VenvSettings, distinct

logger = logging.getLogger(__name__)

Tell = Callable[[str, str], None]
"""Called with a server's name and a line about its environment."""

AT_ONCE = 4
LONGEST_BUILD = 3600.0
LOCK_PAUSE = 0.1
TAIL_LINES = 15

# PR_SET_PDEATHSIG: an installer must not outlive, and go on writing for, a command that was killed.
GUARD = """
import os, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, 9)
    if os.getppid() != int(sys.argv[1]):
        raise SystemExit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class InstallFailed(ServerDidNotStart):
    """A server's environment could not be made."""

    status: int = 1
    """The installer's own exit status."""


CAUSES: tuple[tuple[str, str, str], ...] = (
    (r"No space left|os error 28|quota exceeded", "the disk is full",
     "free some space, or point uv_venv_dir and uv_cache_dir at another disk"),
    (r"No interpreter found|Failed to inspect Python|No Python at|Python .* not found",
     "the Python it asks for is not on this machine",
     "install that Python, or change 'requires-python' or 'python_version'"),
    (r"No solution found|unsatisfiable|not found in the package registry|no version of|conflicting URLs",
     "its requirements cannot be met", "correct its requirements.txt or pyproject.toml"),
    (r"Failed to fetch|error sending request|dns error|[Cc]onnection (refused|reset)|timed out|tcp connect",
     "the package registry cannot be reached",
     "check the network and UV_INDEX_URL; `gym env prefetch` makes environments ahead of time"),
    (r"Permission denied|os error 13|Read-only file system", "it may not be written there",
     "point uv_venv_dir at a folder of yours"),
    (r"Failed to build|build backend", "one of its requirements could not be built",
     "read the lines above; a compiler or header may be missing"),
    (r"Couldn't parse|Failed to parse|Expected one of|Invalid", "its requirements cannot be read",
     "correct its requirements.txt or pyproject.toml"),
)  # fmt: skip


def cause_of(output: str) -> tuple[str, str | None]:
    """Why an installer failed, as far as its last words tell, and what to do about it."""
    for pattern, cause, fix in CAUSES:
        if re.search(pattern, output):
            return cause, fix
    return "the installer failed", None


def uv_executable() -> Path:
    """The installer: the one that came with this installation, else the one on the path.

    Raises:
        ConfigError: there is none.
    """
    try:
        return Path(import_module("uv").find_uv_bin())
    except (ImportError, FileNotFoundError):
        beside = Path(sys.executable).with_name("uv")
        found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        raise ConfigError(
            "uv, which makes the environments of servers with requirements of their own, is not installed",
            where="uv",
            fix="pip install uv",
        )
    return Path(found)


def interpreter(wanted: str, beside: Path | None = None) -> str:
    """What to ask uv for: a Python that sits beside ours, as version managers place them, else `wanted` as it is.

    uv searches the path, where such managers leave shims that answer for one version only.
    """
    if Path(wanted).is_absolute():
        return wanted
    try:
        form = wanted if not wanted[:1].isdigit() else f"=={wanted}" if wanted.count(".") > 1 else f"=={wanted}.*"
        allowed = SpecifierSet(form)
    except InvalidSpecifier:
        return wanted
    found = []
    for folder in (beside or Path(sys.base_prefix).parent).iterdir():
        number = re.fullmatch(r"(?:cpython-)?(\d+\.\d+\.\d+)(?:-.*)?", folder.name)
        if number and allowed.contains(number[1]) and (folder / "bin" / "python3").exists():
            found.append((Version(number[1]), str(folder / "bin" / "python3")))
    return max(found)[1] if found else wanted


async def build_all(
    environments: Iterable[Environment],
    settings: VenvSettings,
    tell: Tell | None = None,
    turns: asyncio.Semaphore | None = None,
) -> None:
    """Make every environment that is not there yet, a few at a time; the first failure ends the rest.

    Raises:
        InstallFailed: names the servers, the cause and the installer's last lines.
    """
    missing = [one for one in distinct(environments) if not is_usable(one, settings)]
    if not missing:
        return
    uv, taking_turns = uv_executable(), turns or asyncio.Semaphore(AT_ONCE)

    async def make(environment: Environment) -> None:
        async with taking_turns:
            await build(environment, settings, uv, tell)

    tasks = [asyncio.create_task(make(one)) for one in missing]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def build_each(
    environments: Iterable[Environment], settings: VenvSettings, tell: Tell | None = None
) -> dict[Path, InstallFailed | None]:
    """Make every environment that is not there yet and say of each, by its place, why there is none if so."""
    wanted, turns = distinct(environments), asyncio.Semaphore(AT_ONCE)
    outcomes = await asyncio.gather(
        *[build_all([one], settings, tell, turns) for one in wanted], return_exceptions=True
    )
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, InstallFailed):
            raise outcome
    return {
        one.target: outcome if isinstance(outcome, InstallFailed) else None
        for one, outcome in zip(wanted, outcomes, strict=True)
    }


def is_usable(environment: Environment, settings: VenvSettings) -> bool:
    """Whether nothing has to be done for it."""
    return environment.is_ready or (settings.skip_if_present and environment.is_present)


async def build(environment: Environment, settings: VenvSettings, uv: Path, tell: Tell | None = None) -> bool:
    """Make one environment, or finish one that was interrupted; False when another process had made it meanwhile.

    Raises:
        InstallFailed: it could not be made; the next attempt begins anew.
    """
    where = ", ".join(environment.servers)
    try:
        environment.target.parent.mkdir(parents=True, exist_ok=True)
        async with _alone(environment.target.with_name(f"{environment.target.name}.lock"), where) as lock:
            if is_usable(environment, settings):
                return False
            if tell is None:  # a wait of a minute deserves a word, even where nobody arranged for logs
                logger.warning("making an environment for %s in %s (once)", where, environment.target)
            async with asyncio.timeout(LONGEST_BUILD):
                await _make(environment, settings, uv, lock, tell)
            return True
    except TimeoutError:
        raise InstallFailed(f"its environment was not finished after {LONGEST_BUILD:g} s", where=where) from None
    except OSError as error:
        if error.errno == errno.ENOEXEC:
            raise InstallFailed(f"{uv} cannot be executed", where=where, fix="pip install uv") from error
        cause, fix = cause_of(str(error.strerror))
        raise InstallFailed(
            f"its environment cannot be made in {environment.target}: {cause} ({error.strerror})", where=where, fix=fix
        ) from error


async def _make(environment: Environment, settings: VenvSettings, uv: Path, lock: BinaryIO, tell: Tell | None) -> None:
    recipe, target = environment.recipe, environment.target
    (target / STAMP).unlink(missing_ok=True)
    steps = _Steps(environment, settings, uv, lock, tell)
    await steps.run(["venv", "--clear", "--no-project", "--python", interpreter(recipe.python), str(target)])
    words = ["pip", "install", "--python", str(environment.python), "-r", "-"]
    if recipe.constraints:
        constraints = target / "constraints.txt"
        constraints.write_text("\n".join(recipe.constraints) + "\n", encoding="utf-8")
        words += ["-c", str(constraints)]
    if recipe.overrides:
        words += ["--override", str(environment.folder / "overrides.txt")]
    if settings.verbose:
        words.append("-v")
    if os.environ.get("NEMO_GYM_ALLOW_PRERELEASE", "").lower() == "true":
        words += ["--prerelease", "allow", "--index-strategy", "unsafe-best-match"]
    await steps.run(words, "\n".join(recipe.lines) + "\n")
    unfinished = target / f"{STAMP}.partial"
    unfinished.write_text(json.dumps({"key": recipe.key, "recipe": asdict(recipe)}, indent=2), encoding="utf-8")
    unfinished.replace(target / STAMP)


class _Steps:
    """Runs uv for one environment and says what it said when it fails."""

    def __init__(
        self, environment: Environment, settings: VenvSettings, uv: Path, lock: BinaryIO, tell: Tell | None
    ) -> None:
        self._environment = environment
        self._env = installer_environment(settings, os.environ)
        self._uv = uv
        self._lock = lock
        self._tell = tell

    async def run(self, words: Sequence[str], given: str = "") -> None:
        """Run one uv command, with `given` on its standard input."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-ISc", GUARD, str(os.getpid()), str(self._uv), *words,
            cwd=self._environment.folder,
            env=self._env,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            # While anything still writes into the environment, whoever started it, the lock is held.
            pass_fds=[self._lock.fileno()],
            start_new_session=True,
        )  # fmt: skip
        try:
            tail = await self._talk(process, given)
            status = await process.wait()
        except BaseException:
            _kill_group(process.pid)
            await process.wait()
            raise
        if status:
            raise self._failure(status, tail)

    async def _talk(self, process: asyncio.subprocess.Process, given: str) -> str:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(given.encode())
        process.stdin.close()
        tail: deque[str] = deque(maxlen=TAIL_LINES)
        async for raw in process.stdout:
            line = without_credentials(raw.decode("utf-8", "replace").rstrip())
            tail.append(line)
            if self._tell:
                self._tell(self._environment.servers[0], line)
        return "\n".join(tail)

    def _failure(self, status: int, tail: str) -> InstallFailed:
        cause, fix = cause_of(tail)
        failure = InstallFailed(
            f"its environment cannot be made: {cause} (uv ended with status {status}); uv's last lines:\n{tail}",
            where=", ".join(self._environment.servers),
            fix=fix,
        )
        failure.status = status if status > 0 else 1
        return failure


def installer_environment(settings: VenvSettings, surroundings: Mapping[str, str]) -> dict[str, str]:
    """The process environment of uv: ours, without what would lead it to another environment than the one we name."""
    misleading = ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME")
    kept = {key: value for key, value in surroundings.items() if key not in misleading}
    chosen = {"UV_CACHE_DIR": str(settings.cache)} if settings.cache else {}
    kept.setdefault("UV_PYTHON_DOWNLOADS", "never")  # a Python that is present; fetching one is the user's decision
    return {**kept, **chosen, "UV_COMPILE_BYTECODE": "1", "UV_NO_PROGRESS": "1"}


def without_credentials(line: str) -> str:
    """A line with the user part of addresses left out."""
    return re.sub(r"//[^/@\s]+@", "//***@", line)


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


@asynccontextmanager
async def _alone(path: Path, where: str) -> AsyncIterator[BinaryIO]:
    """Hold the lock at `path`; the kernel gives it back however the holder ends.

    Raises:
        InstallFailed: somebody else held it for too long.
    """
    with path.open("ab") as lock:
        deadline = time.monotonic() + LONGEST_BUILD
        while not _locked(lock):
            if time.monotonic() > deadline:
                raise InstallFailed(
                    f"another process has been making its environment for {LONGEST_BUILD:g} s",
                    where=where,
                    fix=f"end whatever holds {path}",
                )
            await asyncio.sleep(LOCK_PAUSE)
        yield lock


def _locked(lock: BinaryIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
