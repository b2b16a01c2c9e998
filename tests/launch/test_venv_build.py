"""Environments are made once, finished or not at all. The installer here is a script that plays uv's part."""

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
from nemo_gym.launch.venv import Environment, VenvSettings, environment_for, own_requirement
from nemo_gym.launch.venv_build import (
    InstallFailed,
    build,
    build_all,
    cause_of,
    installer_environment,
    interpreter,
    uv_executable,
    without_credentials,
)
from tests.processes import is_gone, until

pytestmark = pytest.mark.asyncio

UV = """
    import json, os, pathlib, sys, time
    notes = pathlib.Path({notes!r})
    words, given = sys.argv[1:], ""
    with notes.open("a") as log:
        if words[0] == "venv":
            target = pathlib.Path(words[-1])
            (target / "bin").mkdir(parents=True, exist_ok=True)
            (target / "bin" / "activate").touch()
            if not (target / "bin" / "python").exists():
                (target / "bin" / "python").symlink_to(sys.executable)
        else:
            given = sys.stdin.read()
        log.write(json.dumps([words, given, os.getcwd(), dict(os.environ)]) + "\\n")
        log.flush()
    {then}
"""


class Installer:
    """A program in uv's place: remembers how it was called, then does as told."""

    def __init__(self, folder: Path) -> None:
        self.notes = folder / "notes.jsonl"
        self.path = folder / "uv"
        self.behave("")

    def behave(self, then: str) -> None:
        source = textwrap.dedent(UV).format(notes=str(self.notes), then=then)
        self.path.write_text(f"#!{sys.executable}\n{source}")
        self.path.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        if not self.notes.exists():
            return []
        return [json.loads(line)[0][0] for line in self.notes.read_text().splitlines()]

    def last(self) -> tuple[list[str], str, str, dict[str, str]]:
        words, given, cwd, env = json.loads(self.notes.read_text().splitlines()[-1])
        return words, given, cwd, env


@pytest.fixture
def uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installer]:
    installer = Installer(tmp_path)
    monkeypatch.setattr(venv_build, "uv_executable", lambda: installer.path)
    yield installer


@pytest.fixture
def settings(tmp_path: Path) -> VenvSettings:
    return VenvSettings(shared=tmp_path / "venvs")


def environment(tmp_path: Path, settings: VenvSettings, *lines: str, name: str = "sums") -> Environment:
    folder = tmp_path / "resources_servers" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "requirements.txt").write_text("\n".join(lines or ("-e nemo-gym[dev] @ ../../", "sympy==1.13")))
    return environment_for(f"my_{name}", "resources_servers", name, folder, settings)


async def test_an_unchanged_environment_costs_no_process(tmp_path: Path, uv: Installer, settings: VenvSettings) -> None:
    """The second start of the day must not wait for an installer to find out that there is nothing to do."""
    await build_all([environment(tmp_path, settings)], settings)
    first = uv.calls
    await build_all([environment(tmp_path, settings)], settings)

    assert first == uv.calls == ["venv", "pip"]


