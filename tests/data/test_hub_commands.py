"""Commands that transfer datasets, before they reach a registry: usage, missing packages, invalid rows."""

import importlib.util
import io
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.cli.main import main
from nemo_gym.cli.terminal.output import transfer_meter
from nemo_gym.data.file_transfer import RegistryError
from nemo_gym.data.hub import check_rows, collection_of, repo_of, split_files
from nemo_gym.errors import ConfigError, ConfigPathNotFoundError

UPLOAD_KEYS = {
    "hf_token": "hf_sometokenvalue",
    "hf_organization": "acme",
    "hf_collection_name": "RL data",
    "hf_collection_slug": "1234",
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_TOKEN", raising=False)


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """A complete upload."""
    (tmp_path / "train.jsonl").write_text('{"responses_create_params": {"input": "x"}}\n')
    (tmp_path / "sums.yaml").write_text("s:\n  resources_servers:\n    sums: {entrypoint: app.py, domain: math}\n")
    keys = [f"+{key}='{value}'" for key, value in UPLOAD_KEYS.items()]
    return ["dataset", "upload", "-i", "train.jsonl", f"+resource_config_path={tmp_path / 'sums.yaml'}", *keys]


def test_all_missing_settings_are_reported_at_once(capsys: Any) -> None:
    """One run should be enough to learn every flag and key that is needed."""
    code = main(["dataset", "upload"])

    message = capsys.readouterr().err
    assert code == 2
    for name in ("hf_token in env.yaml", "+hf_organization", "+hf_collection_slug", "--input", "+resource_config_path"):
        assert name in message


def test_gitlab_needs_an_address(capsys: Any) -> None:
    """There is no public default registry to fall back to."""
    code = main(["dataset", "rm", "--name", "x"])

    assert code == 2 and "mlflow_tracking_uri is not set" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--repo-id", "a/b"], "exactly one of output_dirpath and output_fpath"),
        (["--repo-id", "a/b", "-o", "x", "--output-dir", "y"], "exactly one of"),
        (["--repo-id", "a/b", "-o", "x", "--artifact", "f", "--split", "train"], "not both"),
        (["--repo-id", "a/b", "-o", "x"], "output_fpath needs split or artifact_fpath"),
        (["-o", "x", "--artifact", "f"], "--repo-id"),
        (["--storage", "gitlab", "--name", "n"], "--revision"),
    ],
)
def test_contradictory_download_flags_are_refused(words: list[str], message: str, capsys: Any) -> None:
    """Guessing which flag counts would write to the wrong file."""
    code = main(["dataset", "download", *words])

    assert code == 2 and message in capsys.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("huggingface_hub") is not None, reason="the package is installed")
def test_without_the_hubs_package_the_extra_is_named(words: list[str], capsys: Any) -> None:
    """The package is optional, and the message must contain the command that installs it."""
    code = main(words)

    message = capsys.readouterr().err
    assert code == 1 and "pip install 'nemo-gym[hub]'" in message and "Traceback" not in message


@pytest.mark.skipif(importlib.util.find_spec("mlflow") is not None, reason="the package is installed")
def test_without_mlflow_the_extra_is_named(words: list[str], capsys: Any) -> None:
    """The package is optional, and the message must contain the command that installs it."""
    gitlab = ["--storage", "gitlab", "--name", "x", "--revision", "0.0.1", "+mlflow_tracking_uri=http://127.0.0.1:9"]

    code = main([*words, *gitlab])

    assert code == 1 and "pip install 'nemo-gym[gitlab]'" in capsys.readouterr().err


def test_rows_are_refused_with_their_lines(tmp_path: Path) -> None:
    """A broken dataset must not be published."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"x": 1}\n' * 30 + b"\n" + b"nope\n")

    with pytest.raises(ConfigError, match=r"lines 1–30: responses_create_params.*; line 32: the line is not JSON"):
        check_rows(path, needs_params=True)
    with pytest.raises(ConfigError, match="line 32: the line is not JSON"):
        check_rows(path, needs_params=False)
    path.write_bytes(b"\n\n")
    with pytest.raises(ConfigError, match="no rows"):
        check_rows(path, needs_params=True)


def config(**more: Any) -> Any:
    from nemo_gym.config_types import UploadJsonlDatasetHuggingFaceConfig

    settings = {**UPLOAD_KEYS, "input_jsonl_fpath": "x", "resource_config_path": "sums.yaml", **more}
    return UploadJsonlDatasetHuggingFaceConfig(**settings)


def test_the_repository_is_named_after_domain_and_server(words: list[str], tmp_path: Path) -> None:
    """Users find datasets on the Hub by these names."""
    server = {"resource_config_path": str(tmp_path / "sums.yaml")}

    assert repo_of(config(**server)) == "acme/Nemotron-RL-math-sums"
    assert repo_of(config(**server, dataset_name="other", hf_dataset_prefix="P")) == "acme/P-math-other"
    assert collection_of(config(**server)) == "acme/rl-data-1234"


def test_a_config_without_a_domain_is_refused(tmp_path: Path) -> None:
    """The domain is part of the repository's name."""
    (tmp_path / "no.yaml").write_text("s:\n  resources_servers:\n    sums: {entrypoint: app.py}\n")

    with pytest.raises(ConfigError, match="no resources server with a 'domain'"):
        repo_of(config(resource_config_path=str(tmp_path / "no.yaml")))
    with pytest.raises(ConfigPathNotFoundError, match=r"nowhere\.yaml"):
        repo_of(config(resource_config_path="nowhere.yaml"))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["train.jsonl", "data/train-00000-of-00001.parquet"], ["train.jsonl"]),
        (["README.md", "data/training.jsonl"], ["data/training.jsonl"]),
        (["data/train-1.parquet", "data/train-0.parquet"], ["data/train-0.parquet", "data/train-1.parquet"]),
        (["constrained.jsonl", "test.jsonl"], []),
    ],
)
def test_a_split_is_found_by_the_names_of_its_files(files: list[str], expected: list[str]) -> None:
    """Datasets on the Hub name their splits in many ways."""
    assert split_files(files, "train", "a/b") == expected


