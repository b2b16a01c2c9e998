"""Names that programs import from their former modules."""

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import nemo_gym.cli

MOVED = {
    "nemo_gym.cli.env": [
        "RunHelper", "RunConfig", "TestConfig", "TestAllConfig", "PipListConfig", "VersionConfig", "run", "test",
        "test_all", "init_resources_server", "dump_config", "status", "pip_list",
    ],
    "nemo_gym.cli.eval": ["e2e_rollout_collection"],
    "nemo_gym.cli.dev": ["dev_test"],
    "nemo_gym.cli.legacy": ["version"],
    "nemo_gym.global_config": ["GlobalConfigDictParserConfig"],
}  # fmt: skip
COMMANDS = {
    ("env", "test"): ["env", "test"],
    ("env", "validate"): ["env", "validate"],
    ("env", "test_all"): ["env", "test"],
    ("env", "dump_config"): ["env", "resolve"],
    ("env", "run"): ["env", "start"],
    ("env", "status"): ["env", "status"],
    ("env", "pip_list"): ["env", "packages"],
    ("env", "init_resources_server"): ["env", "init"],
    ("eval", "e2e_rollout_collection"): ["eval", "run"],
    ("eval", "collect_rollouts"): ["eval", "run"],
    ("eval", "aggregate_rollouts"): ["eval", "aggregate"],
    ("eval", "reward_profile"): ["eval", "profile"],
    ("eval", "prepare_benchmark"): ["eval", "prepare"],
    ("eval", "list_benchmarks"): ["list", "benchmarks"],
    ("dataset", "prepare_data"): ["dataset", "collate"],
    ("dataset", "materialize_prompts_cli"): ["dataset", "render"],
    ("dataset", "upload_jsonl_dataset_cli"): ["dataset", "upload"],
    ("dataset", "download_jsonl_dataset_from_hf_cli"): ["dataset", "download"],
    ("dataset", "delete_jsonl_dataset_from_gitlab_cli"): ["dataset", "rm"],
    ("dataset", "upload_jsonl_dataset_to_hf_and_delete_gitlab_cli"): ["dataset", "migrate"],
    ("dev", "dev_test"): ["dev", "test"],
}


@pytest.mark.parametrize(("name", "home"), [(name, home) for home, names in MOVED.items() for name in names])
def test_a_moved_name_is_the_same_object_and_warns_of_its_new_module(name: str, home: str) -> None:
    """Trainers write `from nemo_gym.cli import RunHelper`; it works, and the warning points at their line."""
    with pytest.warns(DeprecationWarning, match=f"import {name} from {home}") as caught:
        namespace: dict[str, object] = {}
        exec(f"from nemo_gym.cli import {name}", namespace)

    assert namespace[name] is getattr(importlib.import_module(home), name)
    assert {warning.filename for warning in caught} == {"<string>"}


@pytest.mark.parametrize(("module", "name"), COMMANDS)
def test_an_old_function_runs_the_command_with_the_arguments_of_the_process(
    module: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scripts contain `python -c "from nemo_gym.cli.env import run; run()" +a=b`."""
    monkeypatch.setattr(sys, "argv", ["script.py", "--help"])

    with pytest.raises(SystemExit) as ended:
        getattr(importlib.import_module(f"nemo_gym.cli.{module}"), name)()

    assert not ended.value.code
    assert capsys.readouterr().out.startswith(f"usage: gym {' '.join(COMMANDS[module, name])}")


@pytest.mark.parametrize("name", ["test", "status", "validate"])
def test_a_function_stays_a_function_after_its_command_is_imported(name: str) -> None:
    """`nemo_gym.cli.env.test` is a function of the contract and a module of ours."""
    module = importlib.import_module(f"nemo_gym.cli.env.{name}")

    assert inspect.isfunction(getattr(importlib.import_module("nemo_gym.cli.env"), name))
    assert inspect.isfunction(module.run)


def test_a_command_that_fails_ends_the_process_with_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shell scripts check it."""
    from nemo_gym.cli.env import init_resources_server

    monkeypatch.setattr(sys, "argv", ["script.py"])

    with pytest.raises(SystemExit) as ended:
        init_resources_server()

    assert ended.value.code == 2


def test_the_former_module_of_setup_commands_still_offers_them() -> None:
    """Programs that start servers import them from there."""
    import nemo_gym.cli_setup_command as old
    from nemo_gym.cli import setup_command

    with pytest.warns(DeprecationWarning, match="nemo_gym.cli.setup_command"):
        assert old.run_command is setup_command.run_command
    assert not hasattr(old, "anything_else")


def test_a_command_runs_in_its_folder_with_its_modules(tmp_path: Path) -> None:
    """Programs that start servers themselves rely on the folder and the project being importable."""
    from nemo_gym.cli.setup_command import run_command

    (tmp_path / "kind" / "folder").mkdir(parents=True)
    (tmp_path / "beside.py").write_text("PLACE = 'project'")
    line = "python -c 'import beside, os; print(beside.PLACE, os.getcwd())'".replace("python", sys.executable, 1)

    process = run_command(line, tmp_path / "kind" / "folder", "x", tmp_path, stdout_target=subprocess.PIPE)
    printed, _ = process.communicate(timeout=60)

    assert printed.decode().split() == ["project", str(tmp_path / "kind" / "folder")]


def test_a_folder_is_set_up_by_one_line_of_shell(tmp_path: Path) -> None:
    """An existing environment is only activated."""
    from nemo_gym.cli.setup_command import setup_env_command

    folder = tmp_path / "resources_servers" / "mine"
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / "requirements.txt").write_text("orjson\n")
    (folder / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (folder / ".venv" / "bin" / "activate").write_text("export ACTIVATED=yes\n")
    line = setup_env_command(folder, {"skip_venv_if_present": True, "cache_dir": str(tmp_path)}, "mine")

    printed = subprocess.run(
        ["bash", "-c", f"{line} && echo $ACTIVATED"], capture_output=True, text=True, timeout=60, check=True
    )

    assert printed.stdout == "yes\n"


def test_an_unknown_name_is_an_ordinary_attribute_error() -> None:
    """hasattr and misspellings behave as in any module."""
    assert not hasattr(nemo_gym.cli, "RunHelpre")


@pytest.mark.parametrize(
    "name",
    [
        "start", "run_forever", "shutdown", "poll", "wait_for_spinup", "wait_for_dry_run_spinup",
        "wait_for_model_endpoints", "check_http_server_statuses", "display_server_instance_info",
    ],
)  # fmt: skip
def test_a_trainer_calls_every_method_without_arguments(name: str) -> None:
    """The surface trainers were written against."""
    from nemo_gym.cli.env import RunHelper

    method = getattr(RunHelper(), name)
    assert not inspect.iscoroutinefunction(method)
    inspect.signature(method).bind()
    if name == "start":
        inspect.signature(method).bind(global_config_dict_parser_config=None)
