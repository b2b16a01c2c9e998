"""Programs of servers are installed once, completely, and by the installer that the machine has."""

import asyncio
import os
import stat
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.launch.programs import Programs, install_programs, is_installed, programs_of
from nemo_gym.launch.venv_build import InstallFailed

NPM = """#!/bin/sh
umask "${UMASK:-022}"
echo "npm $*" >> "$LOG"
if [ -n "$FAIL" ]; then echo "npm error 404 no-such-package"; exit 3; fi
mkdir -p node_modules/.bin
echo '#!/bin/sh' > node_modules/.bin/agent
chmod u+x node_modules/.bin/agent
"""
AGENT = Programs.model_validate({"npm": {"@x/agent": "1.2.3"}, "npm_scripts": ["@x/agent"]})


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put an npm that writes its arguments to the returned file before all others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "npm").write_text(NPM)
    (folder / "npm").chmod(0o755)
    path = tmp_path / "npm.log"
    path.touch()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("LOG", str(path))
    monkeypatch.delenv("FAIL", raising=False)
    return path


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


async def test_programs_are_installed_once_also_by_several_processes_at_a_time(log: Path, tmp_path: Path) -> None:
    """Agents of several runs share an installation, which nothing may change while it is used."""
    folder = AGENT.folder(tmp_path / "cache")

    results = await asyncio.gather(*(install_programs(AGENT, folder, f"agent {n}") for n in range(3)))
    again = await install_programs(AGENT, folder, "agent")

    assert (sorted(results), again) == ([False, False, True], False)
    assert is_installed(folder)
    assert [str(path.relative_to(folder)) for path in AGENT.search_folders(folder)] == ["node_modules/.bin"]
    install, rebuild = lines_of(log)
    assert "--ignore-scripts" in install
    assert install.endswith("@x/agent@1.2.3")
    assert rebuild.startswith("npm rebuild")


async def test_programs_can_be_read_by_the_users_of_boxes(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each box has a separate user, for whom files written with the umask 077 would not exist."""
    del log
    monkeypatch.setenv("UMASK", "077")
    folder = AGENT.folder(tmp_path / "cache")

    await install_programs(AGENT, folder, "agent")

    paths = [folder, *folder.rglob("*")]
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in paths}
    assert modes["agent"] == modes["node_modules"] == modes[".bin"] == 0o755
    assert all(mode & 0o004 for mode in modes.values()), modes


async def test_a_failed_installation_is_explained_and_tried_again(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A half installed program must not look installed."""
    folder = AGENT.folder(tmp_path / "cache")
    monkeypatch.setenv("FAIL", "1")
    with pytest.raises(InstallFailed, match="npm ended with status 3") as failure:
        await install_programs(AGENT, folder, "agent")
    monkeypatch.delenv("FAIL")

    is_new = await install_programs(AGENT, folder, "agent")

    assert "npm error 404 no-such-package" in str(failure.value)
    assert (failure.value.status, is_new, len(lines_of(log))) == (3, True, 3)


async def test_without_npm_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`No such file: npm` does not say that Node is missing."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"npm is not installed, and @x/agent@1\.2\.3 needs it"):
        await install_programs(AGENT, AGENT.folder(tmp_path), "agent")


def test_the_programs_of_a_configuration_are_found_and_checked() -> None:
    """`gym env prefetch` installs what the servers of a configuration need, and nothing else."""
    blocks = {
        "one": {"responses_api_agents": {"harness_agent": {"programs": {"pip": ["a==1"]}}}},
        "none": {"responses_api_agents": {"harness_agent": {"programs": {}}}},
        "other": {"resources_servers": {"x": {"entrypoint": "app.py"}}},
        "key": "text",
    }

    assert {name: each.packages for name, each in programs_of(blocks).items()} == {"one": "a==1"}
    with pytest.raises(ConfigError, match=r"one\.harness_agent\.programs: .*name==version"):
        programs_of({"one": {"responses_api_agents": {"harness_agent": {"programs": {"pip": ["a"]}}}}})


def test_other_versions_have_another_folder(tmp_path: Path) -> None:
    """A changed version must not use the packages of the old one."""
    other = Programs(npm={"@x/agent": "1.2.4"}, npm_scripts=["@x/agent"])

    assert AGENT.folder(tmp_path) != other.folder(tmp_path)
