"""Rows of the agents' datasets are chosen by type, checked, and get the name of their agent."""

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from nemo_gym.cli.shared.eval_request import gather_rows
from nemo_gym.data.collate import RowsRefused
from nemo_gym.errors import ConfigError, FileProblem, raising_file_problems


def row(text: str) -> dict[str, Any]:
    return {"responses_create_params": {"input": text}}


def write_rows(path: Path, *rows: Any) -> str:
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return str(path)


def config(*datasets: dict[str, Any], **more: Any) -> DictConfig:
    agents = {}
    for number, dataset in enumerate(datasets):
        block = {
            "entrypoint": "app.py",
            "resources_server": {"type": "resources_servers", "name": "env"},
            "model_server": {"type": "responses_api_models", "name": "policy_model"},
            "datasets": [{"name": f"d{number}", "license": "Apache 2.0", **dataset}],
        }
        agents[f"agent_{number}"] = {"responses_api_agents": {"simple_agent": block}}
    return OmegaConf.create({**agents, **more})


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_of_all_agents_are_put_together(tmp_path: Path) -> None:
    """Each row names its agent, and repeats of a dataset become repeats of its tasks."""
    first = {"type": "example", "jsonl_fpath": write_rows(tmp_path / "a.jsonl", row("one"), row("two"))}
    second = {"type": "example", "jsonl_fpath": write_rows(tmp_path / "b.jsonl", row("three")), "num_repeats": 2}

    path = gather_rows(config(first, second), None, tmp_path / "out.jsonl", prompted=False)

    assert path == tmp_path / "out" / "preprocessed_datasets" / "example.jsonl"
    assert [(line["responses_create_params"]["input"], line["agent_ref"]["name"]) for line in lines_of(path)] == [
        ("one", "agent_0"),
        ("two", "agent_0"),
        ("three", "agent_1"),
        ("three", "agent_1"),
    ]


def test_the_split_decides_and_benchmarks_come_first(tmp_path: Path) -> None:
    """Without --split the most important dataset type of a configuration is run."""
    files = {kind: write_rows(tmp_path / f"{kind}.jsonl", row(kind)) for kind in ("train", "validation", "example")}
    settings = config(*({"type": kind, "jsonl_fpath": path} for kind, path in files.items()))

    def gather(split: str | None) -> str:
        return str(lines_of(gather_rows(settings, split, tmp_path / "o.jsonl", prompted=False))[0])

    assert "validation" in gather(None)
    assert "train" in gather("train")
    assert "example" in gather("example")


def test_a_benchmark_gets_its_prompt(tmp_path: Path) -> None:
    """The dataset has questions; the benchmark's prompt makes inputs of them."""
    prompt = tmp_path / "prompt.yaml"
    prompt.write_text("user: 'Answer: {question}'\n")
    dataset = {
        "type": "benchmark",
        "jsonl_fpath": write_rows(tmp_path / "b.jsonl", {"question": "why?"}),
        "prompt_config": str(prompt),
        "prepare_script": str(tmp_path / "prepare.py"),
    }

    (line,) = lines_of(gather_rows(config(dataset), None, tmp_path / "o.jsonl", prompted=False))

    assert line["responses_create_params"]["input"] == [{"role": "user", "content": "Answer: why?"}]


def test_all_rows_that_no_agent_accepts_are_reported(tmp_path: Path) -> None:
    """The error comes before servers start, and nothing is written."""
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"responses_create_params": {"input": 5}}\nnot json\n' + json.dumps(row("fine")) + "\n")

    with pytest.raises(RowsRefused) as raised:
        gather_rows(config({"type": "example", "jsonl_fpath": str(bad)}), None, tmp_path / "o.jsonl", prompted=False)

    assert "2 rows cannot be used" in str(raised.value)
    assert not list((tmp_path / "o").rglob("*.jsonl"))


def test_rows_need_no_input_when_a_prompt_builds_it(tmp_path: Path) -> None:
    """--prompt-config builds the input of every row."""
    dataset = {"type": "example", "jsonl_fpath": write_rows(tmp_path / "a.jsonl", {"question": "why?"})}

    (line,) = lines_of(gather_rows(config(dataset), None, tmp_path / "o.jsonl", prompted=True))

    assert line["question"] == "why?"
    assert line["agent_ref"]["name"] == "agent_0"


def test_an_earlier_preparation_can_be_reused(tmp_path: Path) -> None:
    """Large datasets take a while; `reuse_existing_data_preparation` skips it."""
    dataset = {"type": "example", "jsonl_fpath": write_rows(tmp_path / "a.jsonl", row("new"))}
    prepared = tmp_path / "o" / "preprocessed_datasets" / "example.jsonl"
    prepared.parent.mkdir(parents=True)
    write_rows(prepared, row("old"))

    kept = gather_rows(
        config(dataset, reuse_existing_data_preparation=True), None, tmp_path / "o.jsonl", prompted=False
    )
    assert "old" in kept.read_text()
    made = gather_rows(config(dataset), None, tmp_path / "o.jsonl", prompted=False)
    assert "new" in made.read_text()


@pytest.mark.parametrize(
    ("kind", "split", "message"),
    [
        ("example", "train", r"no agent has a dataset of type train \(there are: example\)"),
        ("train", None, r"no agent has a dataset of type benchmark or validation or example \(there are: train\)"),
        ("train", "train", "missing"),
        ("benchmark", None, "gym eval prepare"),
    ],
)
def test_missing_datasets_are_named(tmp_path: Path, kind: str, split: str | None, message: str) -> None:
    """The error names the fix."""
    dataset = {"type": kind, "jsonl_fpath": str(tmp_path / "absent.jsonl")}
    if kind == "benchmark":
        dataset["prepare_script"] = str(tmp_path / "prepare.py")

    with pytest.raises(ConfigError, match=message):
        gather_rows(config(dataset), split, tmp_path / "o.jsonl", prompted=False)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """Never a traceback for a full disk or a mistyped folder."""
    dataset = {"type": "example", "jsonl_fpath": write_rows(tmp_path / "a.jsonl", row("one"))}
    (tmp_path / "file").touch()

    with pytest.raises(FileProblem, match="file"), raising_file_problems():
        gather_rows(config(dataset), None, tmp_path / "file" / "o.jsonl", prompted=False)