async def test_the_installer_gets_the_requirements_of_the_folder(
    tmp_path: Path, uv: Installer, settings: VenvSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the folder, on its input, compiled, and not led to the environment we happen to run in."""
    monkeypatch.setenv("VIRTUAL_ENV", "/somewhere/else")
    chosen = replace(settings, cache=tmp_path / "uvcache", verbose=True, constraints=("ray==2.56.0",))
    made = environment(tmp_path, chosen)

    await build_all([made], chosen)

    words, given, cwd, env = uv.last()
    assert words == [
        "pip", "install", "--python", str(made.python), "-r", "-", "-c", str(made.target / "constraints.txt"), "-v"
    ]  # fmt: skip
    assert given == f"{own_requirement()[0]}\nsympy==1.13\n"
    assert (made.target / "constraints.txt").read_text() == "ray==2.56.0\n"
    assert cwd == str(made.folder)
    assert (env["UV_COMPILE_BYTECODE"], env["UV_CACHE_DIR"]) == ("1", str(tmp_path / "uvcache"))
    assert "VIRTUAL_ENV" not in env


async def test_the_cache_is_uvs_own_unless_one_was_chosen(settings: VenvSettings) -> None:
    """People share one cache between projects; a second one would double every download."""
    assert "UV_CACHE_DIR" not in installer_environment(settings, {})
    assert installer_environment(settings, {"UV_CACHE_DIR": "/c"})["UV_CACHE_DIR"] == "/c"


async def test_two_at_once_make_it_once(tmp_path: Path, uv: Installer, settings: VenvSettings) -> None:
    """Two runs started together must not write into one environment."""
    uv.behave("time.sleep(0.2)")
    made = environment(tmp_path, settings)

    built = await asyncio.gather(*[build(made, settings, uv.path) for _ in range(4)])

    assert sorted(built) == [False, False, False, True]
    assert uv.calls == ["venv", "pip"]


async def test_different_environments_are_made_side_by_side(
    tmp_path: Path, uv: Installer, settings: VenvSettings
) -> None:
    """Waiting for the network is most of the time; it should be waited for once."""
    meet = tmp_path / "meeting"
    meet.mkdir()
    # Each install waits until the other is under way: one after the other would never end.
    uv.behave(
        f"""
if words[0] == "pip":
    here = pathlib.Path({str(meet)!r})
    (here / str(os.getpid())).touch()
    while len(list(here.iterdir())) < 2:
        time.sleep(0.01)
"""
    )

    async with asyncio.timeout(60):
        await build_all([environment(tmp_path, settings, f"sympy==1.{n}", name=f"s{n}") for n in range(2)], settings)

    assert sorted(uv.calls) == ["pip", "pip", "venv", "venv"]


async def test_what_a_kill_interrupted_is_made_anew(tmp_path: Path, uv: Installer, settings: VenvSettings) -> None:
    """Half an environment imports until it does not; it must never pass for a whole one."""
    marker = tmp_path / "installing"
    uv.behave(
        f"open({str(marker)!r}, 'w').close() if words[0] == 'pip' else None; time.sleep(60 * (words[0] == 'pip'))"
    )
    made = environment(tmp_path, settings)
    interrupted = asyncio.create_task(build(made, settings, uv.path))
    await until(marker.exists)
    interrupted.cancel()
    with pytest.raises(asyncio.CancelledError):
        await interrupted
    ready_after_kill = made.is_ready
    uv.behave("")

    built = await build(made, settings, uv.path)

    assert not ready_after_kill
    assert built and made.is_ready


async def test_an_installer_does_not_outlive_a_killed_command(tmp_path: Path, settings: VenvSettings) -> None:
    """After `kill -9` nothing may go on writing."""
    installer = Installer(tmp_path)
    pid_file = tmp_path / "pid"
    installer.behave(f"pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid())); time.sleep(600)")
    script = f"""
        import asyncio
        from pathlib import Path
        from nemo_gym.launch.venv import VenvSettings, environment_for
        from nemo_gym.launch.venv_build import build

        settings = VenvSettings(shared=Path({str(tmp_path)!r}) / "venvs")
        made = environment_for("s", "resources_servers", "s", Path({str(tmp_path)!r}), settings)
        asyncio.run(build(made, settings, Path({str(installer.path)!r})))
    """
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", textwrap.dedent(script))
    await until(lambda: pid_file.exists() and pid_file.read_text() != "")
    child = int(pid_file.read_text())

    parent.kill()
    await parent.wait()

    await until(lambda: is_gone(child))


@pytest.mark.parametrize(
    ("says", "words", "fix"),
    [
        ("error: Failed to fetch: `simple/sympy/`: dns error", "the package registry cannot be reached", "network"),
        ("No solution found when resolving: Because sympy==99 ...", "requirements cannot be met", "requirements.txt"),
        ("error: failed to write: No space left on device (os error 28)", "the disk is full", "uv_venv_dir"),
        ("error: No interpreter found for Python <3 in ...", "the Python it asks for is not on", "requires-python"),
        ("Failed to build `x==1`: gcc: not found", "could not be built", "compiler"),
    ],
)
async def test_a_failed_install_names_the_server_and_the_way_out(
    tmp_path: Path, uv: Installer, settings: VenvSettings, says: str, words: str, fix: str
) -> None:
    """The one sentence a user reads must say who, why, and what now."""
    uv.behave(f"sys.stderr.write({says!r}); sys.exit(2 if words[0] == 'pip' else 0)")

    with pytest.raises(InstallFailed) as raised:
        await build_all([environment(tmp_path, settings)], settings)

    assert raised.value.where == "my_sums"
    assert words in str(raised.value) and says in str(raised.value)
    assert fix in str(raised.value.fix)
    assert (raised.value.status, raised.value.exit_status) == (2, 3)


async def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path, uv: Installer, settings: VenvSettings) -> None:
    """A file in the way is not a traceback."""
    (tmp_path / "venvs").write_text("in the way")

    with pytest.raises(InstallFailed, match="my_sums: its environment cannot be made in"):
        await build_all([environment(tmp_path, settings)], settings)


async def test_one_failure_ends_the_others(tmp_path: Path, uv: Installer, settings: VenvSettings) -> None:
    """Nobody waits an hour for environments of a run that cannot start."""
    uv.behave("if 'bad' in given: sys.exit(1)\ntime.sleep(600 if words[0] == 'pip' else 0)")
    made = [environment(tmp_path, settings, line, name=line) for line in ("bad", "slow")]

    async with asyncio.timeout(30):
        with pytest.raises(InstallFailed, match="my_bad"):
            await build_all(made, settings)


async def test_what_is_present_is_taken_as_it_is_when_asked(
    tmp_path: Path, uv: Installer, settings: VenvSettings
) -> None:
    """`skip_venv_if_present` never installs, stamp or not."""
    chosen = replace(settings, skip_if_present=True)
    made = environment(tmp_path, chosen)
    for name in ("python", "activate"):
        path = made.target / "bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    await build_all([made], chosen)

    assert uv.calls == []


async def test_without_uv_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The installer is a package like any other."""
    monkeypatch.setitem(sys.modules, "uv", None)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ConfigError, match="pip install uv"):
        uv_executable()


