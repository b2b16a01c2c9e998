"""A manifest is believed only where the files around it say the same."""

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.catalog.roots import PARENT_DIR
from nemo_gym.cli.main import main
from nemo_gym.environment.check import check_manifest, configured, synchronised
from nemo_gym.environment.manifest import read_manifest
from nemo_gym.errors import ConfigError
from nemo_gym.scaffold.plan import scaffold_environment

PLACE = "benchmarks/mine"


@pytest.fixture
def benchmark(tmp_path: Path) -> Path:
    """A generated benchmark: it has everything there is to check."""
    scaffold_environment(tmp_path, "mine", kind="benchmark")
    return tmp_path


def findings(root: Path) -> list[str]:
    path = root / PLACE / "manifest.yaml"
    return [str(finding) for finding in check_manifest(path, read_manifest(path), [root])]


def test_what_was_just_made_is_as_it_says(benchmark: Path) -> None:
    assert findings(benchmark) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("manifest.yaml", "agent_server: simple_agent", "agent_server: other",
         'manifest.yaml: agent_server is "other", config.yaml says "simple_agent"'),
        ("manifest.yaml", "model_server: policy_model", "", "model_server is not said, config.yaml says"),
        ("config.yaml", "name: policy_model", "name: judge", 'config.yaml says "judge"'),
        ("prepare.py", "def prepare(", "def prepared(", "prepare.py: defines no function prepare()"),
        ("prepare.py", "def prepare(", "def prepare", "prepare.py: line 11"),
        ("data/example.jsonl", '"role": "user", ', "", "example.jsonl:1: responses_create_params"),
        ("data/example.jsonl", "{", "[", "example.jsonl:1: is not JSON"),
    ],
)  # fmt: skip
def test_each_difference_is_named(benchmark: Path, file: str, old: str, new: str, said: str) -> None:
    path = benchmark / PLACE / file
    path.write_text(path.read_text().replace(old, new, 1))

    (found,) = [finding for finding in findings(benchmark) if said in finding]
    assert found


@pytest.mark.parametrize("file", ["prepare.py", "prompt.yaml", "data/example.jsonl"])
def test_what_is_missing_is_named(benchmark: Path, file: str) -> None:
    (benchmark / PLACE / file).unlink()

    assert findings(benchmark) == [f"{PLACE}/{file}: does not exist"]


def test_an_empty_dataset_has_no_rows(benchmark: Path) -> None:
    (benchmark / PLACE / "data/example.jsonl").write_text("")

    assert findings(benchmark) == [f"{PLACE}/data/example.jsonl: has no rows"]


def test_rows_that_wait_to_be_prepared_are_not_missed(benchmark: Path) -> None:
    assert not (benchmark / PLACE / "data/mine.jsonl").exists()
    assert findings(benchmark) == []


def test_two_agents_with_data_are_one_too_many(benchmark: Path) -> None:
    path = benchmark / PLACE / "config.yaml"
    text = path.read_text()
    path.write_text(text + text[text.index("mine_simple_agent:") :].replace("mine_simple_agent:", "second:"))

    with pytest.raises(ConfigError, match="2 agents have datasets"):
        configured(path, [benchmark])


def test_synchronising_writes_what_the_configuration_says_and_nothing_else(benchmark: Path) -> None:
    path = benchmark / PLACE / "manifest.yaml"
    before = read_manifest(path)
    path.write_text(path.read_text().replace("agent_server: simple_agent", "agent_server: other"))

    synchronised(path, read_manifest(path), [benchmark])

    assert read_manifest(path) == before
    assert path.read_text().startswith("# What this benchmark is")
    assert findings(benchmark) == []


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return dict(json.loads(capsys.readouterr().out))


def test_the_command_tells_and_cures(
    benchmark: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One command to look, the same with --sync to make it so."""
    monkeypatch.chdir(benchmark)
    path = benchmark / PLACE / "manifest.yaml"
    path.write_text(path.read_text().replace("agent_server: simple_agent", "agent_server: other"))

    statuses = [main(["env", "validate", "mine"])]
    advice = capsys.readouterr().err
    statuses += [main(["env", "validate", "--manifest", str(path), "--json"])]
    wrong = told(capsys)
    statuses += [main(["env", "validate", "mine", "--kind", "benchmark", "--sync"])]
    capsys.readouterr()
    statuses += [main(["env", "validate", "mine", "--json"])]

    assert statuses == [1, 1, 0, 0]
    assert "try: gym env validate mine --kind benchmark --sync" in advice
    assert (wrong["valid"], len(wrong["problems"])) == (False, 1)
    assert told(capsys)["valid"] is True


@pytest.mark.parametrize("words", [["nowhere"], ["--sync"], ["mine", "--manifest", f"{PLACE}/manifest.yaml", "x=1"]])
def test_a_name_nobody_has_is_a_usage_error(benchmark: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.chdir(benchmark)

    assert main(["env", "validate", *words]) == (0 if "mine" in words else 2)


def test_our_own_environments_are_as_they_say() -> None:
    for path in sorted(PARENT_DIR.glob("environments/*/manifest.yaml")):
        assert check_manifest(path, read_manifest(path), [PARENT_DIR]) == []
