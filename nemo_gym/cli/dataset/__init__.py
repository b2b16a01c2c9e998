"""`gym dataset`: prepare, publish and export rows, one module per command.

The functions here run a command with the arguments of the process, for scripts written for earlier versions.
"""

from nemo_gym.cli.legacy import command_function

prepare_data = command_function("dataset", "collate")
materialize_prompts_cli = command_function("dataset", "render")
upload_jsonl_dataset_cli = command_function("dataset", "upload", "--storage", "gitlab")
download_jsonl_dataset_cli = command_function("dataset", "download", "--storage", "gitlab")
delete_jsonl_dataset_from_gitlab_cli = command_function("dataset", "rm")
upload_jsonl_dataset_to_hf_cli = command_function("dataset", "upload")
download_jsonl_dataset_from_hf_cli = command_function("dataset", "download")
upload_jsonl_dataset_to_hf_and_delete_gitlab_cli = command_function("dataset", "migrate")
