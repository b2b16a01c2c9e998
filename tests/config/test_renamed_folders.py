"""Documents that name the weather example as it was called first are still right."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_gym.catalog.component_names import RESOURCES_SERVER, config_file
from nemo_gym.config import search_roots
from nemo_gym.config.load import load_files
from nemo_gym.config.search_roots import PARENT_DIR, _resolve_under_cwd_or_install, current_path
from nemo_gym.launch.folder_tests import folder_tests_of
from nemo_gym.launch.hosted_instances import find_instances

NOW = PARENT_DIR / "resources_servers/example_single_tool_call"
NAMES = pytest.mark.parametrize("name", ["simple_weather", "example_simple_weather"])


@pytest.fixture(autouse=True)
def clear_warnings() -> None:
    search_roots._warn_of_rename.cache_clear()


@NAMES
def test_an_earlier_name_finds_the_example_and_warns_once(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Published commands keep working, and the user learns the new name without a flood of warnings."""
    with caplog.at_level(logging.WARNING):
        files = [config_file(RESOURCES_SERVER, name, [PARENT_DIR]) for _ in range(3)]

    assert set(files) == {NOW / f"configs/earlier_names/{name}.yaml"}
    (message,) = caplog.messages
    assert message.startswith(f"resources_servers/{name} is called resources_servers/example_single_tool_call now")


@NAMES
def test_a_config_path_of_the_seed_loads_servers_under_the_names_of_the_seed(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The README's commands set keys of these instances by name."""
    loaded = load_files([f"resources_servers/{name}/configs/{name}.yaml"], [PARENT_DIR])

    assert list(loaded.sources[0].tree) == [name, "simple_weather_simple_agent"]
    (message,) = caplog.messages
    assert "example_single_tool_call" in message


@NAMES
def test_data_and_code_are_found_under_the_earlier_name(name: str) -> None:
    """The annotated example of the configuration guide writes both."""
    data = _resolve_under_cwd_or_install(f"resources_servers/{name}/data/example.jsonl")
    block = {"resources_servers": {name: {"entrypoint": "app.py", "host": "127.0.0.1", "port": 1}}}
    (instance,) = find_instances({"weather": block}, [PARENT_DIR])

    assert data.resolve() == NOW / "data/example.jsonl"
    assert (instance.folder, instance.module) == (NOW, "resources_servers.example_single_tool_call.app")
    assert folder_tests_of(f"resources_servers/{name}", [PARENT_DIR]).folder == NOW


def test_a_folder_of_ones_own_with_that_name_wins(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An earlier name is a courtesy, not a reservation."""
    mine = tmp_path / "resources_servers/simple_weather/configs/simple_weather.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text("a: 1\n")

    loaded = load_files(["resources_servers/simple_weather/configs/simple_weather.yaml"], [tmp_path, PARENT_DIR])

    assert config_file(RESOURCES_SERVER, "simple_weather", [tmp_path, PARENT_DIR]) == mine
    assert loaded.sources[0].tree == {"a": 1}
    assert (loaded.warnings, caplog.messages) == ([], [])


@pytest.mark.parametrize("path", ["resources_servers/simple_weather_2/app.py", "simple_weather", "/simple_weather", ""])
def test_other_paths_stay_as_they_are(path: str) -> None:
    """A rewrite of a similar path would load a server the user did not name."""
    assert current_path(path) is None


def test_the_guides_own_configuration_is_valid_as_written(tmp_path: Path) -> None:
    """Copied from the guide; in a checkout the earlier name is a link, so there is nothing to report."""
    (tmp_path / "guide.yaml").write_text(
        "example_simple_weather:\n  resources_servers:\n    example_simple_weather:\n      entrypoint: app.py\n"
        "      domain: agent\n      verified: false\n"
        "simple_weather_simple_agent:\n  responses_api_agents:\n    simple_agent:\n      entrypoint: app.py\n"
        "      resources_server:\n        type: resources_servers\n        name: example_simple_weather\n"
        "      model_server:\n        type: responses_api_models\n        name: policy_model\n"
        "      datasets:\n      - name: example\n        type: example\n"
        "        jsonl_fpath: resources_servers/example_simple_weather/data/example.jsonl\n"
    )

    done = subprocess.run(
        [sys.executable, "-m", "nemo_gym.cli.main", "env", "validate", "--config", "guide.yaml", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert json.loads(done.stdout)["valid"] is True
    assert done.stderr == ""
