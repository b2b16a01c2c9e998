"""Virtual environments are built once, completely or not at all. A script takes the place of uv."""

import asyncio
import json
import signal
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.launch import venv_build
from nemo_gym.launch.venv import Venv, VenvSettings, folder_venv, nemo_gym_requirement
from nemo_gym.launch.venv_build import (
    InstallFailed,
    build_venv,
    build_venvs,
    find_interpreter,
    installer_process_env,
    likely_install_cause,
    uv_executable,
    without_credentials,
)
from tests.processes import is_gone, wait_until

pytestmark = pytest.mark.asyncio

UV = """
    import json, os, pathlib, sys, time
    notes = pathlib.Path({notes!r})
    words, content = sys.argv[1:], ""
    with notes.open("a") as log:
        if words[0] == "venv":
            target = pathlib.Path(words[-1])
            (target / "bin").mkdir(parents=True, exist_ok=True)
            (target / "bin" / "activate").touch()
            if not (target / "bin" / "python").exists():
                (target / "bin" / "python").symlink_to(sys.executable)
        else:
            content = sys.stdin.read()
        log.write(json.dumps([words, content, os.getcwd(), dict(os.environ)]) + "\\n")
        log.flush()
    {then}
"""


class FakeInstaller:
    """A program in place of uv that records its calls and then runs the given code."""

    def __init__(self, folder: Path) -> None:
        self.notes = folder / "notes.jsonl"
        self.path = folder / "uv"
        self.run_code("")

    def run_code(self, then: str) -> None:
        source = textwrap.dedent(UV).format(notes=str(self.notes), then=then)
        self.path.write_text(f"#!{sys.executable}\n{source}")
        self.path.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        if not self.notes.exists():
            return []
        return [json.loads(line)[0][0] for line in self.notes.read_text().splitlines()]

    def last_call(self) -> tuple[list[str], str, str, dict[str, str]]:
        words, content, cwd, env = json.loads(self.notes.read_text().splitlines()[-1])
        return words, content, cwd, env


@pytest.fixture
def uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeInstaller]:
    installer = FakeInstaller(tmp_path)
    monkeypatch.setattr(venv_build, "uv_executable", lambda: installer.path)
    yield installer


@pytest.fixture
def settings(tmp_path: Path) -> VenvSettings:
    return VenvSettings(shared=tmp_path / "venvs")


def make_venv(tmp_path: Path, settings: VenvSettings, *lines: str, name: str = "sums") -> Venv:
    folder = tmp_path / "resources_servers" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "requirements.txt").write_text("\n".join(lines or ("-e nemo-gym[dev] @ ../../", "sympy==1.13")))
    return folder_venv(f"my_{name}", "resources_servers", name, folder, settings)


async def test_an_unchanged_venv_costs_no_process(tmp_path: Path, uv: FakeInstaller, settings: VenvSettings) -> None:
    """The second start must not wait for an installer that has nothing to do."""
    await build_venvs([make_venv(tmp_path, settings)], settings)
    first = uv.calls
    await build_venvs([make_venv(tmp_path, settings)], settings)

    assert first == uv.calls == ["venv", "pip"]


