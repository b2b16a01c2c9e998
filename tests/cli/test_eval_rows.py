"""The rows of agents' own datasets: chosen by type, checked, stamped with their agent."""

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from nemo_gym.cli.eval_rows import gather_rows
from nemo_gym.data.collate import RowsRefused
from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.jsonl import StoreError


def row(text: str) -> dict[str, Any]:
    return {"responses_create_params": {"input": text}}


def written(path: Path, *rows: Any) -> str:
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
    """Each knows whom it is for, and repeats of a dataset become repeats of its tasks."""
    first = {"type": "example", "jsonl_fpath": written(tmp_path / "a.jsonl", row("one"), row("two"))}
    second = {"type": "example", "jsonl_fpath": written(tmp_path / "b.jsonl", row("three")), "num_repeats": 2}

    path = gather_rows(config(first, second), None, tmp_path / "out.jsonl", prompted=False)

    assert path == tmp_path / "out" / "preprocessed_datasets" / "example.jsonl"
    assert [(line["responses_create_params"]["input"], line["agent_ref"]["name"]) for line in lines_of(path)] == [
        ("one", "agent_0"),
        ("two", "agent_0"),
        ("three", "agent_1"),
        ("three", "agent_1"),
    ]


def test_the_split_decides_and_benchmarks_come_first(tmp_path: Path) -> None:
    """What a configuration is for is run when nobody says; anything else when somebody does."""
    files = {kind: written(tmp_path / f"{kind}.jsonl", row(kind)) for kind in ("train", "validation", "example")}
    settings = config(*({"type": kind, "jsonl_fpath": path} for kind, path in files.items()))

    def gathered(split: str | None) -> str:
        return str(lines_of(gather_rows(settings, split, tmp_path / "o.jsonl", prompted=False))[0])

    assert "validation" in gathered(None)
    assert "train" in gathered("train")
    assert "example" in gathered("example")


def test_a_benchmark_gets_its_prompt(tmp_path: Path) -> None:
    """The dataset has questions; the benchmark's prompt makes inputs of them."""
    prompt = tmp_path / "prompt.yaml"
    prompt.write_text("user: 'Answer: {question}'\n")
    dataset = {
        "type": "benchmark",
        "jsonl_fpath": written(tmp_path / "b.jsonl", {"question": "why?"}),
        "prompt_config": str(prompt),
        "prepare_script": str(tmp_path / "prepare.py"),
    }

    (line,) = lines_of(gather_rows(config(dataset), None, tmp_path / "o.jsonl", prompted=False))

    assert line["responses_create_params"]["input"] == [{"role": "user", "content": "Answer: why?"}]


def test_rows_that_no_agent_could_take_are_all_told(tmp_path: Path) -> None:
    """Before servers are started, and nothing is written."""
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"responses_create_params": {"input": 5}}\nnot json\n' + json.dumps(row("fine")) + "\n")

    with pytest.raises(RowsRefused) as raised:
        gather_rows(config({"type": "example", "jsonl_fpath": str(bad)}), None, tmp_path / "o.jsonl", prompted=False)

    assert "2 rows cannot be used" in str(raised.value)
    assert not list((tmp_path / "o").rglob("*.jsonl"))


def test_rows_that_get_their_input_later_are_not_held_to_have_one(tmp_path: Path) -> None:
    """--prompt-config builds the input of every row."""
    dataset = {"type": "example", "jsonl_fpath": written(tmp_path / "a.jsonl", {"question": "why?"})}

    (line,) = lines_of(gather_rows(config(dataset), None, tmp_path / "o.jsonl", prompted=True))

    assert line["question"] == "why?"
    assert line["agent_ref"]["name"] == "agent_0"


def test_what_was_prepared_before_can_be_used_again(tmp_path: Path) -> None:
    """Large datasets take a while; `reuse_existing_data_preparation` skips it."""
    dataset = {"type": "example", "jsonl_fpath": written(tmp_path / "a.jsonl", row("new"))}
    prepared = tmp_path / "o" / "preprocessed_datasets" / "example.jsonl"
    prepared.parent.mkdir(parents=True)
    written(prepared, row("old"))

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
def test_what_is_not_there_is_named(tmp_path: Path, kind: str, split: str | None, message: str) -> None:
    """With what can be done about it."""
    dataset = {"type": kind, "jsonl_fpath": str(tmp_path / "absent.jsonl")}
    if kind == "benchmark":
        dataset["prepare_script"] = str(tmp_path / "prepare.py")

    with pytest.raises(ConfigError, match=message):
        gather_rows(config(dataset), split, tmp_path / "o.jsonl", prompted=False)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """Never a traceback for a full disk or a mistyped folder."""
    dataset = {"type": "example", "jsonl_fpath": written(tmp_path / "a.jsonl", row("one"))}
    (tmp_path / "file").touch()

    with pytest.raises(StoreError, match="cannot be read or written"):
        gather_rows(config(dataset), None, tmp_path / "file" / "o.jsonl", prompted=False)
