"""`gym env packages` and `gym env prefetch`, with a script instead of the installer."""

import json
import sys
from pathlib import Path

import pytest

from nemo_gym.cli.main import main
from nemo_gym.launch import venv_build

INSTALLER = """#!/bin/sh
echo "$@" >> {notes}
if [ "$1" = venv ]; then
    for target in "$@"; do :; done
    mkdir -p "$target/bin" && ln -sf {python} "$target/bin/python" && touch "$target/bin/activate"
elif [ "$2" = list ]; then
    echo "[]"
else
    exit {status}
fi
"""
CONFIG = """\
{name}:
  resources_servers:
    {folder}:
      entrypoint: app.py
      domain: other
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def install_uv(here: Path, monkeypatch: pytest.MonkeyPatch, status: int = 0) -> Path:
    uv, notes = here / "uv", here / "notes"
    uv.write_text(INSTALLER.format(notes=notes, python=sys.executable, status=status))
    uv.chmod(0o755)
    monkeypatch.setattr(venv_build, "uv_executable", lambda: uv)
    return notes


def write_server(here: Path, folder: str, *requirements: str) -> None:
    made = here / "resources_servers" / folder
    (made / "configs").mkdir(parents=True)
    (made / "app.py").write_text("")
    (made / "requirements.txt").write_text("\n".join(["-e nemo-gym[dev] @ ../../", *requirements]))
    (made / "configs" / f"{folder}.yaml").write_text(CONFIG.format(name=f"my_{folder}", folder=folder))


def test_prefetch_makes_each_environment_once_and_starts_nothing(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An image is baked with what a run will need; servers that need nothing cost nothing."""
    notes = install_uv(here, monkeypatch)
    write_server(here, "left", "no-such-package")
    write_server(here, "right", "no-such-package")
    write_server(here, "plain")
    words = ["env", "prefetch", "--config", "resources_servers/left/configs/left.yaml",
             "--config", "resources_servers/right/configs/right.yaml", "--resources-server", "plain",
             f"+cache_dir={here}/cache"]  # fmt: skip

    first, second = main(words), main(words)

    table = capsys.readouterr().out
    assert (first, second) == (0, 0)
    assert [line.split()[0] for line in notes.read_text().splitlines()] == ["venv", "pip"]
    assert "my_left, my_right" in table and "built" in table and "existed already" in table
    assert "plain" not in table


def test_prefetch_ends_with_the_installers_status(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Build scripts act on the number."""
    install_uv(here, monkeypatch, status=7)
    write_server(here, "left", "no-such-package")

    status = main(["env", "prefetch", "--resources-server", "left", f"+cache_dir={here}/cache"])

    assert status == 7
    assert "my_left: its virtual environment cannot be built" in capsys.readouterr().err


def test_prefetch_reports_servers_that_need_no_environment(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """This must work without an installer."""
    write_server(here, "plain")

    assert main(["env", "prefetch", "--resources-server", "plain"]) == 0
    assert "none of the 1 servers needs" in capsys.readouterr().out


def test_packages_are_those_of_the_servers_environment(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without an environment the command says how to build it; then it lists that environment."""
    notes = install_uv(here, monkeypatch)
    write_server(here, "left", "no-such-package")
    cache = f"+cache_dir={here}/cache"

    before = main(["env", "packages", "--resources-server", "left", cache])
    advice = capsys.readouterr().err
    main(["env", "prefetch", "--resources-server", "left", cache])
    capsys.readouterr()
    after = main(["env", "packages", "--resources-server", "left", "--outdated", "--json", cache])

    command = notes.read_text().splitlines()[-1]
    assert (before, after) == (1, 0)
    assert "gym env prefetch" in advice
    assert json.loads(capsys.readouterr().out) == []
    assert command.startswith(f"pip list --python {here}/cache/venvs/")
    assert command.endswith("--format=json --outdated")


def test_a_server_without_an_environment_shows_this_one(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server uses the packages of this installation."""
    notes = install_uv(here, monkeypatch)
    write_server(here, "plain")

    assert main(["env", "packages", "--resources-server", "plain"]) == 0
    assert notes.read_text() == f"pip list --python {sys.executable}\n"
    assert "needs no virtual environment" in capsys.readouterr().err


def test_packages_needs_a_server(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command cannot guess the server."""
    assert main(["env", "packages"]) == 1
    assert "--resources-server NAME" in capsys.readouterr().err
