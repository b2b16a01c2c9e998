"""Components are listed from their files alone, and a bad file hides no other."""

import logging
from pathlib import Path

import pytest

from nemo_gym import PARENT_DIR
from nemo_gym.catalog.components import EVERY_KIND, catalog, matches_query, resources_servers

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
    """Most third-party folders have no entry under environments/."""
    path = write(tmp_path, "resources_servers/counting/configs/counting.yaml", SERVER.format(name="counting"))

    [component] = catalog([tmp_path])

    assert (component.name, component.kind, component.path) == ("resources_servers/counting", "environment", path)
    assert (component.domain, component.description, component.verified) == ("math", "Counts things", True)
    assert (component.agent, component.repeats, component.licence) == ("counting_agent", 3, "MIT")
    assert (component.resources_server, component.datasets) == ("counting", ("count",))


def test_an_environment_is_described_by_its_includes(tmp_path: Path) -> None:
    """Many environments are only a list of other configurations."""
    write(tmp_path, "resources_servers/counting/configs/counting.yaml", SERVER.format(name="counting"))
    write(
        tmp_path, "environments/count/config.yaml", "config_paths: [resources_servers/counting/configs/counting.yaml]\n"
    )

    components = {component.name: component for component in catalog([tmp_path])}

    assert components["count"].domain == "math"
    assert components["count"].status == "no-manifest"


def test_a_manifest_overrides_the_configuration(tmp_path: Path) -> None:
    """The manifest is what the author publishes."""
    write(tmp_path, "environments/count/config.yaml", SERVER.format(name="counting"))
    write(
        tmp_path,
        "environments/count/manifest.yaml",
        "name: count\ndomain: games\nlicensing: Apache-2.0\nlifecycle: active\n",
    )

    [component] = catalog([tmp_path])

    assert (component.domain, component.licence, component.status) == ("games", "Apache-2.0", "experimental")
    assert component.manifest["lifecycle"] == "active"


def test_an_earlier_root_shadows_a_later_one_and_records_it(tmp_path: Path) -> None:
    """A user who edits a copy must see that the copy is used."""
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    first = write(mine, "environments/count/config.yaml", SERVER.format(name="counting"))
    second = write(theirs, "environments/count/config.yaml", SERVER.format(name="counting"))

    [component] = catalog([mine, theirs])

    assert (component.path, component.shadowed) == (first, (second,))


def test_a_file_that_cannot_be_read_is_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One broken folder among a hundred must not empty the list."""
    write(tmp_path, "environments/broken/config.yaml", "a: [1\n")
    write(tmp_path, "environments/count/config.yaml", SERVER.format(name="counting"))

    with caplog.at_level(logging.WARNING):
        components = catalog([tmp_path])

    assert [component.name for component in components] == ["count"]
    assert "broken" in caplog.text


def test_an_agent_without_a_resources_server_is_self_contained(tmp_path: Path) -> None:
    """Only composable agents work with any environment."""
    write(tmp_path, "responses_api_agents/alone/app.py", "")
    write(
        tmp_path,
        "responses_api_agents/alone/configs/alone.yaml",
        "alone:\n  responses_api_agents:\n    alone: {entrypoint: app.py, agent_framework: theirs}\n",
    )

    [component] = EVERY_KIND["agents"]([tmp_path])

    assert component.self_contained
    assert component.variants == ("alone",)


def test_the_shipped_components_are_listed_and_described() -> None:
    """`gym list` is the first thing a new user sees."""
    roots = [PARENT_DIR]

    assert {"arithmetic", "example_single_tool_call"} <= {component.name for component in resources_servers(roots)}
    assert {"simple_agent"} <= {
        component.name for component in EVERY_KIND["agents"](roots) if not component.self_contained
    }
    assert {"embedded_model", "openai_model", "scripted_model", "vllm_model"} <= {
        f.name for f in EVERY_KIND["models"](roots)
    }
    assert all(component.description for kind in EVERY_KIND.values() for component in kind(roots))


def test_a_component_with_variants_is_described_by_the_one_of_its_own_name(tmp_path: Path) -> None:
    """`vllm_model` is not "for a base model" because a variant of it is."""
    write(tmp_path, "responses_api_models/a_model/app.py", "")
    for name in ("a_model", "a_base"):
        block = "policy_model:\n  responses_api_models:\n    a_model: {entrypoint: app.py}\n"
        write(tmp_path, f"responses_api_models/a_model/configs/{name}.yaml", f"# The {name}.\n{block}")

    [component] = EVERY_KIND["models"]([tmp_path])

    assert (component.description, component.variants) == ("The a_model.", ("a_model", "a_base"))


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("math", "math_with_judge"),
        ("WEATHER", "the weather tool"),
        ("arithmatic", "arithmetic"),
        ("calender", "my-calendar"),
        ("judge", "math_with_judge"),
    ],
)
def test_a_similar_word_matches(query: str, field: str) -> None:
    """People misspell names and remember only a part of them."""
    assert matches_query(query, ["something else", field])


@pytest.mark.parametrize("field", ["code", "sql", ""])
def test_a_different_word_does_not_match(field: str) -> None:
    """A search that matches everything is useless."""
    assert not matches_query("arithmetic", [field])
