"""`gym dataset collate`, typed as a user would."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_gym.cli.main import main
from tests.processes import eventually

DOCS = Path(__file__).resolve().parents[3] / "docs"
CONFIG = """
sums:
  resources_servers:
    arithmetic: {entrypoint: app.py, domain: math}
sums_agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {type: resources_servers, name: sums}
      model_server: {type: responses_api_models, name: policy_model}
      datasets:
      - {name: train, type: train, jsonl_fpath: data/train.jsonl, license: MIT}
      - {name: example, type: example, jsonl_fpath: data/example.jsonl}
"""


def row(number: int):
    return {"responses_create_params": {"input": f"What is {number}?", "temperature": 0.5}, "answer": number}


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "sums.yaml").write_text(CONFIG)
    for name, count in (("train", 3), ("example", 5)):
        rows = "".join(json.dumps(row(number)) + "\n" for number in range(count))
        (tmp_path / "data" / f"{name}.jsonl").write_text(rows)
    return tmp_path


def collate(*words: str) -> int:
    return main(["dataset", "collate", "--config", "sums.yaml", *words])


def test_flags_and_overrides_mean_the_same(project, capsys):
    """`ng_prepare_data` users bring their overrides along."""
    assert collate("--mode", "train_preparation", "--output-dir", "out") == 0
    assert collate("+mode=train_preparation", "+output_dirpath=out2") == 0

    assert (project / "out" / "train.jsonl").read_bytes() == (project / "out2" / "train.jsonl").read_bytes()


def test_the_table_shows_every_figure(project, capsys):
    """Seed 003: compute aggregate statistics and print them to the terminal."""
    assert collate("--mode", "example_validation", "--output-dir", "out") == 0

    printed = capsys.readouterr().out
    for name in ("Number of examples", "Number of turns", "Temperature", "Number of unique create params", "answer"):
        assert name in printed
    assert "out/example.jsonl  5 rows" in printed


def test_json_is_the_only_thing_on_stdout(project, capsys):
    """Scripts parse it."""
    assert collate("--mode", "example_validation", "--output-dir", "out", "--json") == 0

    result = json.loads(capsys.readouterr().out)
    assert result["valid"] is True
    assert result["types"]["example"]["metrics"]["Number of examples"] == 5
    assert result["datasets"][0]["metrics_file"] == "new"


def test_bad_rows_end_with_status_1_in_words_and_in_json(project, capsys):
    """CI looks at the status, people at the lines, tools at the object."""
    with (project / "data" / "train.jsonl").open("a") as rows:
        rows.write('{}\n{"responses_create_params": {}}\n{}\n')
    words = ("--mode", "train_preparation", "--output-dir", "out")

    assert collate(*words) == 1
    assert "lines 4, 6: responses_create_params: field required" in capsys.readouterr().err
    assert collate(*words, "--json", "--max-errors", "2") == 1
    result = json.loads(capsys.readouterr().out)

    assert (result["valid"], result["rows_refused"], result["stopped_early"]) == (False, 2, True)
    assert result["files"][0]["problems"][0]["lines"] == [[4, 4]]
    assert not (project / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "--mode (or +mode=…) is missing"),
        (("--output-dir", "out", "+mode=training"), "--mode (or +mode=…): Input should be 'train_preparation'"),
        (("--output-dir", "out", "--mode", "example_validation", "--max-errors", "0"), "--max-errors"),
        (("--output-dir", "out", "--mode", "example_validation", "--plot", "p.gif"), ".png or .svg"),
    ],
)
def test_a_usage_error_ends_with_status_2(project, capsys, words, message):
    """Usage errors come before any row is read."""
    assert collate(*words) == 2
    assert message in capsys.readouterr().err


def test_a_conflict_of_metrics_is_reported_in_json_too(project, capsys):
    """Programs need the figures that differ and the file with the new ones."""
    words = ("--mode", "train_preparation", "--output-dir", "out", "--json")
    assert collate(*words) == 0
    with (project / "data" / "train.jsonl").open("a") as rows:
        rows.write(json.dumps(row(9)) + "\n")
    capsys.readouterr()

    assert collate(*words) == 1

    (result,) = json.loads(capsys.readouterr().out)["conflicts"]
    assert "Number of examples: was 3, is 4" in result["differences"]
    assert Path(result["conflict_path"]).is_file()
    assert collate(*words, "--overwrite-metrics") == 0
    assert not Path(result["conflict_path"]).exists()


def test_missing_files_are_all_named(project, capsys):
    """Seed 003: missing datasets will be reported before any processing is done."""
    (project / "data" / "train.jsonl").unlink()

    assert collate("--mode", "train_preparation", "--output-dir", "out") == 1

    assert "1 dataset file is missing" in capsys.readouterr().err


def test_a_plot_is_written(project, capsys):
    """`--plot` shows the distribution of lengths."""
    pytest.importorskip("matplotlib")

    assert collate("--mode", "example_validation", "--output-dir", "out", "--plot", "out/lengths.svg") == 0

    assert (project / "out" / "lengths.svg").read_text().startswith("<?xml")


def test_the_report_of_bad_rows_is_the_one_in_the_docs(project, capsys):
    """The page must show the current messages."""
    lines = [json.dumps(row(7)).encode() for _ in range(60)]
    lines[0] = b"\xef\xbb\xbf" + lines[0]
    lines[1] += b"\r"
    lines[3] = b'{"a":'
    for number in (11, *range(39, 57)):
        lines[number] = b'{"responses_create_params": {}}'
    lines[20] = b""
    lines[22] = lines[22].replace(b'"answer"', b'"answer": 1, "answer"')
    lines[23] = lines[23].replace(b'"answer": 7', b'"answer": NaN')
    lines[24] = lines[24].replace(b"0.5", b'"hot"')
    lines[25] = lines[25].replace(b"temperature", b"temprature")
    lines[26] = lines[26].replace(b'"temperature": 0.5', b'"tools": [{"type": "function"}]')
    lines[27] = lines[27].replace(b"7?", b"\xff")
    (project / "data" / "train.jsonl").write_bytes(b"\n".join(lines) + b"\n")

    assert collate("--mode", "train_preparation", "--output-dir", "out") == 1

    message = capsys.readouterr().err.replace(f"{project}/", "")
    assert message in (DOCS / "datasets.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_terminated_command_leaves_nothing_behind(project, processes):
    """Schedulers end jobs with SIGTERM; unfinished files would fill the disk."""
    with (project / "data" / "train.jsonl").open("w") as rows:
        rows.writelines(json.dumps(row(number)) + "\n" for number in range(200_000))
    words = ["--config", "sums.yaml", "--mode", "train_preparation", "--output-dir", "out", "--processes", processes]
    command = [sys.executable, "-m", "nemo_gym.cli.main", "dataset", "collate", *words]

    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as running:
        assert eventually(lambda: running.poll() is not None or [*(project / "data").glob(".train_prepare.jsonl.*")])
        assert running.poll() is None, running.communicate()
        os.kill(running.pid, signal.SIGTERM)
        _, message = running.communicate(timeout=60)

    assert (running.returncode, message) == (130, b"interrupted\n")
    assert not (project / "out").exists()
    assert sorted(path.name for path in (project / "data").iterdir()) == ["example.jsonl", "train.jsonl"]


def test_the_function_of_earlier_versions_still_works(project, monkeypatch, capsys):
    """`from nemo_gym.cli.dataset import prepare_data` reads the command line of its process."""
    from nemo_gym.cli.dataset import prepare_data

    words = ["+config_paths=[sums.yaml]", "+mode=example_validation"]
    monkeypatch.setattr("sys.argv", ["prepare.py", *words, "+output_dirpath=out"])
    prepare_data()
    monkeypatch.setattr("sys.argv", ["prepare.py", *words])
    with pytest.raises(SystemExit) as ended:
        prepare_data()

    assert (project / "out" / "example.jsonl").exists()
    assert ended.value.code == 2
