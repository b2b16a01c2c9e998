"""Show a stored run: its labels, counts, scores and files.

RUN is `latest`, the name of its folder, the name given to it, or a path.

  gym runs show latest
"""

from __future__ import annotations

import argparse

from nemo_gym.cli.runs.list import add_results_flag, summarize_run
from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", default="latest", metavar="RUN", help="run to show (default: latest)")
    flags = options.FlagGroup(parser)
    add_results_flag(flags)
    flags.json()


def run(args: argparse.Namespace) -> int:
    from pathlib import Path

    from nemo_gym.cli.shared.report import answer_lines, read_entries
    from nemo_gym.cli.shared.scoring import print_scores
    from nemo_gym.rollouts.run_files import files_of_run
    from nemo_gym.rollouts.run_folders import find_stored_run

    stored = find_stored_run(Path(args.results), args.name)
    summary = {**summarize_run(stored), "files": [str(path) for path in files_of_run(stored.output) if path.exists()]}

    def print_text() -> None:
        facts = ("run", "name", "environment", "model", "started_at")
        output.write_table([(name, str(summary[name])) for name in facts if summary[name]])
        output.write(f"{summary['scored']} of {summary['planned']} rollouts scored")
        if summary["tags"]:
            output.write(f"tags  {' '.join(summary['tags'])}")
        entries = read_entries(stored.output)
        for line in answer_lines(entries):
            output.write(line)
        print_scores(entries)
        output.write("\n" + "\n".join(summary["files"]))

    output.write_result(summary, print_text, as_json=args.json)
    return 0
