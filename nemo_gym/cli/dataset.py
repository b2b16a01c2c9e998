"""Dataset commands as functions that read the command line of the process, for scripts of earlier versions."""

from nemo_gym.cli.scripts import run_command_line


def prepare_data() -> None:
    """`gym dataset collate` with this process's arguments."""
    run_command_line("dataset", "collate")


def materialize_prompts_cli() -> None:
    """`gym dataset render` with this process's arguments."""
    run_command_line("dataset", "render")


def upload_jsonl_dataset_cli() -> None:
    """`gym dataset upload --storage gitlab` with this process's arguments."""
    run_command_line("dataset", "upload", "--storage", "gitlab")


def download_jsonl_dataset_cli() -> None:
    """`gym dataset download --storage gitlab` with this process's arguments."""
    run_command_line("dataset", "download", "--storage", "gitlab")


def delete_jsonl_dataset_from_gitlab_cli() -> None:
    """`gym dataset rm` with this process's arguments."""
    run_command_line("dataset", "rm")


def upload_jsonl_dataset_to_hf_cli() -> None:
    """`gym dataset upload` with this process's arguments."""
    run_command_line("dataset", "upload")


def download_jsonl_dataset_from_hf_cli() -> None:
    """`gym dataset download` with this process's arguments."""
    run_command_line("dataset", "download")


def upload_jsonl_dataset_to_hf_and_delete_gitlab_cli() -> None:
    """`gym dataset migrate` with this process's arguments."""
    run_command_line("dataset", "migrate")
