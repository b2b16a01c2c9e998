"""`SOURCE:ID?key=value` names one environment, and every mistake in it has one clear error."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nemo_gym.adapters.rows import write_missing_rows
from nemo_gym.cli.main import main
from nemo_gym.config import environment_sources
from nemo_gym.config.environment_sources import UnknownEnvironment, environment_tree, is_source_name, parse_name
from nemo_gym.config.load import load_files
from nemo_gym.errors import ConfigError
from tests.adapters.coin_source import write_source


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A search root with one source; rows are written below it, and its modules are forgotten at the end."""
    monkeypatch.setattr(environment_sources, "CACHE_DIR", tmp_path / "cache")
    write_source(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if f"{name}.".startswith("resources_servers.coins.")]:
        del sys.modules[name]


def rows_of(root: Path, name: str) -> list[dict]:
    (path,) = write_missing_rows({"config_paths": [name]}, [root], notify=lambda _: None)
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("name", "problem", "fix"),
    [
        ("coin:Coins-v0", "unknown source 'coin'", "coins:Coins-v0"),
        ("coins:Coin-v0", "has no environment 'Coin-v0'", "coins:Coins-v0"),
        ("coins:Notes-v0", "cannot be run: it needs paper", None),
        ("coins:Coins-v0?size=0", "size=0 is not a whole number from 1", None),
        ("coins:Coins-v0?size=1000001", "size=1000001 is not a whole number from 1 to 1,000,000", None),
        ("coins:Coins-v0?size=yes", "size=True is not", None),
        ("coins:Coins-v0?seed=-1", "seed=-1 is not", None),
        ("coins:Coins-v0?num_players=two", "num_players=two is not a whole number from 1", None),
        ("coins:Coins-v0?num_players=-2", "num_players=-2 is not a whole number from 1", None),
        ("coins:Coins-v0?split=dev", "split=dev is not one of validation, train, test", None),
        ("coins:Coins-v0?size", "is not of the form key=value", "SOURCE:ID?size=50"),
        ("coins:Coins-v0?size=3&size=4", "a setting is given twice", None),
    ],
)
def test_a_mistake_in_a_name_is_reported_with_what_to_write(root, name, problem, fix):
    """The name is the only input of most users, so its error must say what to write instead."""
    with pytest.raises(UnknownEnvironment) as error:
        parse_name(name, [root])

    assert problem in error.value.problem
    assert fix is None or fix in error.value.fix


@pytest.mark.parametrize("value", ["2024-01-01", ".nan", "!!set {a}"])
def test_a_value_that_json_has_not_is_a_text(root, value):
    """YAML reads a date where a constructor expects its text, and no row can contain the date."""
    assert rows_of(root, f"coins:Coins-v0?size=1&day={value}")[0]["arguments"] == {"day": value}


def test_an_unknown_setting_is_an_error_if_the_source_takes_no_arguments(root):
    """A misspelt setting that was silently ignored would evaluate another environment than the user asked for."""
    path = root / "resources_servers" / "coins" / "source.yaml"
    path.write_text(path.read_text() + "arguments: false\n")

    with pytest.raises(UnknownEnvironment, match="unknown setting 'oponent'") as error:
        parse_name("coins:Coins-v0?oponent=first_move", [root])

    assert error.value.fix == "opponent"


def test_paths_of_files_are_no_names():
    """A file such as `a:b.yaml` in config_paths keeps its meaning."""
    assert is_source_name("textarena:TicTacToe-v0?size=2")
    assert not any(map(is_source_name, ("conf/a.yaml", "a:b.yaml", "c:/x", "c:\\x", "arithmetic", "A:b")))


def test_the_rows_differ_in_seed_and_player_and_splits_never_overlap(root):
    """A training row in the validation data would measure memory, and a fixed seat would hide the first move's gain."""
    rows = rows_of(root, "coins:Coins-v0?size=4&seed=7&fault=none")
    train = rows_of(root, "coins:Coins-v0?size=4&seed=7&split=train")

    assert [row["seed"] for row in rows] == [7, 8, 9, 10]
    assert [row["player"] for row in rows] == [0, 1, 0, 1]
    assert rows[0]["arguments"] == {"fault": "none"}
    assert not {row["seed"] for row in rows} & {row["seed"] for row in train}


