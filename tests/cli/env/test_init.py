"""`gym env init` gives something that works before the first change."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.authoring.manifest import PROFILES, read_manifest
from nemo_gym.authoring.scaffold import (
    ScaffoldConflictError,
    check_name,
    scaffold_environment,
    scaffold_resources_server,
)
from nemo_gym.cli.main import main
from nemo_gym.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]
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


def suite(folder: Path, *paths: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *paths],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_generated_folders_pass_their_tests(here: Path) -> None:
    """The first thing an author does is run them; red would be a bad welcome."""
    made = [
        main(["env", "init", "--environment", "one", "--profile", "custom-gym-agent-loop"]),
        main(["env", "init", "--benchmark", "two", "--profile", "external-agent-loop"]),
    ]

    done = suite(here, "resources_servers", "responses_api_agents")

    assert made == [0, 0]
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20 passed" in done.stdout  # two servers with nine tests each, two agents with one


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("kind", ["environment", "benchmark"])
def test_every_kind_and_profile_is_complete(here: Path, kind: str, profile: Any) -> None:
    """Its configuration is valid and its manifest says what it is."""
    name = f"mine_{kind}_{PROFILES.index(profile)}"  # modules of other tests are loaded already
    assert main(["env", "init", f"--{kind}", name, "--profile", profile]) == 0

    folder = here / f"{kind}s" / name
    manifest = read_manifest(folder / "manifest.yaml")
    assert (manifest.name, manifest.kind, manifest.integration_profile) == (name, kind, profile)
    assert main(["env", "validate", f"--{kind}", name]) == 0
    assert len((folder / "data" / "example.jsonl").read_text().splitlines()) == 5
    extra = {path.name for path in folder.iterdir()} - {"__init__.py", "manifest.yaml", "config.yaml", "README.md"}
    assert extra == {"data"} | ({"prepare.py", "prompt.yaml"} if kind == "benchmark" else set()) | (
        {"rollout_driver.py"} if profile == "external-rollout-driver" else set()
    )
    assert (here / "responses_api_agents" / f"{name}_agent").exists() == profile.endswith("agent-loop")


@pytest.mark.parametrize("profile", ["external-agent-loop", "external-rollout-driver"])
def test_the_new_environment_can_be_evaluated(here: Path, profile: str) -> None:
    """Rows, agent, verifier and metrics fit together: one of the five rows is answered by the script."""
    assert main(["env", "init", "--environment", "word_mirror", "--profile", profile]) == 0
    (here / "script.yaml").write_text(SCRIPT)

    words = ["eval", "run", "--environment", "word_mirror", "--config", "script.yaml", "-o", "out.jsonl"]
    done = subprocess.run(
        [sys.executable, "-m", "nemo_gym.cli.main", *words], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    rewards = [json.loads(line)["reward"] for line in (here / "out.jsonl").read_text().splitlines()]
    assert sorted(rewards) == [0.0, 0.0, 0.0, 0.0, 1.0]


def test_a_new_benchmark_can_be_prepared(here: Path) -> None:
    """A generated prepare script must work as it is."""
    main(["env", "init", "--benchmark", "back_words"])

    assert main(["eval", "prepare", "--benchmark", "back_words"]) == 0
    rows = (here / "benchmarks/back_words/data/back_words.jsonl").read_text().splitlines()
    assert len(rows) == 10
    assert set(json.loads(rows[0])) == {"question", "expected_answer"}


def test_a_verifier_that_is_there_can_be_reused(here: Path) -> None:
    """Ten environments of one kind need one verifier, and its settings come along."""
    main(["env", "init", "--resources-server", "judge"])
    config = here / "resources_servers/judge/configs/judge.yaml"
    config.write_text(config.read_text().replace("domain: other", "domain: games"))

    status = main(
        ["env", "init", "--environment", "riddles", "--reuse-verifier", "judge", "--reward-range", "-1", "2",
         "--lower-is-better"]
    )  # fmt: skip

    manifest = read_manifest(here / "environments/riddles/manifest.yaml")
    assert status == 0
    assert not (here / "resources_servers/riddles").exists()
    assert (manifest.resources_server, manifest.domain, manifest.reward.best) == ("judge", "games", -1.0)
    assert main(["env", "validate", "--environment", "riddles"]) == 0


def test_the_rows_of_a_reused_verifier_are_its_own(here: Path) -> None:
    """Rows with other fields would be refused by the verifier, every one of them."""
    words = ["--reuse-verifier", "arithmetic", "--reward-range", "0", "1", "--higher-is-better"]

    assert main(["env", "init", "--environment", "more_sums", *words]) == 0

    rows = [json.loads(line) for line in (here / "environments/more_sums/data/example.jsonl").read_text().splitlines()]
    assert rows and all(isinstance(row["expected_answer"], int) and "agent_ref" not in row for row in rows)


def test_the_rows_of_a_reused_verifier_may_have_empty_lines_between_them(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every other command reads such a file; a line that is no row is named."""
    main(["env", "init", "--resources-server", "judge"])
    rows = here / "resources_servers/judge/data/example.jsonl"
    first = rows.read_text().splitlines()[0]
    words = ["--reuse-verifier", "judge", "--reward-range", "0", "1", "--higher-is-better"]

    rows.write_text(f"{first}\n\n{first}\n")
    assert main(["env", "init", "--environment", "riddles", *words]) == 0
    assert len((here / "environments/riddles/data/example.jsonl").read_text().splitlines()) == 2
    rows.write_text(f"{first}\n[1]\n")
    assert main(["env", "init", "--environment", "jokes", *words]) != 0

    assert "example.jsonl:2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "the name is missing"),
        (["--resources-server", "x", "--profile", "custom-gym-verifier"], "only with --environment or --benchmark"),
        (["--environment", "x", "--reuse-verifier", "y"], "the rewards of this verifier must be described"),
        (["--environment", "x", "--reward-range", "0", "1"], "these flags describe a reused verifier"),
        (
            ["--environment", "x", "--reuse-verifier", "y", "--reward-range", "1", "0", "--higher-is-better"],
            "1 is not below 0",
        ),
    ],
)
def test_contradicting_flags_are_a_usage_error(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], complaint: str
) -> None:
    """The message must name what to add or leave out, and nothing is written."""
    assert main(["env", "init", *words]) == 2
    assert complaint in capsys.readouterr().err
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    "words", [["--environment", "x", "--benchmark", "y"], ["--environment", "x", "--profile", "p"]]
)
def test_unknown_choices_are_a_usage_error(here: Path, words: list[str]) -> None:
    """Scripts rely on exit status 2."""
    with pytest.raises(SystemExit) as stopped:
        main(["env", "init", *words])

    assert stopped.value.code == 2