def test_an_ambiguous_split_is_refused() -> None:
    """A guess would train on the wrong rows."""
    with pytest.raises(RegistryError, match="several files could be the train split"):
        split_files(["train-0.parquet", "old/train.jsonl"], "train", "a/b")


def test_the_export_command_reports_its_output(tmp_path: Path, capsys: Any) -> None:
    """The counts tell the user whether the export has what training needs."""
    row = (
        '{"responses_create_params": {"input": "x"}, "response": {"output": [{"type": "message", "role": "assistant", '
        '"content": "y"}]}, "reward": 1.0, "_ng_task_index": 0, "_ng_rollout_index": 0}\n'
    )
    (tmp_path / "rollouts.jsonl").write_text(row)
    (tmp_path / "rollouts_run.json").write_text('{"run_id": "abc"}')
    (tmp_path / "rollouts_materialized_inputs.jsonl").write_text('{"_ng_task_index": 0, "answer": "y"}\n')

    assert main(["dataset", "export", "--format", "rl", "-i", "rollouts.jsonl", "-o", "rl.jsonl"]) == 0
    assert "1 prompt → rl.jsonl" in capsys.readouterr().out
    written = (tmp_path / "rl.jsonl").read_text()
    assert '"run":"abc"' in written and '"metadata":{"answer":"y"}' in written

    code = main(["dataset", "export", "--format", "dpo", "-i", "rollouts.jsonl", "-o", "x.jsonl", "--json"])
    message = capsys.readouterr()
    assert code == 1 and not message.out and "gym eval run --num-repeats" in message.err


def test_an_unwritable_output_is_one_message(tmp_path: Path, capsys: Any) -> None:
    """A wrong path is a user's mistake, not a bug with a traceback."""
    (tmp_path / "file").write_text("")
    (tmp_path / "r.jsonl").write_text(
        '{"responses_create_params": {"input": "x"}, "response": {"output": [{"type": "message", "role": "assistant", '
        '"content": "y"}]}, "reward": 1.0}\n'
    )

    code = main(["dataset", "export", "--format", "sft", "-i", "r.jsonl", "-o", "file/sft.jsonl"])

    message = capsys.readouterr().err
    assert code == 3 and message.startswith("Error: file") and "Traceback" not in message


class Screen(io.StringIO):
    """A stderr that is, or is not, a terminal."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_is_drawn_on_a_terminal_and_nowhere_else(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control characters of a bar make a log file unreadable."""
    screen = Screen(terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", screen)

    with transfer_meter("downloading") as meter:
        for done in range(11):
            meter(done * 100_000, 1_000_000)

    assert ("downloading" in screen.getvalue()) == terminal
    assert ("1.0/1.0 MB" in screen.getvalue()) == terminal


def test_the_public_names_need_an_address_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """`gitlab_utils` and `dataset_orchestrator` read the global configuration, which may lack it."""
    from omegaconf import OmegaConf

    from nemo_gym import dataset_orchestrator, gitlab_utils, global_config, hf_utils

    monkeypatch.setattr(global_config, "_GLOBAL_CONFIG_DICT", OmegaConf.create({}))

    with pytest.raises(ConfigError, match="mlflow_tracking_uri is not set"):
        gitlab_utils.create_mlflow_client()
    with pytest.raises(ConfigError, match="mlflow_tracking_uri is not set"):
        dataset_orchestrator.migrate_jsonl_dataset(config())
    assert set(hf_utils.__all__) >= {"upload_jsonl_dataset", "download_jsonl_dataset"}


@pytest.mark.parametrize("unmerged", [["--create-pr"], ["--revision", "refs/pr/1"], ["--revision", "v2"]])
def test_a_dataset_outside_the_main_branch_is_not_deleted_from_gitlab(
    words: list[str], unmerged: list[str], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A branch may be deleted, a pull request closed, without being merged; the deleted dataset was the only copy."""
    from nemo_gym.data import gitlab, hub

    monkeypatch.setattr(hub, "upload", lambda *_, **__: pytest.fail("uploaded"))
    options = [*words[2:], *unmerged, "--yes", "+mlflow_tracking_uri=http://127.0.0.1:9"]
    for command in (["dataset", "migrate"], ["dataset", "upload", "+delete_from_gitlab=true"]):
        assert main([*command, *options]) == 1
        error = capsys.readouterr().err
        assert "a dataset that is only" in error and "on the Hub cannot be deleted from GitLab" in error

    with pytest.raises(ConfigError, match="only in a pull request"):
        gitlab.migrate_to_hub(config(create_pr=True), None)  # type: ignore[arg-type]