async def test_the_installer_gets_the_requirements_of_the_folder(
    tmp_path: Path, uv: FakeInstaller, settings: VenvSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the folder, on standard input, compiled, and not into the venv that runs the command."""
    monkeypatch.setenv("VIRTUAL_ENV", "/somewhere/else")
    chosen = replace(settings, cache=tmp_path / "uvcache", verbose=True, constraints=("ray==2.56.0",))
    venv = make_venv(tmp_path, chosen)

    await build_venvs([venv], chosen)

    words, content, cwd, env = uv.last_call()
    assert words == [
        "pip", "install", "--python", str(venv.python), "-r", "-", "-c", str(venv.target / "constraints.txt"), "-v"
    ]  # fmt: skip
    assert content == f"{nemo_gym_requirement()[0]}\nsympy==1.13\n"
    assert (venv.target / "constraints.txt").read_text() == "ray==2.56.0\n"
    assert cwd == str(venv.folder)
    assert (env["UV_COMPILE_BYTECODE"], env["UV_CACHE_DIR"]) == ("1", str(tmp_path / "uvcache"))
    assert "VIRTUAL_ENV" not in env


@pytest.mark.parametrize(
    ("existing", "expected"), [({}, "nemo-gym"), ({"UV_NO_SOURCES_PACKAGE": "mine"}, "mine nemo-gym")]
)
async def test_the_source_of_nemo_gym_in_a_project_is_ignored(
    settings: VenvSettings, existing: dict[str, str], expected: str
) -> None:
    """It is `../..` in existing folders: in another tree no project, or another nemo-gym than the running one."""
    assert installer_process_env(settings, existing)["UV_NO_SOURCES_PACKAGE"] == expected


async def test_the_cache_is_uvs_default_unless_one_was_chosen(settings: VenvSettings) -> None:
    """People share one cache between projects; a second one would double every download."""
    assert "UV_CACHE_DIR" not in installer_process_env(settings, {})
    assert installer_process_env(settings, {"UV_CACHE_DIR": "/c"})["UV_CACHE_DIR"] == "/c"


async def test_concurrent_builds_build_once(tmp_path: Path, uv: FakeInstaller, settings: VenvSettings) -> None:
    """Two runs started together must not write into the same venv."""
    uv.run_code("time.sleep(0.2)")
    venv = make_venv(tmp_path, settings)

    built = await asyncio.gather(*[build_venv(venv, settings, uv.path) for _ in range(4)])

    assert sorted(built) == [False, False, False, True]
    assert uv.calls == ["venv", "pip"]


async def test_different_venvs_are_built_concurrently(
    tmp_path: Path, uv: FakeInstaller, settings: VenvSettings
) -> None:
    """Most of the time is waiting for the network."""
    meet = tmp_path / "meeting"
    meet.mkdir()
    # Each install waits for the other: sequential builds would never end.
    uv.run_code(
        f"""
if words[0] == "pip":
    here = pathlib.Path({str(meet)!r})
    (here / str(os.getpid())).touch()
    while len(list(here.iterdir())) < 2:
        time.sleep(0.01)
"""
    )

    async with asyncio.timeout(60):
        await build_venvs([make_venv(tmp_path, settings, f"sympy==1.{n}", name=f"s{n}") for n in range(2)], settings)

    assert sorted(uv.calls) == ["pip", "pip", "venv", "venv"]


async def test_an_interrupted_build_starts_anew(tmp_path: Path, uv: FakeInstaller, settings: VenvSettings) -> None:
    """An incomplete venv fails at some later import; it must never count as complete."""
    marker = tmp_path / "installing"
    uv.run_code(
        f"open({str(marker)!r}, 'w').close() if words[0] == 'pip' else None; time.sleep(60 * (words[0] == 'pip'))"
    )
    venv = make_venv(tmp_path, settings)
    interrupted = asyncio.create_task(build_venv(venv, settings, uv.path))
    await wait_until(marker.exists)
    interrupted.cancel()
    with pytest.raises(asyncio.CancelledError):
        await interrupted
    ready_after_kill = venv.is_ready
    uv.run_code("")

    built = await build_venv(venv, settings, uv.path)

    assert not ready_after_kill
    assert built and venv.is_ready


async def test_an_installer_does_not_outlive_a_killed_command(tmp_path: Path, settings: VenvSettings) -> None:
    """After `kill -9` no process may go on writing."""
    installer = FakeInstaller(tmp_path)
    pid_file = tmp_path / "pid"
    installer.run_code(f"pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid())); time.sleep(600)")
    script = f"""
        import asyncio
        from pathlib import Path
        from nemo_gym.launch.venv import VenvSettings
        from nemo_gym.launch.venv import folder_venv
        from nemo_gym.launch.venv_build import build_venv

        settings = VenvSettings(shared=Path({str(tmp_path)!r}) / "venvs")
        venv = folder_venv("s", "resources_servers", "s", Path({str(tmp_path)!r}), settings)
        asyncio.run(build_venv(venv, settings, Path({str(installer.path)!r})))
    """
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", textwrap.dedent(script))
    await wait_until(lambda: pid_file.exists() and pid_file.read_text() != "")
    child = int(pid_file.read_text())

    parent.kill()
    await parent.wait()

    await wait_until(lambda: is_gone(child))


@pytest.mark.parametrize(
    ("says", "words", "fix"),
    [
        ("error: Failed to fetch: `simple/sympy/`: dns error", "the package registry cannot be reached", "network"),
        ("No solution found when resolving: Because sympy==99 ...", "requirements cannot be met", "requirements.txt"),
        ("error: failed to write: No space left on device (os error 28)", "the disk is full", "uv_venv_dir"),
        ("error: No interpreter found for Python <3 in ...", "the Python it requires is not on", "requires-python"),
        ("Failed to build `x==1`: gcc: not found", "could not be built", "compiler"),
    ],
)
async def test_a_failed_install_names_the_server_and_the_way_out(
    tmp_path: Path, uv: FakeInstaller, settings: VenvSettings, says: str, words: str, fix: str
) -> None:
    """The message must name the server, the cause and the fix."""
    uv.run_code(f"sys.stderr.write({says!r}); sys.exit(2 if words[0] == 'pip' else 0)")

    with pytest.raises(InstallFailed) as raised:
        await build_venvs([make_venv(tmp_path, settings)], settings)

    assert raised.value.where == "my_sums"
    assert words in str(raised.value) and says in str(raised.value)
    assert fix in str(raised.value.fix)
    assert (raised.value.status, raised.value.exit_status) == (2, 3)


async def test_a_folder_that_cannot_be_written_is_reported(
    tmp_path: Path, uv: FakeInstaller, settings: VenvSettings
) -> None:
    """A file in its place must not be a traceback."""
    (tmp_path / "venvs").write_text("in the way")

    with pytest.raises(InstallFailed, match="my_sums: its virtual environment cannot be built in"):
        await build_venvs([make_venv(tmp_path, settings)], settings)


async def test_one_failure_cancels_the_other_builds(tmp_path: Path, uv: FakeInstaller, settings: VenvSettings) -> None:
    """A run that cannot start must not build for an hour."""
    uv.run_code("if 'bad' in content: sys.exit(1)\ntime.sleep(600 if words[0] == 'pip' else 0)")
    venvs = [make_venv(tmp_path, settings, line, name=line) for line in ("bad", "slow")]

    async with asyncio.timeout(30):
        with pytest.raises(InstallFailed, match="my_bad"):
            await build_venvs(venvs, settings)


async def test_an_existing_venv_is_not_changed_if_configured(
    tmp_path: Path, uv: FakeInstaller, settings: VenvSettings
) -> None:
    """`skip_venv_if_present` never installs, stamp or not."""
    chosen = replace(settings, skip_if_present=True)
    venv = make_venv(tmp_path, chosen)
    for name in ("python", "activate"):
        path = venv.target / "bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    await build_venvs([venv], chosen)

    assert uv.calls == []


async def test_a_missing_uv_is_reported_with_the_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The installer is a package like any other."""
    monkeypatch.setitem(sys.modules, "uv", None)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ConfigError, match="pip install uv"):
        uv_executable()


