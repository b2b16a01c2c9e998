"""Add or remove tags of a stored run, or give it a name.

RUN is `latest`, the name of its folder, the name given to it, or a path.

  gym runs tag latest baseline --name first
"""

from __future__ import annotations

import argparse

from nemo_gym.cli.runs.list import add_results_flag
from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="RUN", help="run to tag")
    parser.add_argument("tags", nargs="*", metavar="TAG", help="tag to add")
    flags = options.FlagGroup(parser)
    flags.words("--remove", "TAG", "tag to remove; repeatable", "removed")
    flags.text("--name", "NAME", "name of the run; an empty text removes it", "run_label")
    add_results_flag(flags)
    flags.json()


def run(args: argparse.Namespace) -> int:
    from pathlib import Path

    from nemo_gym.rollouts.run_folders import change_tags, check_name, find_stored_run

    if args.name is None:
        raise options.UsageError("RUN is missing", where=args.prog, fix="gym runs tag latest TAG")
    results = Path(args.results)
    stored = find_stored_run(results, args.name)
    if args.run_label:
        check_name(results, args.run_label, own=stored.output)
    labels = change_tags(stored.output, name=args.run_label, added=args.tags, removed=args.removed)
    text = f"{stored.output.parent.name}: {labels.name or 'no name'}; tags: {' '.join(labels.tags) or 'none'}"
    output.write_result(labels.names(), lambda: output.write(text), as_json=args.json)
    return 0
