"""What there is to run is found from the files alone, and a bad file hides nothing else."""

import logging
from pathlib import Path

import pytest

from nemo_gym import PARENT_DIR
from nemo_gym.catalog.components import EVERY_KIND, agents, catalog, models, resources_servers

SERVER = """
{name}:
  resources_servers:
    {name}: {{entrypoint: app.py, domain: math, verified: true, description: Counts things}}
{name}_agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {{type: resources_servers, name: {name}}}
      datasets: [{{name: count, type: train, jsonl_fpath: x.jsonl, license: MIT, num_repeats: 3}}]
"""


def write(root: Path, path: str, text: str) -> Path:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    return target


def test_a_server_that_brings_an_agent_and_rows_can_be_run_as_it_is(tmp_path: Path) -> None:
    """Most folders of others have no entry under environments/."""
    path = write(tmp_path, "resources_servers/counting/configs/counting.yaml", SERVER.format(name="counting"))

    [found] = catalog([tmp_path])

    assert (found.name, found.kind, found.path) == ("resources_servers/counting", "environment", path)
    assert (found.domain, found.description, found.verified) == ("math", "Counts things", True)
    assert (found.agent, found.repeats, found.licence) == ("counting_agent", 3, "MIT")
    assert (found.resources_server, found.datasets) == ("counting", ("count",))


def test_what_an_environment_includes_describes_it(tmp_path: Path) -> None:
    """An environment is often nothing but a list of other configurations."""
    write(tmp_path, "resources_servers/counting/configs/counting.yaml", SERVER.format(name="counting"))
    write(
        tmp_path, "environments/count/config.yaml", "config_paths: [resources_servers/counting/configs/counting.yaml]\n"
    )

    found = {component.name: component for component in catalog([tmp_path])}

    assert found["count"].domain == "math"
    assert found["count"].status == "no-manifest"


def test_a_manifest_is_believed_before_the_configuration(tmp_path: Path) -> None:
    write(tmp_path, "environments/count/config.yaml", SERVER.format(name="counting"))
    write(
        tmp_path,
        "environments/count/manifest.yaml",
        "name: count\ndomain: games\nlicensing: Apache-2.0\nlifecycle: active\n",
    )

    [found] = catalog([tmp_path])

    assert (found.domain, found.licence, found.status) == ("games", "Apache-2.0", "experimental")
    assert found.manifest["lifecycle"] == "active"


def test_the_users_own_root_hides_ours_and_says_so(tmp_path: Path) -> None:
    """Somebody who edits a copy must see that the copy is used."""
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    first = write(mine, "environments/count/config.yaml", SERVER.format(name="counting"))
    second = write(theirs, "environments/count/config.yaml", SERVER.format(name="counting"))

    [found] = catalog([mine, theirs])

    assert (found.path, found.shadowed) == (first, (second,))


def test_a_file_that_cannot_be_read_is_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One broken folder among a hundred must not empty the list."""
    write(tmp_path, "environments/broken/config.yaml", "a: [1\n")
    write(tmp_path, "environments/count/config.yaml", SERVER.format(name="counting"))

    with caplog.at_level(logging.WARNING):
        found = catalog([tmp_path])

    assert [component.name for component in found] == ["count"]
    assert "broken" in caplog.text


def test_an_agent_without_a_resources_server_brings_its_own_world(tmp_path: Path) -> None:
    """Composable agents can be wired to any environment, self-contained ones cannot."""
    write(tmp_path, "responses_api_agents/alone/app.py", "")
    write(
        tmp_path,
        "responses_api_agents/alone/configs/alone.yaml",
        "alone:\n  responses_api_agents:\n    alone: {entrypoint: app.py, agent_framework: theirs}\n",
    )

    [found] = agents([tmp_path])

    assert found.self_contained
    assert found.variants == ("alone",)


def test_our_own_folders_are_all_found() -> None:
    roots = [PARENT_DIR]

    assert {"arithmetic", "example_single_tool_call"} <= {found.name for found in resources_servers(roots)}
    assert {"simple_agent"} <= {found.name for found in agents(roots) if not found.self_contained}
    assert {"embedded_model", "openai_model", "scripted_model", "vllm_model"} <= {f.name for f in models(roots)}
    assert all(component.description for kind in EVERY_KIND.values() for component in kind(roots))
