"""`gym env packages` and `gym env prefetch`, with a script in the installer's place."""

import json
import sys
from pathlib import Path

import pytest

from nemo_gym.cli import installed
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
    for module in (venv_build, installed):
        monkeypatch.setattr(module, "uv_executable", lambda: uv)
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

    said = capsys.readouterr().out
    assert (first, second) == (0, 0)
    assert [line.split()[0] for line in notes.read_text().splitlines()] == ["venv", "pip"]
    assert "my_left, my_right" in said and "made" in said and "was there" in said
    assert "plain" not in said


def test_prefetch_ends_with_the_installers_status(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Build scripts act on the number."""
    install_uv(here, monkeypatch, status=7)
    write_server(here, "left", "no-such-package")

    status = main(["env", "prefetch", "--resources-server", "left", f"+cache_dir={here}/cache"])

    assert status == 7
    assert "my_left: its environment cannot be made" in capsys.readouterr().err


def test_prefetch_of_servers_that_need_nothing_says_so(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And needs no installer to find out."""
    write_server(here, "plain")

    assert main(["env", "prefetch", "--resources-server", "plain"]) == 0
    assert "none of the 1 servers needs" in capsys.readouterr().out


def test_packages_are_those_of_the_servers_environment(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """First there is none, which is said; then it is the one that was made."""
    notes = install_uv(here, monkeypatch)
    write_server(here, "left", "no-such-package")
    cache = f"+cache_dir={here}/cache"

    before = main(["env", "packages", "--resources-server", "left", cache])
    advice = capsys.readouterr().err
    main(["env", "prefetch", "--resources-server", "left", cache])
    capsys.readouterr()
    after = main(["env", "packages", "--resources-server", "left", "--outdated", "--json", cache])

    asked = notes.read_text().splitlines()[-1]
    assert (before, after) == (1, 0)
    assert "gym env prefetch" in advice
    assert json.loads(capsys.readouterr().out) == []
    assert asked.startswith(f"pip list --python {here}/cache/venvs/")
    assert asked.endswith("--format=json --outdated")


def test_a_server_without_an_environment_shows_this_one(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It runs here, so these are its packages."""
    notes = install_uv(here, monkeypatch)
    write_server(here, "plain")

    assert main(["env", "packages", "--resources-server", "plain"]) == 0
    assert notes.read_text() == f"pip list --python {sys.executable}\n"
    assert "needs no environment of its own" in capsys.readouterr().err


def test_packages_of_nothing_is_a_question_back(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It cannot guess which server is meant."""
    assert main(["env", "packages"]) == 1
    assert "--resources-server NAME" in capsys.readouterr().err