@pytest.mark.parametrize(
    ("wanted", "found"),
    [(">=3.12", "3.13.0"), ("<3.13,>=3.12", "cpython-3.12.1-linux"), ("3.12", "cpython-3.12.1-linux"),
     ("3.13.0", "3.13.0"), ("3.13.1", None), ("pypy", None), ("/usr/bin/python3", None)],
)  # fmt: skip
async def test_a_python_beside_ours_is_found(tmp_path: Path, wanted: str, found: str | None) -> None:
    """It is present, so it is used; version managers hide it from a search of the path."""
    for name in ("3.13.0", "cpython-3.12.1-linux", "3.9.18"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "python3").touch()
    (tmp_path / "3.14.0").mkdir()

    assert interpreter(wanted, tmp_path) == (str(tmp_path / found / "bin" / "python3") if found else wanted)


async def test_passwords_of_registries_are_not_repeated() -> None:
    """What uv says goes into logs that people share."""
    assert without_credentials("fetch https://me:secret@host/simple") == "fetch https://***@host/simple"


async def test_an_unknown_failure_is_not_explained_away() -> None:
    """A wrong guess costs more than none."""
    assert cause_of("boom") == ("the installer failed", None)


async def test_signals_are_not_mistaken_for_success(tmp_path: Path, uv: Installer, settings: VenvSettings) -> None:
    """An installer that was killed has not installed."""
    uv.behave(f"os.kill(os.getpid(), {int(signal.SIGTERM)})")

    with pytest.raises(InstallFailed, match="status -15") as raised:
        await build_all([environment(tmp_path, settings)], settings)

    assert raised.value.status == 1
