"""Manifests have the required fields and no others."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from nemo_gym.authoring.manifest import NoManifest, find_manifest, read_manifest
from nemo_gym.config.search_roots import PARENT_DIR
from nemo_gym.environment import dump_manifest, load_manifest, manifest_json_schema, resolve_manifest_config_path
from nemo_gym.errors import ConfigError

GOOD: dict[str, Any] = {
    "name": "sums",
    "version": "1.0",
    "kind": "environment",
    "domain": "math",
    "description": "Sums.",
    "authors": ["Ada"],
    "reward": {"range": [0, 1]},
    "resources_server": "sums",
}
BENCHMARK = {
    **GOOD,
    "kind": "benchmark",
    "canonical_split": "benchmark",
    "standard_prompt_config": "p.yaml",
    "datasets": [{"name": "sums", "type": "benchmark", "jsonl_fpath": "d.jsonl", "prepare_script": "prepare.py"}],
}


def write(root: Path, fields: dict[str, Any], folder: str = "environments/sums") -> Path:
    path = root / folder / "manifest.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(fields))
    return path


@pytest.mark.parametrize("fields", [GOOD, BENCHMARK], ids=["environment", "benchmark"])
def test_a_manifest_is_read_and_written_as_it_was(tmp_path: Path, fields: dict[str, Any]) -> None:
    """Only the written fields may return to the file."""
    manifest = read_manifest(write(tmp_path, fields))

    assert manifest.written_fields() == {**fields, "reward": {"range": [0.0, 1.0]}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"autors": ["Ada"]}, "autors: Extra inputs"),
        ({"authors": []}, "authors: List should have at least 1"),
        ({"authors": ["Ada", "Ada"]}, "an author is listed twice"),
        ({"kind": "game"}, "kind: Input should be 'environment' or 'benchmark'"),
        ({"domain": "moon"}, "domain: Input should be"),
        ({"reward": {"range": [1, 0]}}, r"reward: range must be \[lowest, highest\]"),
        ({"kind": "benchmark"}, "needs canonical_split, standard_prompt_config, a dataset of type benchmark"),
        ({"integration_profile": "custom-gym-agent-loop"}, "also needs model_server"),
        ({"integration_profile": "external-rollout-driver"}, "also needs rollout_driver"),
        ({"name": ""}, "name: String should have at least 1"),
        ({"version": ""}, "version: String should have at least 1"),
        ({"licensing": "Apache 9"}, "licensing: 'Apache 9' is neither an SPDX expression"),
        ({"resources_server": None}, "also needs resources_server"),
        ({"datasets": [{"name": "d", "type": "example", "jsonl_fpath": "x"}] * 2}, "two datasets have the same name"),
        ({"prompt_source": "prepared", "standard_prompt_config": "p.yaml"}, "standard_prompt_config contradicts"),
        ({"rollout_driver": "a:b"}, "rollout_driver belongs to the profile external-rollout-driver"),
    ],
)
def test_a_problem_of_a_manifest_names_its_location(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    """The author must find the field to change."""
    path = write(tmp_path, {**GOOD, **change})

    with pytest.raises(ConfigError, match=words) as caught:
        read_manifest(path)

    assert "manifest.yaml" in str(caught.value.where)


SHAPES: list[dict[str, Any]] = [
    {"experimental": False, "licensing": "apache-2.0"},
    {"resources_server": None, "integration_profile": "external-agent-loop", "agent_server": "tau2"},
    {"config_path": "../shared/config.yaml", "dataset_owner": "v", "reward": {"range": [0, 0]}},
    {"sandbox": True, "state": {"kind": "session"}, "session_model": "single", "modality": ["text", "image"]},
    {"adopted_from": {"source": "https://example.org/sums"}, "authors": [{"name": "Ada"}]},
]
BENCHMARK_SHAPES: list[dict[str, Any]] = [
    {"prompt_source": "prepared", "standard_prompt_config": None},
    {"prompt_source": "agent", "standard_prompt_config": None},
    {"datasets": [{**BENCHMARK["datasets"][0], "taskset": "t", "prepare_dependencies": ["x"], "agent": "a"}]},
]


@pytest.mark.parametrize("shape", [{**GOOD, **s} for s in SHAPES] + [{**BENCHMARK, **s} for s in BENCHMARK_SHAPES])
def test_every_shape_of_existing_manifests_is_accepted(tmp_path: Path, shape: dict[str, Any]) -> None:
    """A refused manifest hides its environment from every list."""
    fields = {key: value for key, value in shape.items() if value is not None or key == "resources_server"}

    manifest = load_manifest(write(tmp_path, fields))

    assert manifest.licensing in ("Apache-2.0", "unknown")
    copy = tmp_path / "copy.yaml"
    copy.write_text(dump_manifest(manifest))
    assert load_manifest(copy) == manifest
    assert ("config_path" in copy.read_text()) is ("config_path" in fields)
    assert "experimental" in manifest_json_schema()["properties"]


def test_a_configuration_outside_the_tree_of_the_manifest_is_refused(tmp_path: Path) -> None:
    """A manifest of an environment must not describe the configuration of something else."""
    path = write(tmp_path, {**GOOD, "config_path": "../shared/config.yaml"})

    assert resolve_manifest_config_path(path, read_manifest(path)) == path.parent / "../shared/config.yaml"
    for outside in ("../../config.yaml", "/etc/config.yaml"):
        manifest = read_manifest(write(tmp_path, {**GOOD, "config_path": outside}))
        with pytest.raises(ConfigError, match="must stay inside environments/"):
            resolve_manifest_config_path(path, manifest)


def test_all_problems_of_a_manifest_are_reported_together(tmp_path: Path) -> None:
    """One run must show every field to change."""
    with pytest.raises(ConfigError, match=r"version: Field required.*authors: Field required"):
        read_manifest(write(tmp_path, {key: GOOD[key] for key in ("name", "kind", "domain", "description", "reward")}))


def test_a_name_is_found_in_the_first_root_that_has_it(tmp_path: Path) -> None:
    """The search path decides, as everywhere."""
    mine = write(tmp_path / "mine", GOOD)
    write(tmp_path / "theirs", GOOD)

    assert find_manifest("sums", None, [tmp_path / "mine", tmp_path / "theirs"])[0] == mine


def test_an_environment_and_a_benchmark_of_one_name_need_a_kind(tmp_path: Path) -> None:
    """A guess could test the wrong one."""
    write(tmp_path, GOOD)
    path = write(tmp_path, BENCHMARK, "benchmarks/sums")

    with pytest.raises(ConfigError, match="add --kind"):
        find_manifest("sums", None, [tmp_path])
    assert find_manifest("sums", "benchmark", [tmp_path])[0] == path


def test_a_manifest_about_something_else_is_refused(tmp_path: Path) -> None:
    """A copied folder whose manifest was forgotten would be listed as the original."""
    write(tmp_path, {**GOOD, "name": "other"})

    with pytest.raises(ConfigError, match="describes the environment 'other'"):
        find_manifest("sums", None, [tmp_path])


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    """A typing error is the usual cause."""
    write(tmp_path, GOOD)

    with pytest.raises(NoManifest, match="one of sums") as caught:
        find_manifest("sumz", None, [tmp_path])

    assert caught.value.exit_status == 2


def test_the_shipped_manifests_are_valid() -> None:
    """Authors copy them."""
    for path in sorted(PARENT_DIR.glob("environments/*/manifest.yaml")):
        assert read_manifest(path).name == path.parent.name
