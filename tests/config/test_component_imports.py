"""Component folders of several trees: a user's folder replaces a shipped one of that name, and hides no other."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SHIPPED = "resources_servers.arithmetic.app"


def imported_files(tree: Path, *modules: str, before: str = "import nemo_gym") -> list[str]:
    """Import modules in a process that runs in `tree`; return the files they came from."""
    script = f"{before}\nimport importlib, json, sys\n"
    script += f"print(json.dumps([importlib.import_module(name).__file__ for name in {list(modules)!r}]))"
    run = subprocess.run([sys.executable, "-c", script], cwd=tree, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize("before", ["import nemo_gym", "import resources_servers, nemo_gym"])
@pytest.mark.parametrize("tree_has_init", [True, False])
@pytest.mark.parametrize("folder_has_init", [True, False])
def test_a_folder_of_the_user_replaces_a_shipped_one_and_hides_no_other(
    tmp_path, tree_has_init, folder_has_init, before
):
    """Trees written for NeMo Gym have folders named like ours, most without `__init__.py`."""
    own = write(tmp_path / "resources_servers/mcqa/app.py")
    if tree_has_init:
        write(tmp_path / "resources_servers/__init__.py")
    if folder_has_init:
        write(own.with_name("__init__.py"))

    files = imported_files(tmp_path, "resources_servers.mcqa.app", SHIPPED, before=before)

    assert files[0] == str(own)
    assert files[1].endswith("arithmetic/app.py")


def test_a_folder_of_the_user_is_not_merged_with_the_shipped_one_of_that_name(tmp_path):
    """A module that the user's folder lacks is missing, not taken from another implementation."""
    write(tmp_path / "resources_servers/code_gen/app.py")

    with pytest.raises(AssertionError, match=r"No module named 'resources_servers\.code_gen\.trial'"):
        imported_files(tmp_path, "resources_servers.code_gen.trial")


def test_a_folder_with_data_only_does_not_replace_a_component(tmp_path):
    """Prepared rows are written below the working directory, under the name of the shipped benchmark."""
    write(tmp_path / "resources_servers/arithmetic/data/train.jsonl")

    assert imported_files(tmp_path, SHIPPED)[0].endswith("resources_servers/arithmetic/app.py")


def test_a_module_of_the_user_named_like_a_component_folder_stays_what_the_name_means(tmp_path):
    """`benchmarks.py` and `environments.py` are common names in other projects."""
    own = write(tmp_path / "benchmarks.py")

    assert imported_files(tmp_path, "benchmarks") == [str(own)]


def test_a_folder_without_init_is_found_before_nemo_gym_is_imported(tmp_path):
    """A test of the user imports `resources_servers.mcqa.app` in its first line."""
    own = write(tmp_path / "resources_servers/mcqa/app.py")

    assert imported_files(tmp_path, "resources_servers.mcqa.app", before="import sys") == [str(own)]
