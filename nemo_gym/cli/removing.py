"""What `gym dataset rm` does."""

import argparse
from collections.abc import Sequence

from nemo_gym.cli import output
from nemo_gym.cli.dataset_publish import agreed, among, configuration, gitlab_registry
from nemo_gym.cli.options import options
from nemo_gym.config_types import DeleteJsonlDatasetGitlabConfig
from nemo_gym.data.hub_migrate import versions_to_delete

COMMAND = "gym dataset rm"


def remove(args: argparse.Namespace, rest: Sequence[str]) -> int:
    config = configuration(rest)
    given = {"dataset_name": ("--name", args.name)}
    name = options(DeleteJsonlDatasetGitlabConfig, config, given, command=COMMAND).dataset_name
    registry = gitlab_registry(config, COMMAND)
    versions = versions_to_delete(registry, name)
    listed = among(versions)
    if not agreed(f"Delete '{name}' with all its versions{listed} from GitLab?", yes=args.yes):
        output.talk("nothing was deleted")
        return 1
    registry.delete(name)
    if args.json:
        output.json({"storage": "gitlab", "dataset_name": name, "versions": versions, "deleted": True})
    else:
        output.data(f"✓ deleted {name} with all its versions{listed}")
    return 0
