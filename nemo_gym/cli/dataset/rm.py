"""Delete a dataset with all its versions from the GitLab registry, after a confirmation.

Needs mlflow_tracking_uri and mlflow_tracking_token in env.yaml.

  gym dataset rm --name old_dataset
"""

import argparse

from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags = options.FlagGroup(parser)
    flags.text("--name", "NAME", "name of the dataset (dataset_name)", "dataset_name")
    flags.switch("-y --yes", "delete without confirmation")
    flags.json()


def run(args: argparse.Namespace) -> int:
    from nemo_gym.cli.shared.registries import confirm, describe_dataset, open_registry
    from nemo_gym.config_types import DeleteJsonlDatasetGitlabConfig
    from nemo_gym.data.gitlab import versions_to_delete

    config = options.resolve_config(args, needs_model=False).config
    name = options.load_options(DeleteJsonlDatasetGitlabConfig, config, args).dataset_name
    registry = open_registry(config, args.prog)
    versions = versions_to_delete(registry, name)
    dataset = describe_dataset(name, versions)
    if not confirm(f"Delete {dataset} from GitLab?", yes=args.yes):
        output.notify("nothing was deleted")
        return 1
    registry.delete(name)
    facts = {"storage": "gitlab", "dataset_name": name, "versions": versions, "deleted": True}
    output.write_result(facts, lambda: output.write(f"✓ deleted {dataset.rstrip(',')}"), as_json=args.json)
    return 0
