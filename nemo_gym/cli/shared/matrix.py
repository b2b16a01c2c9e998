"""Several models in one command: one run for each, one after the other, and a table of models and environments."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import orjson

from nemo_gym.cli.parser import USAGE_ERROR
from nemo_gym.cli.runs.list import format_reward
from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output
from nemo_gym.evaluation import PROGRAM, STOP_SECONDS

SINGLE_RUN_FLAGS = {
    "output_jsonl_fpath": "--output names one file",
    "run_label": "--name names one run",
    "no_serve": "--no-serve uses running servers, which have their model",
    "run_name": "--run chooses running servers, which have their model",
}
"""Flags that cannot be combined with several models, and why."""
MODEL_FLAG = "--model"


def run_matrix(args: argparse.Namespace, words: Sequence[str], models: Sequence[str]) -> int:
    """Run `gym eval run` for each model, print the table of mean rewards, and return the highest exit status.

    Raises:
        UsageError: a flag belongs to a single run.
    """
    reasons = [reason for key, reason in SINGLE_RUN_FLAGS.items() if getattr(args, key, None)]
    if reasons:
        raise options.UsageError(f"{'; '.join(reasons)}, but {len(models)} models are given", fix="leave one out")
    common = _without_flag(words, MODEL_FLAG)
    reports: dict[str, dict[str, Any]] = {}
    for model in models:
        reports[model] = _run_one([*common, MODEL_FLAG, model], model)
        if reports[model]["exit_status"] == USAGE_ERROR:  # every other model would end in the same way
            return USAGE_ERROR
    facts = {"models": reports, "matrix": score_matrix(reports)}
    output.write_result(facts, lambda: _print_matrix(reports), as_json=args.json)
    return max(int(report["exit_status"]) for report in reports.values())


def _run_one(words: Sequence[str], model: str) -> dict[str, Any]:
    """Run one command and return its report; its progress and errors go to stderr."""
    output.notify(f"== {model}")
    command = [sys.executable, "-c", PROGRAM, str(os.getpid()), *words, *(["--json"] if "--json" not in words else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            stdout, _ = process.communicate()
        except KeyboardInterrupt:  # the terminal has interrupted the command, too: it stores its results and ends
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
    try:
        report: dict[str, Any] = orjson.loads(stdout)
    except orjson.JSONDecodeError:
        report = {}
    return {**report, "exit_status": process.returncode}


def score_matrix(reports: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the mean reward and its interval by agent and model."""
    matrix: dict[str, dict[str, Any]] = {}
    for model, report in reports.items():
        for agent, scores in (report.get("rewards") or {}).items():
            matrix.setdefault(agent, {})[model] = scores
    return matrix


def _print_matrix(reports: dict[str, dict[str, Any]]) -> None:
    matrix = score_matrix(reports)
    rows = [("mean reward", *reports)]
    rows += [
        (agent, *(format_reward(scores[model]) if model in scores else "–" for model in reports))
        for agent, scores in matrix.items()
    ]
    rows.append(("scored", *(f"{_scored_count(report)}/{report.get('total', 0)}" for report in reports.values())))
    output.write("")
    output.write_table(rows)
    for model, report in reports.items():
        if report.get("rollouts"):
            output.write(f"{model}  {report['rollouts']}")


def _scored_count(report: dict[str, Any]) -> int:
    return int(report.get("scored", 0)) + int(report.get("finished_before", 0))


def _without_flag(words: Sequence[str], flag: str) -> list[str]:
    """Return the words without a flag and its values."""
    kept: list[str] = []
    skips_value = False
    for word in words:
        if not skips_value and word != flag and not word.startswith(f"{flag}="):
            kept.append(word)
        skips_value = word == flag and not skips_value
    return kept