@pytest.mark.parametrize(
    ("source", "complaint"),
    [(None, "resources_servers/y/app.py not found"), ("X = 1\n", "exports no VERIFIER_FIXTURE")],
)
def test_a_verifier_that_cannot_be_reused_is_named(
    here: Path, capsys: pytest.CaptureFixture[str], source: str | None, complaint: str
) -> None:
    """The error must come before files are written."""
    if source is not None:
        (here / "resources_servers/y").mkdir(parents=True)
        (here / "resources_servers/y/app.py").write_text(source)

    words = ["--reuse-verifier", "y", "--reward-range", "0", "1", "--higher-is-better"]
    assert main(["env", "init", "--environment", "x", *words]) == 1

    assert complaint in capsys.readouterr().err
    assert not (here / "environments").exists()


def test_existing_files_are_never_changed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second `init` by habit must not cost an afternoon's work."""
    main(["env", "init", "--resources-server", "mine"])
    app = here / "resources_servers" / "mine" / "app.py"
    app.write_text("# an afternoon's work\n")

    server_status = main(["env", "init", "--resources-server", "mine"])
    message = capsys.readouterr().err
    environment_status = main(["env", "init", "--environment", "mine"])

    assert (server_status, environment_status) == (0, 1)
    assert "nothing was changed" in message
    assert "exists with other content: resources_servers/mine/app.py" in capsys.readouterr().err
    assert app.read_text() == "# an afternoon's work\n"
    assert not (here / "environments").exists()


def test_files_that_are_already_as_they_would_be_are_kept(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An interrupted or repeated `init` is finished by typing it again."""
    main(["env", "init", "--environment", "mine"])
    lost = here / "environments/mine/README.md"
    lost.unlink()
    capsys.readouterr()

    assert main(["env", "init", "--environment", "mine"]) == 0
    assert capsys.readouterr().out == "environments/mine/README.md\n"


def test_a_link_in_the_way_stops_everything(tmp_path: Path) -> None:
    """Following the link would write to another folder."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "environments").mkdir()
    (tmp_path / "environments" / "mine").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(ScaffoldConflictError, match="environments/mine"):
        scaffold_environment(tmp_path, "mine")

    assert not (tmp_path / "resources_servers").exists()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_folder_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    """A full disk or a missing permission must be one clear error."""
    (tmp_path / "resources_servers").write_text("a file")

    with pytest.raises(ConfigError, match="cannot be written"):
        scaffold_environment(tmp_path, "mine")

    assert sorted(path.name for path in tmp_path.iterdir()) == ["resources_servers"]


@pytest.mark.parametrize(
    ("name", "offer"),
    [("Word-Mirror", "word_mirror"), ("class", "my_class"), ("../x", "x"), ("7up", "my_7up"), ("ä", "my"), ("", "my")],
)
def test_a_name_python_cannot_import_is_refused_with_one_it_can(name: str, offer: str) -> None:
    """The folder is a Python module; an error at import time would come too late."""
    with pytest.raises(ConfigError) as raised:
        check_name(name)

    assert raised.value.fix == offer
    assert check_name(offer) == offer


def test_inside_a_checkout_the_checkout_is_required(tmp_path: Path) -> None:
    """Other folders of a checkout start with this requirement."""
    made = scaffold_resources_server(tmp_path / "resources_servers" / "mine", tmp_path)
    elsewhere = scaffold_resources_server(tmp_path / "resources_servers" / "other", tmp_path / "checkout")

    assert (made.asset_dir / "requirements.txt").read_text() == "-e nemo-gym[dev] @ ../../\n"
    assert (elsewhere.asset_dir / "requirements.txt").read_text() == "nemo-gym[dev]\n"
