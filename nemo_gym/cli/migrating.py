"""What `gym dataset migrate` does."""

import argparse
from collections.abc import Sequence

from nemo_gym.cli import output
from nemo_gym.cli.dataset_publish import agreed, among, configuration, files_explained, gitlab_registry, progress_bar
from nemo_gym.cli.options import UsageError, options
from nemo_gym.cli.uploading import hub_flags, tell_published
from nemo_gym.config_types import UploadJsonlDatasetHuggingFaceConfig
from nemo_gym.data.hub import repo_of
from nemo_gym.data.hub_migrate import gitlab_name, migrate, versions_to_delete

COMMAND = "gym dataset migrate"


def migrate_dataset(args: argparse.Namespace, rest: Sequence[str]) -> int:
    config = configuration(rest)
    for key in sorted(UploadJsonlDatasetHuggingFaceConfig.forbidden_fields & set(config)):
        fix = "leave it out, or use gym dataset upload"
        raise UsageError(f"{key} cannot be set here: this command always deletes", where=COMMAND, fix=fix)
    settings = options(UploadJsonlDatasetHuggingFaceConfig, config, hub_flags(args, config), command=COMMAND)
    registry, name = gitlab_registry(config, COMMAND), gitlab_name(settings)
    doomed = among(versions_to_delete(registry, name))
    place = f"{repo_of(settings)}, as a pull request," if settings.create_pr else repo_of(settings)
    question = (
        f"Upload {settings.input_jsonl_fpath} to {place} and delete '{name}' with all its versions{doomed} from GitLab?"
    )
    if not agreed(question, yes=args.yes):
        output.talk("nothing was uploaded, nothing was deleted")
        return 1
    with files_explained(), progress_bar("uploading") as meter:
        published = migrate(settings, registry, meter=meter)
    tell_published(published, as_json=args.json, deleted=name)
    return 0
