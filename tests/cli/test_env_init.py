"""`gym env init` gives something that works before the first change."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_gym.cli.main import main
from nemo_gym.errors import ConfigError
from nemo_gym.scaffold.write import ScaffoldConflictError, checked_name, scaffold_environment, scaffold_resources_server

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """\
policy_model:
  responses_api_models:
    scripted_model:
      entrypoint: app.py
      script:
        - text: revir
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def test_the_new_server_passes_its_own_tests(here: Path) -> None:
    """The first thing an author does is run them; red would be a bad welcome."""
    status = main(["env", "init", "--resources-server", "word_mirror"])

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "resources_servers/word_mirror"],
        env={**os.environ, "PYTHONPATH": str(here)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert status == 0
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10 passed" in done.stdout


def test_the_new_environment_can_be_evaluated(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows, agent, verifier and metrics fit together: one of the five rows is answered by the script."""
    assert main(["env", "init", "--environment", "word_mirror"]) == 0
    (here / "script.yaml").write_text(SCRIPT)
    capsys.readouterr()

    status = main(["eval", "run", "--environment", "word_mirror", "--config", "script.yaml", "--json"])

    told = json.loads(capsys.readouterr().out)
    assert status == 0
    assert (told["scored"], told["failed"], told["mean_reward"]) == (5, {}, 0.2)


def test_the_new_configuration_is_valid_and_its_rows_are_five(here: Path) -> None:
    """What `env validate` and `env test` ask of every folder holds from the start."""
    main(["env", "init", "--environment", "letter_mirror"])

    assert main(["env", "validate", "--environment", "letter_mirror"]) == 0
    for place in ("environments", "resources_servers"):
        assert len((here / place / "letter_mirror" / "data" / "example.jsonl").read_text().splitlines()) == 5


def test_what_exists_is_never_changed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second `init` by habit must not cost an afternoon's work."""
    main(["env", "init", "--resources-server", "mine"])
    app = here / "resources_servers" / "mine" / "app.py"
    app.write_text("# an afternoon's work\n")

    server_status = main(["env", "init", "--resources-server", "mine"])
    said = capsys.readouterr().err
    environment_status = main(["env", "init", "--environment", "mine"])
    again = main(["env", "init", "--environment", "mine"])

    assert (server_status, environment_status, again) == (0, 0, 1)
    assert "nothing was changed" in said
    assert app.read_text() == "# an afternoon's work\n"
    assert "exists already" in capsys.readouterr().err


def test_a_file_in_the_way_stops_everything(tmp_path: Path) -> None:
    """Nothing is half made: neither the environment nor its server appears."""
    (tmp_path / "environments").mkdir()
    (tmp_path / "environments" / "mine").symlink_to(tmp_path / "nowhere")

    with pytest.raises(ScaffoldConflictError, match="exists already"):
        scaffold_environment(tmp_path, "mine")

    assert not (tmp_path / "resources_servers").exists()


def test_a_folder_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    """A full disk or a missing right is one sentence."""
    (tmp_path / "resources_servers").write_text("a file")

    with pytest.raises((ConfigError, FileExistsError, NotADirectoryError)):
        scaffold_resources_server(tmp_path / "resources_servers" / "mine")

    assert sorted(path.name for path in tmp_path.iterdir()) == ["resources_servers"]


@pytest.mark.parametrize(
    ("name", "offer"),
    [("Word-Mirror", "word_mirror"), ("class", "my_class"), ("../x", "x"), ("7up", "my_7up"), ("ä", "my"), ("", "my")],
)
def test_a_name_python_cannot_import_is_refused_with_one_it_can(name: str, offer: str) -> None:
    """The folder is a module; saying so later, at import, would be unkind."""
    with pytest.raises(ConfigError) as raised:
        checked_name(name)

    assert raised.value.fix == offer
    assert checked_name(offer) == offer


def test_nothing_to_make_is_a_question_back(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`gym env init` alone says what it needs."""
    assert main(["env", "init"]) == 1
    assert "--resources-server NAME" in capsys.readouterr().err


def test_inside_a_checkout_the_checkout_is_required(tmp_path: Path) -> None:
    """The customary first line, with the way there counted from where the folder is."""
    made = scaffold_resources_server(tmp_path / "resources_servers" / "mine", tmp_path)
    elsewhere = scaffold_resources_server(tmp_path / "resources_servers" / "other", tmp_path / "checkout")

    assert (made.asset_dir / "requirements.txt").read_text() == "-e nemo-gym[dev] @ ../../\n"
    assert (elsewhere.asset_dir / "requirements.txt").read_text() == "nemo-gym[dev]\n"
