"""A manifest must agree with the files around it, and be complete before it is published."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from nemo_gym.authoring.manifest import read_manifest
from nemo_gym.authoring.manifest_checks import (
    ManifestProblem,
    check_manifest,
    check_publishable,
    configured_fields,
    sync_manifest,
)
from nemo_gym.authoring.scaffold import scaffold_environment
from nemo_gym.cli.main import main
from nemo_gym.config.search_roots import PARENT_DIR
from nemo_gym.errors import ConfigError

FOLDER = "benchmarks/mine"


@pytest.fixture
def benchmark(tmp_path: Path) -> Path:
    """A generated benchmark: it has every part that is checked."""
    scaffold_environment(tmp_path, "mine", kind="benchmark")
    return tmp_path


def problems(root: Path) -> list[str]:
    path = root / FOLDER / "manifest.yaml"
    return [str(problem) for problem in check_manifest(path, read_manifest(path), [root])]


def test_a_generated_benchmark_has_no_problems(benchmark: Path) -> None:
    """The first thing an author runs must pass."""
    assert problems(benchmark) == []


def test_further_fields_of_a_dataset_are_no_difference_and_stay(benchmark: Path) -> None:
    """A manifest may describe a dataset in more words than the configuration has."""
    path = benchmark / FOLDER / "manifest.yaml"
    fields = yaml.safe_load(path.read_text())
    fields["datasets"][0]["card"] = "hub/mine"
    path.write_text(yaml.safe_dump(fields, sort_keys=False))

    assert problems(benchmark) == []
    sync_manifest(path, read_manifest(path), [benchmark])
    assert read_manifest(path).datasets[0].model_extra == {"card": "hub/mine"}


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("manifest.yaml", "agent_server: simple_agent", "agent_server: other",
         'manifest.yaml: agent_server is "other", config.yaml has "simple_agent"'),
        ("manifest.yaml", "model_server: policy_model", "", "model_server is missing, config.yaml has"),
        ("config.yaml", "name: policy_model", "name: judge", 'config.yaml has "judge"'),
        ("prepare.py", "def prepare(", "def prepared(", "prepare.py: defines no function prepare()"),
        ("prepare.py", "def prepare(", "def prepare", "prepare.py: line 11"),
        ("data/example.jsonl", '"role": "user", ', "", "example.jsonl:1: responses_create_params"),
        ("data/example.jsonl", "{", "[", "example.jsonl:1: the line is not JSON"),
        ("data/example.jsonl", "{", '{"a": 1, "a": 2, ', "example.jsonl:1: the key 'a' is given twice"),
    ],
)  # fmt: skip
def test_each_difference_is_named(benchmark: Path, file: str, old: str, new: str, message: str) -> None:
    """The author must see which file to change."""
    path = benchmark / FOLDER / file
    path.write_text(path.read_text().replace(old, new, 1))

    assert len([problem for problem in problems(benchmark) if message in problem]) == 1


@pytest.mark.parametrize("file", ["prepare.py", "prompt.yaml", "data/example.jsonl"])
def test_a_missing_file_is_named(benchmark: Path, file: str) -> None:
    """A file that was never committed is a frequent mistake."""
    (benchmark / FOLDER / file).unlink()

    assert problems(benchmark) == [f"{FOLDER}/{file}: does not exist"]


def test_an_empty_dataset_has_no_rows(benchmark: Path) -> None:
    """An evaluation without rows would look like a success."""
    (benchmark / FOLDER / "data/example.jsonl").write_text("")

    assert problems(benchmark) == [f"{FOLDER}/data/example.jsonl: has no rows"]


def test_rows_that_a_script_prepares_may_be_missing(benchmark: Path) -> None:
    """Prepared rows are not committed."""
    assert not (benchmark / FOLDER / "data/mine.jsonl").exists()
    assert problems(benchmark) == []


def test_two_agents_with_data_are_an_error(benchmark: Path) -> None:
    """A manifest describes the datasets of one agent."""
    path = benchmark / FOLDER / "config.yaml"
    text = path.read_text()
    path.write_text(text + text[text.index("mine_simple_agent:") :].replace("mine_simple_agent:", "second:"))

    with pytest.raises(ConfigError, match="2 servers have datasets"):
        configured_fields(path, [benchmark])
    assert configured_fields(path, [benchmark], "second")["agent_server"] == "simple_agent"
    with pytest.raises(ConfigError, match="dataset_owner 'third' has no datasets"):
        configured_fields(path, [benchmark], "third")


def test_datasets_may_belong_to_the_resources_server(tmp_path: Path) -> None:
    """Newer configurations declare data where it is verified; the agent is the one that uses the server."""
    path = tmp_path / "config.yaml"
    datasets = "[{name: e, type: example, jsonl_fpath: d.jsonl}]"
    agent = "{entrypoint: app.py, resources_server: {type: resources_servers, name: v}}"
    verifier = f"v: {{resources_servers: {{sums: {{entrypoint: app.py, domain: math, datasets: {datasets}}}}}}}"
    path.write_text(f"{verifier}\na: {{responses_api_agents: {{simple_agent: {agent}}}}}\n")

    fields = configured_fields(path, [tmp_path])

    assert (fields["resources_server"], fields["agent_server"]) == ("sums", "simple_agent")
    assert [dataset["name"] for dataset in fields["datasets"]] == ["e"]


def test_sync_writes_the_values_of_the_configuration_and_nothing_else(benchmark: Path) -> None:
    """The author's other fields and the comment must survive."""
    path = benchmark / FOLDER / "manifest.yaml"
    before = read_manifest(path)
    path.write_text(path.read_text().replace("agent_server: simple_agent", "agent_server: other"))

    sync_manifest(path, read_manifest(path), [benchmark])

    assert read_manifest(path) == before
    assert path.read_text().startswith("# Describes this benchmark")
    assert problems(benchmark) == []


