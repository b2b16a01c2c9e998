"""Delete stored runs with all their files, after a confirmation.

RUN is `latest`, the name of its folder, the name given to it, or a path. A run that is being collected is refused.

  gym runs rm 20261118-145312-arithmetic-scripted_model
"""

from __future__ import annotations

import argparse

from nemo_gym.cli.runs.list import add_results_flag
from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="RUN", help="run to delete")
    flags = options.FlagGroup(parser)
    flags.switch("-y --yes", "delete without confirmation")
    add_results_flag(flags)
    flags.json()


def run(args: argparse.Namespace) -> int:
    from pathlib import Path

    from nemo_gym.cli.shared.registries import confirm
    from nemo_gym.rollouts.run_folders import delete_run, find_stored_run

    if not args.names:
        raise options.UsageError("RUN is missing", where=args.prog, fix="gym runs list")
    stored = {run.output: run for run in (find_stored_run(Path(args.results), name) for name in args.names)}
    names = [str(path) for path in stored]
    if not confirm(f"Delete {', '.join(names)} with all files of the run?", yes=args.yes):
        output.notify("nothing was deleted")
        return 1
    for run_files in stored.values():
        delete_run(run_files)
    output.write_result({"deleted": names}, lambda: output.write(f"✓ deleted {', '.join(names)}"), as_json=args.json)
    return 0
