"""The datasets of a run and their missing files are known before any row is read."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from nemo_gym.config.schema_datasets import DatasetConfig
from nemo_gym.data.sources import (
    DatasetSource,
    MissingDatasetsError,
    RegistryAccess,
    fetch_missing,
    find_sources,
    stamp_rows,
)
from nemo_gym.errors import ConfigError
from nemo_gym.global_config import GlobalConfigDictParser, GlobalConfigDictParserConfig

GITLAB = {"type": "gitlab", "dataset_name": "sums", "version": "0.0.1", "artifact_fpath": "train.jsonl"}
HUB = {"type": "huggingface", "repo_id": "org/sums"}


def instances(*datasets, **more):
    agent = {
        "entrypoint": "app.py",
        "resources_server": {"type": "resources_servers", "name": "sums"},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
        "datasets": list(datasets),
    }
    tree = {
        "sums": {"resources_servers": {"arithmetic": {"entrypoint": "app.py", "domain": "math"}}},
        "sums_agent": {"responses_api_agents": {"simple_agent": agent}},
        **more,
    }
    stand_in = GlobalConfigDictParserConfig.NO_MODEL_GLOBAL_CONFIG_DICT
    config = OmegaConf.merge(OmegaConf.create(tree), stand_in)
    return GlobalConfigDictParser().filter_for_server_instance_configs(config)


def dataset(kind: str, path: str, **more):
    return {"name": kind, "type": kind, "jsonl_fpath": path, "license": "MIT", **more}


def ignore_progress(what, done, total):
    pass


@pytest.fixture(autouse=True)
def _working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_each_mode_has_its_types():
    """Example rows are for review, the others for training: mixing them would leak one into the other."""
    sources = instances(dataset("validation", "v.jsonl"), dataset("train", "t.jsonl"), dataset("example", "e.jsonl"))

    assert [source.config.type for source in find_sources(sources, "train_preparation")] == ["train", "validation"]
    assert [source.config.type for source in find_sources(sources, "example_validation")] == ["example"]


def test_an_agent_without_such_data_lists_the_existing_types():
    """The usual cause is the wrong mode, and the list shows it."""
    with pytest.raises(ConfigError, match=r"no agent has a dataset of type example \(existing types: train\)"):
        find_sources(instances(dataset("train", "t.jsonl")), "example_validation")


def test_files_are_found_through_the_search_roots(tmp_path, monkeypatch):
    """The path of a dataset is relative to the tree of its server."""
    other = tmp_path / "other"
    (other / "data").mkdir(parents=True)
    (other / "data" / "t.jsonl").write_text("{}\n")
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(other))

    (source,) = find_sources(instances(dataset("train", "data/t.jsonl")), "train_preparation")

    assert source.path == other / "data" / "t.jsonl"
    assert source.metrics_path == other / "data" / "t_metrics.json"


def test_an_unusable_prompt_is_reported_at_once(tmp_path):
    """An error after an hour of reading rows is an hour late."""
    (tmp_path / "p.yaml").write_text("system: only\n")
    benchmark = {"type": "benchmark", "prepare_script": "p.py", "name": "b", "jsonl_fpath": "b.jsonl"}

    with pytest.raises(ConfigError, match="user: Field required"):
        find_sources(instances({**benchmark, "prompt_config": "p.yaml"}), "train_preparation")


def test_every_missing_file_is_named_with_what_to_do():
    """A complete list saves one run per missing file."""
    Path("there.jsonl").write_text("{}\n")
    benchmark = {"type": "benchmark", "prepare_script": "p.py", "name": "b", "jsonl_fpath": "b.jsonl"}
    sources = instances(
        dataset("train", "there.jsonl"),
        dataset("train", "t.jsonl"),
        dataset("validation", "v.jsonl", source=HUB),
        benchmark,
    )

    with pytest.raises(MissingDatasetsError) as missing:
        fetch_missing(find_sources(sources, "train_preparation"), "train_preparation", None, ignore_progress)

    lines = str(missing.value).splitlines()
    assert lines[0] == "3 dataset files are missing"
    assert lines[1].endswith("t.jsonl (sums_agent, train): write it, or configure its download under 'source'")
    assert lines[2].endswith("v.jsonl (sums_agent, validation): download it with --download")
    assert lines[3].endswith("b.jsonl (sums_agent, benchmark): prepare it first with 'gym eval prepare'")
    assert isinstance(missing.value, AssertionError)


def test_example_rows_are_never_downloaded():
    """They are kept with the code so that a reviewer sees them."""
    sources = find_sources(instances(dataset("example", "e.jsonl", source=HUB)), "example_validation")

    with pytest.raises(MissingDatasetsError, match="not downloaded"):
        fetch_missing(sources, "example_validation", RegistryAccess(), ignore_progress)


def test_a_registry_without_an_address_is_reported_before_any_download():
    """Otherwise half of the files are downloaded for nothing."""
    sources = find_sources(
        instances(dataset("train", "t.jsonl", source=GITLAB), dataset("train", "h.jsonl", source=HUB)),
        "train_preparation",
    )

    with pytest.raises(MissingDatasetsError, match="mlflow_tracking_uri is not set"):
        fetch_missing(sources, "train_preparation", RegistryAccess(), ignore_progress)


def test_existing_files_are_not_downloaded():
    """A run must not depend on a registry that it does not need."""
    Path("t.jsonl").write_text("{}\n")
    sources = find_sources(instances(dataset("train", "t.jsonl", source=HUB)), "train_preparation")

    assert fetch_missing(sources, "train_preparation", RegistryAccess(), ignore_progress) == sources


def test_sources_of_one_file_have_different_stems():
    """Slices and agents that share a file must not overwrite each other's metrics."""
    sources = find_sources(
        instances(
            dataset("train", "t.jsonl"),
            dataset("train", "t.jsonl"),
            dataset("train", "t.jsonl"),
            dataset("train", "t.jsonl"),
            dataset("train", "t.jsonl", start_idx=3),
            dataset("validation", "t.jsonl", start_idx=3),
        ),
        "train_preparation",
    )

    assert [source.stem for source in sources] == [
        "t",
        "t_sums_agent",
        "t_sums_agent_train",
        "t_sums_agent_train_2",
        "t_3-end",
        "t_3-end_sums_agent",
    ]