def test_a_player_that_the_game_does_not_have_is_refused(root):
    """Such a rollout could only fail, after the servers were started."""
    with pytest.raises(ConfigError, match="player=2 is neither alternate nor a number from 0 to 1"):
        rows_of(root, "coins:Coins-v0?player=2")


def test_the_rows_are_written_once_and_again_when_the_adapter_changes(root):
    """A resumed run must find the same file; another version of the list of ids must not."""
    name = parse_name("coins:Coins-v0?size=2", [root])
    (first,) = write_missing_rows({"config_paths": [name.text]}, [root])
    inode = first.stat().st_ino
    (again,) = write_missing_rows({"config_paths": [name.text]}, [root])
    ids = root / "resources_servers" / "coins" / "ids.json"
    ids.write_text(ids.read_text().replace('"version": "1"', '"version": "2"'))
    (other,) = write_missing_rows({"config_paths": [name.text]}, [root])

    assert (again, again.stat().st_ino) == (first, inode)
    assert other != first


def test_a_file_may_name_environments_beside_other_configurations(root):
    """The command line and a file use one form."""
    path = root / "mine.yaml"
    path.write_text("environment: [coins:Coins-v0?size=2, 'coins:Coins-v0?size=3']\n")

    files = load_files([str(path)], [root])

    instances = [key for source in files.sources for key in source.tree if key != "environment"]
    assert len(instances) == len(set(instances)) == 4
    assert "coins:Coins-v0?size=2" in files.paths


def test_a_name_that_is_no_source_in_a_file_is_an_error(root):
    """`environment: arithmetic` would otherwise start nothing."""
    path = root / "mine.yaml"
    path.write_text("environment: arithmetic\n")

    with pytest.raises(ConfigError, match="'arithmetic' is not of the form SOURCE:ID"):
        load_files([str(path)], [root])


def test_an_opponent_that_is_a_model_becomes_a_reference_to_its_server(root):
    """Only then does the configuration check that the server exists, before anything starts."""
    scripted = environment_tree(parse_name("coins:Coins-v0?opponent=first_move", [root]))
    played = environment_tree(parse_name("coins:Coins-v0?opponent=rival", [root]))

    (server, _) = played.values()
    assert server["resources_servers"]["coins"]["opponent_model"] == {"type": "responses_api_models", "name": "rival"}
    assert "opponent_model" not in next(iter(scripted.values()))["resources_servers"]["coins"]


@pytest.mark.parametrize("content", ['{"ids": ', "[]", '{"ids": {"Coins-v0": 3}}', "\xff"])
def test_a_damaged_list_of_ids_is_one_error_with_the_command_that_writes_it(root, content):
    """A half-written `ids.json` of one source ended `gym list environments` of all sources with a traceback."""
    path = root / "resources_servers" / "coins" / "ids.json"
    path.write_bytes(content.encode("latin-1"))

    with pytest.raises(ConfigError) as error:
        parse_name("coins:Coins-v0", [root])

    assert error.value.where == str(path)
    assert error.value.fix == "python -m nemo_gym.adapters.id_writer coins"


def test_a_source_without_a_list_of_ids_says_how_to_write_it(root):
    """The author of an adapter must learn which step is missing, not that the environment does not exist."""
    (root / "resources_servers" / "coins" / "ids.json").unlink()

    with pytest.raises(UnknownEnvironment, match="has no list of ids") as error:
        parse_name("coins:Coins-v0", [root])

    assert error.value.fix == "python -m nemo_gym.adapters.id_writer coins"


def test_env_validate_takes_a_name_without_a_flag(root, capsys):
    """The other commands call it NAME, and an environment of a package has no manifest that could be meant."""
    assert main(["env", "validate", "coins:Coins-v0?size=2", "--search-dir", str(root)]) == 0
    assert "✓ Config is valid" in capsys.readouterr().out

    assert main(["env", "validate", "coins:Coin-v0", "--search-dir", str(root)]) == 2
    assert "coins:Coins-v0" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["audit", "test"])
def test_commands_for_verifiers_say_why_they_do_not_take_a_name_of_a_source(command, capsys):
    """An error about a missing folder `textarena:TicTacToe-v0` would send the user looking for a file."""
    assert main(["env", command, "textarena:TicTacToe-v0"]) == 2

    assert "its package grades it" in capsys.readouterr().err
