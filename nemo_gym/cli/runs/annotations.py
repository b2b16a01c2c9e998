"""Print the annotations that people gave to rollouts in `gym view`, with the verdicts they are about.

RUN is `latest`, the name of its folder, the name given to it, or a path. Each line is one annotation as JSON: the
rollout, its annotation, and what the verifier and its judges said. Use it to measure how often a verifier or a judge is
right.

  gym runs annotations latest --verdict wrong_verdict
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from nemo_gym.cli.runs.list import add_results_flag
from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output

if TYPE_CHECKING:
    from nemo_gym.rollouts.run_files import RunFiles

FACTS = ("agent", "model", "outcome", "kind", "reward", "question", "answer", "extracted", "expected", "rule", "labels")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", default="latest", metavar="RUN", help="the run (default: latest)")
    flags = options.FlagGroup(parser)
    flags.words("--verdict", "VERDICT", "only this annotation: good, wrong_verdict or unsure; repeatable", "verdicts")
    add_results_flag(flags)
    flags.json()


def run(args: argparse.Namespace) -> int:
    from pathlib import Path

    from nemo_gym.rollouts.annotations import VERDICTS
    from nemo_gym.rollouts.run_folders import find_stored_run

    unknown = [verdict for verdict in args.verdicts if verdict not in VERDICTS]
    if unknown:
        raise options.UsageError(
            f"unknown annotation {unknown[0]!r}", where="--verdict", fix=f"one of {', '.join(VERDICTS)}"
        )
    rows = list(annotated_rollouts(find_stored_run(Path(args.results), args.name), set(args.verdicts)))
    output.write_result(rows, lambda: _print_rows(rows), as_json=args.json)
    return 0


def annotated_rollouts(stored: RunFiles, verdicts: set[str]) -> Iterator[dict[str, Any]]:
    """Yield each annotation of a run with the facts of its rollout, if that still exists."""
    from dataclasses import asdict

    from nemo_gym.rollouts.annotations import read_annotations
    from nemo_gym.view.conversation import read_judgements
    from nemo_gym.view.database import RunDatabase

    database = RunDatabase(stored)
    database.build()
    for rollout_id, annotation in sorted(read_annotations(stored.output).items()):
        record = database.record(rollout_id)
        if record is None or (verdicts and annotation.verdict not in verdicts):
            continue
        facts = database.row(rollout_id)
        judges = read_judgements(record)
        yield {
            **asdict(annotation),
            **{name: facts[name] for name in FACTS if facts[name] not in (None, "", {})},
            **({"judge": judges} if judges else {}),
        }


def _print_rows(rows: list[dict[str, Any]]) -> None:
    import json

    if not rows:
        output.notify("no rollout of this run has an annotation")
    for row in rows:
        output.write(json.dumps(row, ensure_ascii=False))
