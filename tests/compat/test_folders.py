"""Server folders as other people write them, with their own tests, run unchanged on our package.

Each suite runs in its own process, from a copy of the tree outside ours, with the tree's root and the folder itself on
the path: the way such suites are run everywhere.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import nemo_gym

FOLDERS = Path(__file__).parent / "folders"
SUITES = {
    "resources_servers/capital_cities": 7,
    "resources_servers/todo_list": 7,
    "resources_servers/essay_judge": 7,
    "responses_api_agents/second_thoughts_agent": 4,
    "responses_api_models/tiny_chat_model": 7,
}


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


def test_every_folder_here_is_run():
    """A folder that is added without its number would prove nothing."""
    assert {str(path.parent.relative_to(FOLDERS)) for path in FOLDERS.glob("*/*/app.py")} == set(SUITES)


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
