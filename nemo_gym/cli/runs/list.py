"""List the stored runs, newest first.

gym runs list --tag baseline
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output

if TYPE_CHECKING:
    from nemo_gym.rollouts.run_files import RunFiles


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags = options.FlagGroup(parser)
    flags.words("--tag", "TAG", "only runs with this tag; repeatable", "tags")
    add_results_flag(flags)
    flags.json()


def add_results_flag(flags: options.FlagGroup) -> None:
    """Add --results, the folder of the runs."""
    flags.add_argument("--results", default="results", metavar="DIR", help="folder of the runs (default: results)")


def run(args: argparse.Namespace) -> int:
    from pathlib import Path

    from nemo_gym.rollouts.run_folders import stored_runs

    summaries = [summarize_run(stored) for stored in stored_runs(Path(args.results))]
    selected = [summary for summary in summaries if set(args.tags) <= set(summary["tags"])]
    output.write_result(selected, lambda: _print_runs(selected, args.results), as_json=args.json)
    return 0


def summarize_run(stored: RunFiles) -> dict[str, Any]:
    """Return the labels, the start, the outcome counts and the mean reward of each agent of a stored run."""
    from nemo_gym.cli.shared.report import agent_reward, read_entries
    from nemo_gym.rollouts.run_folders import RunLabels, run_content, short_name

    content, labels = run_content(stored), RunLabels.read(stored.output)
    rewards: dict[str, Any] = {}
    scored = 0
    for entry in read_entries(stored.output):
        scored += entry.get("attrition", {}).get("scored", 0)
        rewards[entry["agent_ref"]["name"]] = agent_reward(entry)
    return {
        "run": short_name(stored),
        **labels.names(),
        "started_at": content.get("started_at", ""),
        "planned": content.get("planned", {}).get("count"),
        "scored": scored,
        "reward": rewards,
        "rollouts": str(stored.output),
    }


def format_reward(reward: dict[str, Any]) -> str:
    """Format a mean as `0.95 [0.83, 0.99]`; `–` without one."""
    from nemo_gym.metrics.intervals import format_figure, format_interval

    if reward["mean"] is None:
        return "–"
    interval = reward["interval_95"]
    return " ".join([format_figure(reward["mean"]), *([format_interval(*interval)] if interval else [])])


def _print_runs(summaries: list[dict[str, Any]], folder: str) -> None:
    if not summaries:
        output.notify(f"no runs in {folder}")
        return
    rows = [("run", "name", "scored", "mean reward", "tags")]
    for summary in summaries:
        by_agent = sorted(summary["reward"].items())
        names = [f"{agent} " if len(by_agent) > 1 else "" for agent, _ in by_agent]
        means = [format_reward(reward) for _, reward in by_agent]
        rewards = ", ".join(map("".join, zip(names, means, strict=True))) or "–"
        counts = f"{summary['scored']}/{summary['planned']}"
        rows.append((summary["run"], summary["name"], counts, rewards, " ".join(summary["tags"])))
    output.write_table(rows)