class TestStampedRows:
    """Rows that get their input later are only given their agent."""

    @pytest.fixture
    def path(self, tmp_path):
        path = tmp_path / "rows.jsonl"
        path.write_text('{"id": 0}\n\n{"id": 1, "agent_ref": {"name": "own"}}\n{"id": 2}\n')
        return path

    def source(self, path, **more):
        config = DatasetConfig(name="train", type="train", jsonl_fpath=str(path), license="MIT", **more)
        return DatasetSource("a", config, path, path.stem)

    def test_rows_get_the_agent_of_their_dataset_unless_they_name_one(self, path):
        """The rows of one file may be for several agents."""
        rows = [json.loads(line) for line in stamp_rows([self.source(path, num_repeats=2)])]

        expected = [(0, "a"), (0, "a"), (1, "own"), (1, "own"), (2, "a"), (2, "a")]
        assert [(row["id"], row["agent_ref"]["name"]) for row in rows] == expected

    def test_rows_of_a_resources_server_name_it(self, path):
        """Newer collectors choose the agent by it, and `agent_map` may name it."""
        rows = [json.loads(line) for line in stamp_rows([replace(self.source(path), task_source="sums")])]

        assert {row["task_source"] for row in rows} == {"sums"}

    def test_a_slice_takes_only_its_rows(self, path):
        """The configuration selects the rows of a dataset."""
        lines = stamp_rows([self.source(path, start_idx=1, end_idx=3)])

        assert [json.loads(line)["id"] for line in lines] == [1]

    def test_a_line_that_is_no_row_is_named(self, path):
        """An author needs file and line to repair a dataset."""
        path.write_text('{"id": 0}\n[]\n')

        with pytest.raises(ConfigError, match=r"rows\.jsonl:2: the line is a list, not a JSON object"):
            list(stamp_rows([self.source(path)]))
