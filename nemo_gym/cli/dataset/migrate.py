"""Move a JSONL dataset from GitLab to Hugging Face: upload, verify, then delete from GitLab, after a confirmation.

Nothing is deleted unless the copy on the Hub has the file's checksum. `gym dataset upload` publishes without deleting.

  gym dataset migrate -i data/train.jsonl --name sums +resource_config_path=resources_servers/sums/configs/sums.yaml
"""

import argparse

from nemo_gym.cli.dataset.upload import add_upload_arguments
from nemo_gym.cli.shared import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_upload_arguments(parser, "branch on the Hub", "delete without confirmation")


def run(args: argparse.Namespace) -> int:
    from nemo_gym.cli.shared.registries import load_hub_options, migrate_dataset
    from nemo_gym.config_types import UploadJsonlDatasetHuggingFaceConfig
    from nemo_gym.data.hub import repo_of

    config = options.resolve_config(args, needs_model=False).config
    for key in sorted(UploadJsonlDatasetHuggingFaceConfig.forbidden_fields & set(config)):
        fix = "leave it out, or use gym dataset upload"
        raise options.UsageError(f"{key} cannot be set here: this command always deletes", where=args.prog, fix=fix)
    settings = load_hub_options(UploadJsonlDatasetHuggingFaceConfig, config, args)
    question = f"Upload {settings.input_jsonl_fpath} to {repo_of(settings)} and delete {{dataset}} from GitLab?"
    return migrate_dataset(settings, config, args, question)