@pytest.mark.parametrize(
    ("python", "folder"),
    [(">=3.12", "3.13.0"), ("<3.13,>=3.12", "cpython-3.12.1-linux"), ("3.12", "cpython-3.12.1-linux"),
     ("3.13.0", "3.13.0"), ("3.13.1", None), ("pypy", None), ("/usr/bin/python3", None)],
)  # fmt: skip
async def test_a_python_beside_ours_is_found(tmp_path: Path, python: str, folder: str | None) -> None:
    """Version managers hide it from a search of the path."""
    for name in ("3.13.0", "cpython-3.12.1-linux", "3.9.18"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "python3").touch()
    (tmp_path / "3.14.0").mkdir()

    assert find_interpreter(python, tmp_path) == (str(tmp_path / folder / "bin" / "python3") if folder else python)


async def test_passwords_of_registries_are_not_repeated() -> None:
    """The output of uv goes into logs that users share."""
    assert without_credentials("fetch https://me:secret@host/simple") == "fetch https://***@host/simple"


async def test_an_unknown_failure_gets_no_guess() -> None:
    """A wrong guess costs more than none."""
    assert likely_install_cause("boom") == ("the installer failed", None)


async def test_a_killed_installer_is_a_failure(tmp_path: Path, uv: FakeInstaller, settings: VenvSettings) -> None:
    """A negative exit status must not count as success."""
    uv.run_code(f"os.kill(os.getpid(), {int(signal.SIGTERM)})")

    with pytest.raises(InstallFailed, match="status -15") as raised:
        await build_venvs([make_venv(tmp_path, settings)], settings)

    assert raised.value.status == 1
