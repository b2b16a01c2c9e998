"""Several models or agents in one command: one run for each pair, one after the other, and a table of their scores."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from nemo_gym import component_search_roots
from nemo_gym.catalog.agent_pairing import agent_config_file
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
MODEL_FLAG, AGENT_FLAG = "--model", "--agent-type"


@dataclass(frozen=True)
class MatrixRun:
    """One run of a matrix; an empty name stands for the model or agent of the configuration."""

    model: str
    agent: str

    @property
    def label(self) -> str:
        return ", ".join(filter(None, (self.model, self.agent)))

    @property
    def words(self) -> list[str]:
        """Return the flags of this run."""
        flags = ((MODEL_FLAG, self.model), (AGENT_FLAG, self.agent))
        return [word for flag, name in flags if name for word in (flag, name)]


def run_matrix(
    args: argparse.Namespace, words: Sequence[str], models: Sequence[str], agents: Sequence[str] = ()
) -> int:
    """Run `gym eval run` for each model and agent, print the table of mean rewards, return the highest exit status.

    Raises:
        UsageError: a flag belongs to a single run.
        UnknownName: there is no such agent.
    """
    reasons = [reason for key, reason in SINGLE_RUN_FLAGS.items() if getattr(args, key, None)]
    if reasons:
        what = f"{len(models)} models" if len(models) > 1 else f"{len(agents)} agents"
        raise options.UsageError(f"{'; '.join(reasons)}, but {what} are given", fix="leave one out")
    for agent in agents:
        agent_config_file(agent, component_search_roots())  # an unknown name is an error before the first run
    common = _without_flag(_without_flag(words, MODEL_FLAG), AGENT_FLAG)
    runs = [MatrixRun(model, agent) for model in models or [""] for agent in agents or [""]]
    reports: dict[MatrixRun, dict[str, Any]] = {}
    for run in runs:
        reports[run] = _run_one([*common, *run.words], run.label)
        if reports[run]["exit_status"] == USAGE_ERROR and not agents:  # every other model would end in the same way
            return USAGE_ERROR
    key = "models" if len(models) > 1 and len(agents) < 2 else "runs"
    matrix = score_matrix(reports)
    facts = {key: {run.label: report for run, report in reports.items()}, "matrix": matrix}
    output.write_result(facts, lambda: _print_matrix(reports, matrix), as_json=args.json)
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


def score_matrix(reports: Mapping[MatrixRun, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the mean reward and its interval by agent and model; without models the second name is `mean`."""
    matrix: dict[str, dict[str, Any]] = {}
    for run, report in reports.items():
        for agent, scores in (report.get("rewards") or {}).items():
            matrix.setdefault(agent, {})[run.model or "mean"] = scores
    return matrix


def _print_matrix(reports: Mapping[MatrixRun, dict[str, Any]], matrix: Mapping[str, Mapping[str, Any]]) -> None:
    columns = list(dict.fromkeys(run.model or "mean" for run in reports))
    rows = [("mean reward", *columns)]
    rows += [
        (agent, *(format_reward(scores[column]) if column in scores else "–" for column in columns))
        for agent, scores in matrix.items()
    ]
    if len(columns) == len(reports):  # one agent
        rows.append(("scored", *(_scored_text(report) for report in reports.values())))
    output.write("")
    output.write_table(rows)
    for run, report in reports.items():
        state = "" if len(columns) == len(reports) else f"  {_state(report)}"
        if state or report.get("rollouts"):
            output.write(f"{run.label}{state}  {report.get('rollouts', '')}".rstrip())


def _state(report: Mapping[str, Any]) -> str:
    if report["exit_status"] == USAGE_ERROR:
        return "refused"
    return f"{_scored_text(report)} scored"


def _scored_text(report: Mapping[str, Any]) -> str:
    return f"{_scored_count(report)}/{report.get('total', 0)}"


def _scored_count(report: Mapping[str, Any]) -> int:
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
