"""Server folders as other people write them, with their own tests, run unchanged on our package.

Each suite runs in its own process, from a copy of the tree outside ours, with the tree's root and the folder itself on
the path: the way such suites are run everywhere.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import nemo_gym
from nemo_gym.environment import load_manifest

FOLDERS = Path(__file__).parent / "folders"
SUITES = {
    "resources_servers/capital_cities": 7,
    "resources_servers/todo_list": 7,
    "resources_servers/essay_judge": 7,
    "responses_api_agents/second_thoughts_agent": 4,
    "responses_api_models/tiny_chat_model": 7,
}


NEWER_TREE = Path(__file__).parent / "newer_tree"
"""Folders in the style of NeMo Gym 0.7: un-annotated `ray_enabled`, no `__init__.py`, rows without `agent_ref`."""
NEWER_SUITES = {
    "environment_servers/one_turn": 2,
    "resources_servers/counter": 4,
    "resources_servers/number_guess": 2,
    "resources_servers/word_count": 4,
    "responses_api_agents/sandboxed_agent": 5,
    "responses_api_models/echo_model": 1,
}


@pytest.fixture(scope="session")
def newer_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(NEWER_TREE, tmp_path_factory.mktemp("elsewhere") / "newer"))


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(FOLDERS, tmp_path_factory.mktemp("elsewhere") / "tree"))


def environment(tree: Path, *more: Path) -> dict[str, str]:
    path = os.pathsep.join(map(str, [tree, *more, nemo_gym.PARENT_DIR]))
    return {**os.environ, "PYTHONPATH": path, "NEMO_GYM_EXTRA_ROOTS": str(tree)}


@pytest.mark.parametrize("folder", SUITES)
def test_the_suite_of_a_foreign_folder_passes(tree: Path, folder: str):
    """Drop-in means: their code, their tests, our package, and every test still passes."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", folder]

    done = subprocess.run(
        command, cwd=tree, env=environment(tree, tree / folder), capture_output=True, text=True, timeout=120
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"^{SUITES[folder]} passed\b", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.parametrize("folder", NEWER_SUITES)
def test_the_suite_of_a_folder_for_the_newest_release_passes(newer_tree: Path, folder: str):
    """Such trees have no `__init__.py`, so their folders are namespace packages beside our regular ones."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", folder]
    command += ["--import-mode=importlib"]

    done = subprocess.run(
        command,
        cwd=newer_tree,
        env=environment(newer_tree, newer_tree / folder),
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"^{NEWER_SUITES[folder]} passed\b", done.stdout, re.MULTILINE), done.stdout


def test_the_configuration_and_rows_of_the_newest_release_are_prepared(newer_tree: Path):
    """Its datasets belong to resources servers, its rows name no agent, and it has environment servers."""
    gym = [sys.executable, "-m", "nemo_gym.cli.main"]
    config = ["--config", "resources_servers/word_count/configs/word_count.yaml", "--search-dir", str(newer_tree)]
    collate = [*gym, "dataset", "collate", *config, "--mode", "example_validation", "--output-dir", "out"]

    done = subprocess.run(
        collate, cwd=newer_tree, env=environment(newer_tree), capture_output=True, text=True, timeout=120
    )

    assert done.returncode == 0, done.stdout + done.stderr
    (prepared,) = (newer_tree / "out").glob("*.jsonl")
    rows = [json.loads(line) for line in prepared.read_text().splitlines()]
    assert [row["agent_ref"]["name"] for row in rows] == ["word_count_simple_agent"] * 2
    assert [row["task_source"] for row in rows] == ["word_count"] * 2


def as_row_of_a_source(row: dict[str, Any], number: int) -> dict[str, Any]:
    return {**row, "task_source": "word_count"}


def as_task_with_identity(row: dict[str, Any], number: int) -> dict[str, Any]:
    parameters = row.pop("responses_create_params")
    task_input = {"responses_create_params": parameters, "task_data": row}
    return {"task_id": {"taskset": "words", "task_id": f"t{number}"}, "task_input": task_input}


@pytest.mark.parametrize(
    ("form", "options"),
    [(as_row_of_a_source, []), (as_task_with_identity, ["+environment_server_routes.words=word_count"])],
)
def test_a_run_with_a_search_folder_scores_rows_without_an_agent(
    newer_tree: Path, tmp_path: Path, form: Any, options: list[str]
):
    """The servers import their tree by full path; `--search-dir` must reach them, not only the command."""
    example = (newer_tree / "resources_servers" / "word_count" / "data" / "example.jsonl").read_text().splitlines()
    rows = [form(json.loads(line), number) for number, line in enumerate(example)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "-m", "nemo_gym.cli.main", "eval", "run", "--model-type", "scripted_model"]
    command += ["--config", "resources_servers/word_count/configs/word_count.yaml", "--search-dir", str(newer_tree)]
    command += ["--input", "rows.jsonl", "--output", "out.jsonl", *options]
    command += ["policy_model.responses_api_models.scripted_model.script=[{text: one two three}]"]
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "NEMO_GYM_EXTRA_ROOTS")}

    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**env, "PYTHONPATH": str(nemo_gym.PARENT_DIR)},
        capture_output=True,
        text=True,
        timeout=180,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    results = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert sorted(result["reward"] for result in results) == [0.0, 1.0]
    assert {result["agent_ref"]["name"] for result in results} == {"word_count_simple_agent"}


def test_a_game_of_a_foreign_folder_is_run(newer_tree: Path, tmp_path: Path):
    """Its server has a plain configuration and its own fields in `verifier_metadata`; all must pass the agent."""
    command = [sys.executable, "-m", "nemo_gym.cli.main", "eval", "run", "--resources-server", "number_guess"]
    command += ["--model-type", "scripted_model", "--output", str(tmp_path / "out.jsonl")]
    command += ["policy_model.responses_api_models.scripted_model.script=[{text: '4'}]"]

    done = subprocess.run(
        command, cwd=newer_tree, env=environment(newer_tree), capture_output=True, text=True, timeout=180
    )

    assert done.returncode == 0, done.stdout + done.stderr
    results = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert sorted(result["reward"] for result in results) == [0.0, 1.0]


def test_a_run_uses_the_datasets_of_a_resources_server(newer_tree: Path):
    """The newest release declares them there; a run that ignored them would find no rows in any of its folders."""
    command = [sys.executable, "-m", "nemo_gym.cli.main", "eval", "run", "--resources-server", "word_count"]
    command += ["--model-type", "scripted_model", "--output", "out.jsonl"]
    command += ["policy_model.responses_api_models.scripted_model.script=[{text: one two three}]"]

    done = subprocess.run(
        command, cwd=newer_tree, env=environment(newer_tree), capture_output=True, text=True, timeout=180
    )

    assert done.returncode == 0, done.stdout + done.stderr
    results = [json.loads(line) for line in (newer_tree / "out.jsonl").read_text().splitlines()]
    assert sorted(result["reward"] for result in results) == [0.0, 1.0]


def test_every_folder_here_is_run():
    """A folder that is added without its number would prove nothing."""
    for root, suites in ((FOLDERS, SUITES), (NEWER_TREE, NEWER_SUITES)):
        assert {str(path.parent.relative_to(root)) for path in root.glob("*/*/app.py")} == set(suites)


def test_the_manifest_of_the_newest_release_is_read(newer_tree: Path):
    """A refused manifest hides its benchmark from every list."""
    manifest = load_manifest(newer_tree / "benchmarks" / "word_count" / "manifest.yaml")

    assert (manifest.prompt_source, manifest.licensing, manifest.experimental) == ("prepared", "Apache-2.0", False)


def test_a_folder_of_another_tree_shadows_ours_and_both_are_importable(tmp_path: Path):
    """`--search-dir` puts a tree in front: its folders win, ours remain for the rest."""
    for name in ("simple_agent", "mine"):
        folder = tmp_path / "responses_api_agents" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
        (folder / "app.py").write_text("WHOSE = 'theirs'\n")
    (tmp_path / "resources_servers").mkdir()
    script = """if True:
        import nemo_gym
        from responses_api_agents.simple_agent.app import WHOSE
        from responses_api_agents.mine.app import WHOSE as also
        from resources_servers.example_single_tool_call.app import WeatherServer
        import sys
        sys.stdout.write(WHOSE + also + WeatherServer.HOSTING)
    """

    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(tmp_path), capture_output=True, text=True, timeout=60
    )

    assert done.stdout == "theirstheirscell", done.stderr
