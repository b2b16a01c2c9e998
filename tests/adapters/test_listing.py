"""`gym list environments --source` and `gym search` show environments of other packages, also those that cannot run."""

import json
from pathlib import Path

import pytest

from nemo_gym.cli.main import main
from nemo_gym.config.environment_sources import parse_name
from tests.adapters.coin_source import write_source


@pytest.fixture
def root(tmp_path: Path) -> str:
    write_source(tmp_path)
    return str(tmp_path)


def test_a_source_lists_its_environments_with_the_reason_why_some_cannot_run(root, capsys):
    """A user must learn before a run, not from its failures, that an id of the package cannot be run here."""
    assert main(["list", "environments", "--source", "coins", "--search-dir", root, "--json"]) == 0

    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert listed["coins:Coins-v0"]["description"] == "2 players"
    assert listed["coins:Notes-v0"]["status"] == "refused"
    assert listed["coins:Notes-v0"]["description"] == "cannot be run: it needs paper"


def test_an_unknown_source_is_an_error_with_the_nearest_one(root, capsys):
    """A misspelt source would otherwise look like one without environments."""
    assert main(["list", "environments", "--source", "coin", "--search-dir", root]) == 2

    assert "unknown source 'coin'\n  try: coins" in capsys.readouterr().err


def test_one_environment_is_shown_with_the_command_that_runs_it(root, capsys):
    """The name has characters of the shell, so the command quotes it."""
    assert main(["list", "environments", "coins:Coins-v0", "--search-dir", root]) == 0

    assert "gym eval run --environment 'coins:Coins-v0'" in capsys.readouterr().out


def test_search_finds_environments_of_packages_that_can_be_run(root, capsys):
    """A user does not know which package has a game; the search must say so."""
    assert main(["search", "coins-v0", "--search-dir", root, "--json"]) == 0
    names = {entry["name"] for entry in json.loads(capsys.readouterr().out)}
    assert main(["search", "notes-v0", "--search-dir", root, "--json"]) == 0
    refused = {entry["name"] for entry in json.loads(capsys.readouterr().out)}

    assert "coins:Coins-v0" in names
    assert "coins:Notes-v0" not in refused


def test_the_list_of_all_environments_names_the_sources(root, capsys):
    """Their environments are many, so the list only says where they are."""
    assert main(["list", "environments", "--search-dir", root]) == 0

    assert "coins (1)" in capsys.readouterr().err


def test_validate_checks_the_name_and_writes_no_rows(root, capsys, tmp_path, monkeypatch):
    """A check must need neither the package nor its rows."""
    monkeypatch.chdir(tmp_path)
    assert main(["env", "validate", "--environment", "coins:Coins-v0", "--search-dir", root]) == 0
    assert main(["env", "validate", "--environment", "coins:Notes-v0", "--search-dir", root]) == 2

    output = capsys.readouterr()
    assert "2 server instances: coins_coins_v0, coins_coins_v0_agent" in output.out
    assert "cannot be run: it needs paper" in output.err
    assert not (tmp_path / "cache").exists()


def test_a_source_of_packages_is_listed_found_and_runs_any_name(tmp_path, capsys):
    """Its environments are packages of the user, of which there is no list; the source must not look empty."""
    folder = write_source(tmp_path)
    text = (folder / "source.yaml").read_text()
    (folder / "source.yaml").write_text(text + "imports_ids: true\n")
    (folder / "ids.json").write_text('{"version": "1", "ids": {}}')

    assert main(["list", "environments", "--source", "coins", "--search-dir", str(tmp_path)]) == 0
    assert "coins:NAME" in capsys.readouterr().out
    assert main(["search", "coins", "--search-dir", str(tmp_path)]) == 0
    assert "coins:NAME" in capsys.readouterr().out
    assert main(["list", "environments", "--search-dir", str(tmp_path)]) == 0
    assert "coins (packages)" in capsys.readouterr().err
    assert parse_name("coins:my-own_package?size=3", [tmp_path]).id == "my-own_package"