def printed_json(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return dict(json.loads(capsys.readouterr().out))


def test_the_command_reports_and_syncs(
    benchmark: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The advice of the first command must solve the problem."""
    monkeypatch.chdir(benchmark)
    path = benchmark / FOLDER / "manifest.yaml"
    path.write_text(path.read_text().replace("agent_server: simple_agent", "agent_server: other"))

    statuses = [main(["env", "validate", "mine"])]
    advice = capsys.readouterr().err
    statuses += [main(["env", "validate", "--manifest", str(path), "--json"])]
    wrong = printed_json(capsys)
    statuses += [main(["env", "validate", "mine", "--kind", "benchmark", "--sync"])]
    capsys.readouterr()
    statuses += [main(["env", "validate", "mine", "--json"])]

    assert statuses == [1, 1, 0, 0]
    assert "try: gym env validate mine --kind benchmark --sync" in advice
    assert (wrong["valid"], len(wrong["problems"])) == (False, 1)
    assert printed_json(capsys)["valid"] is True


@pytest.mark.parametrize("words", [["nowhere"], ["--sync"], ["mine", "--manifest", f"{FOLDER}/manifest.yaml", "x=1"]])
def test_an_unknown_name_is_a_usage_error(benchmark: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    """A script must be able to tell a typing error from a finding."""
    monkeypatch.chdir(benchmark)

    assert main(["env", "validate", *words]) == (0 if "mine" in words else 2)


def test_the_shipped_environments_have_no_problems() -> None:
    """Authors copy them."""
    for path in sorted(PARENT_DIR.glob("environments/*/manifest.yaml")):
        assert check_manifest(path, read_manifest(path), [PARENT_DIR]) == []


COMPLETED = {
    "Say here in one sentence what is asked of the model and how the reply is graded.": "Repeat one word.",
    "whom to ask": "Ada Lovelace",
    "licensing: unknown": "licensing: Apache-2.0",
}


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """The manifest of a new environment with every placeholder replaced."""
    scaffold_environment(tmp_path, "words", None, kind="environment", roots=[tmp_path])
    path = tmp_path / "environments" / "words" / "manifest.yaml"
    replace_text(path, COMPLETED)
    replace_text(tmp_path / "resources_servers" / "words" / "README.md", {"Say here what": "This is what"})
    return path


def replace_text(path: Path, words: dict[str, str]) -> None:
    text = path.read_text()
    for old, new in words.items():
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


def publish_problems(path: Path, *roots: Path) -> list[ManifestProblem]:
    return check_publishable(path, read_manifest(path), roots or [path.parents[2]])


def test_a_completed_environment_can_be_published(manifest: Path) -> None:
    """The checks must not ask for more than the scaffold does."""
    assert publish_problems(manifest) == []


@pytest.mark.parametrize(("generated", "completed"), COMPLETED.items())
def test_every_placeholder_must_be_replaced(manifest: Path, generated: str, completed: str) -> None:
    """A listing full of "say here" does not help to choose."""
    replace_text(manifest, {completed: generated})

    (problem,) = publish_problems(manifest)
    assert "manifest.yaml" in problem.where


def test_a_placeholder_in_a_readme_is_named_by_line(manifest: Path) -> None:
    """READMEs are long."""
    (manifest.parent / "README.md").write_text("# Words\n\nTODO: say more\n")

    assert [str(problem) for problem in publish_problems(manifest)] == [
        "environments/words/README.md:3: still contains 'TODO'",
    ]


def test_a_missing_readme_is_a_problem(manifest: Path) -> None:
    """Users read it first."""
    (manifest.parent / "README.md").unlink()

    assert [problem.problem for problem in publish_problems(manifest)] == ["does not exist"]


def test_a_second_environment_of_the_same_name_is_a_problem(manifest: Path, tmp_path: Path) -> None:
    """The working directory would decide which of the two is evaluated."""
    other = tmp_path / "elsewhere"
    shutil.copytree(manifest.parent, other / "environments" / "words")

    (problem,) = publish_problems(manifest, tmp_path, other)

    assert str(other) in problem.problem


def test_an_environment_outside_the_search_roots_is_a_problem(manifest: Path, tmp_path: Path) -> None:
    """Users could not select it by name."""
    moved = tmp_path / "drafts" / "words"
    shutil.copytree(manifest.parent, moved)
    shutil.rmtree(manifest.parent)

    assert any(
        "cannot be found by name" in problem.problem for problem in publish_problems(moved / "manifest.yaml", tmp_path)
    )
