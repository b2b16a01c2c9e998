"""What `gym eval profile` does: how hard each task was, and how much its rollouts differ."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nemo_gym.cli import output
from nemo_gym.cli.options import files_explained, options, resolved_without_model
from nemo_gym.metrics.profile import spread_of
from nemo_gym.metrics.scores import REWARD, scores_of
from nemo_gym.reward_profile import RewardProfileConfig, RewardProfiler
from nemo_gym.rollouts.paths import materialized_path_for
from nemo_gym.rollouts.profile import RunProfile

COMMAND = "gym eval profile"
SHOWN_FIGURES = ("mean", "std", "min", "median", "max")


def profile(args: argparse.Namespace, rest: Sequence[str]) -> int:
    config = resolved_without_model(rest).config
    rollouts = args.rollouts or config.get("rollouts_jsonl_fpath")
    inputs = args.inputs or config.get("materialized_inputs_jsonl_fpath")
    beside = str(materialized_path_for(rollouts)) if rollouts else ""  # one thing missing is enough to say
    given = {
        "materialized_inputs_jsonl_fpath": ("--inputs", inputs or beside),
        "rollouts_jsonl_fpath": ("--rollouts", rollouts),
        "allow_partial_rollouts": ("--allow-partial", args.allow_partial or None),
    }
    asked = options(RewardProfileConfig, config, given, command=COMMAND)
    with files_explained():
        read = RunProfile(Path(asked.materialized_inputs_jsonl_fpath), Path(asked.rollouts_jsonl_fpath))
        read.profile.check(allow_partial_rollouts=asked.allow_partial_rollouts)
        agents = read.profile.agents()
        tasks_path, agents_path = RewardProfiler().write_to_disk(read.groups(), agents, asked.rollouts_jsonl_fpath)
    told = {
        "summary": read.profile.summary(),
        "spread": spread_of(read.profile.tally),
        "agents": agents,
        "scores": scores_of(read.profile.tally, [REWARD]),
        "reward_profiling": str(tasks_path),
        "agent_metrics": str(agents_path),
    }
    if args.json:
        output.json(told)
    else:
        _show(told)
    return 0


def _show(told: dict[str, Any]) -> None:
    summary, spread = told["summary"], told["spread"]
    output.table(
        [
            ("", "expected", "complete", "missing", "extra"),
            *_counted("rollouts", summary, "rollout_rows", "completed", extra=str(summary["extra_rollout_rows"])),
            *_counted("tasks", {**summary, "expected_input_rows": summary["total_input_rows"]}, "input_rows"),
        ]
    )
    if summary["missing_rollout_rows"]:
        partial, done = summary["partial_input_rows"], summary["completion_pct"]
        output.data(f"{done:.1f} % of the rollouts are there; {partial} tasks have only some of theirs")
    for agent in told["agents"]:
        output.data(f"\n{agent['agent_ref']['name']}")
        names = [key.removeprefix("mean/") for key in agent if key.startswith("mean/")]
        rows = [[f"  {name}", *(_figure(agent.get(f"{kind}/{name}")) for kind in SHOWN_FIGURES)] for name in names]
        output.table([["", *SHOWN_FIGURES], *rows])
    output.data(f"\n{_spread(spread)}")
    output.data(f"\nper task   {told['reward_profiling']}\nper agent  {told['agent_metrics']}")


def _counted(name: str, counts: dict[str, Any], rows: str, done: str = "complete", extra: str = "") -> list[list[str]]:
    return [[name, *(str(counts[f"{kind}_{rows}"]) for kind in ("expected", done, "missing")), extra]]


def _spread(spread: dict[str, int]) -> str:
    text = f"{spread['rewards_differ']} of {spread['num_tasks']} tasks have rollouts with different rewards"
    if "never_solved" in spread:
        text += f"; {spread['never_solved']} were never solved, {spread['always_solved']} always"
    return text


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
