"""Check this machine and say what is missing, each with its fix.

Exits 0 when evaluations can run here, 1 when something they need is missing. What is only sometimes needed is a note.
"""

import argparse
from collections.abc import Sequence

from nemo_gym.cli import output

MARKS = {"fine": "✓", "note": "·", "problem": "✗"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:  # noqa: ARG001 - takes no overrides
    from nemo_gym.cli.checkup import CHECKS, Finding, Level  # `--help` does without

    findings: list[Finding] = []
    for check in CHECKS:
        for finding in check():
            findings.append(finding)
            if not args.json:
                output.data(f"{MARKS[finding.level]} {finding.what}: {finding.found}")
                if finding.fix:
                    output.data(f"    {finding.fix}")
    if args.json:
        output.json([{"what": f.what, "level": f.level, "found": f.found, "fix": f.fix or None} for f in findings])
    return int(any(finding.level is Level.PROBLEM for finding in findings))
