"""Delete a dataset with all its versions from the GitLab registry, after a confirmation.

Needs mlflow_tracking_uri and mlflow_tracking_token in env.yaml.

  gym dataset rm --name old_dataset
"""

import argparse

from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", dest="dataset_name", metavar="NAME", help="name of the dataset (dataset_name)")
    parser.add_argument("-y", "--yes", action="store_true", help="delete without confirmation")
    options.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    from nemo_gym.cli.shared.registries import confirm, open_registry, version_list
    from nemo_gym.config_types import DeleteJsonlDatasetGitlabConfig
    from nemo_gym.data.gitlab import versions_to_delete

    config = options.resolve_config(args.overrides, needs_model=False).config
    name = options.load_options(DeleteJsonlDatasetGitlabConfig, config, args).dataset_name
    registry = open_registry(config, args.prog)
    versions = versions_to_delete(registry, name)
    if not confirm(f"Delete '{name}' with all its versions{version_list(versions)} from GitLab?", yes=args.yes):
        output.notify("nothing was deleted")
        return 1
    registry.delete(name)
    if args.json:
        output.write_json({"storage": "gitlab", "dataset_name": name, "versions": versions, "deleted": True})
    else:
        output.write(f"✓ deleted {name} with all its versions{version_list(versions)}")
    return 0
