"""Compute a reward profile: the difficulty of each task and the spread of the rewards of its rollouts.

Needs the rollouts of a run and the inputs stored next to them, but no server. Writes <stem>_reward_profiling.jsonl (one
line per task) and <stem>_agent_metrics.json next to the rollouts. Rewards of a task can differ only if its rollouts
were collected with --num-repeats greater than 1. Exit status: 0 done, 1 the files are of different runs or rollouts are
missing, 2 wrong usage.
"""

import argparse
from pathlib import Path
from typing import Any

from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output

FIGURES = ("mean", "std", "min", "median", "max")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags = options.FlagGroup(parser)
    add_stored_run_arguments(flags)
    flags.switch("--allow-partial", "accept inputs without rollouts and profile the others", "allow_partial_rollouts")
    flags.json()
    flags.switch("-v --verbose", "print more details")


def add_stored_run_arguments(flags: options.FlagGroup) -> None:
    """Add the flags that name the files of a stored run."""
    flags.text("--rollouts", "FILE", "rollouts of a run", "rollouts_jsonl_fpath")
    text = "materialized inputs of the run (default: those next to the rollouts)"
    flags.text("--inputs", "FILE", text, "materialized_inputs_jsonl_fpath")


def default_inputs(args: argparse.Namespace, config: Any) -> dict[str, Any]:
    """Return the path of the inputs as an option: from the flag or key, otherwise the file next to the rollouts."""
    from nemo_gym.rollouts.run_files import materialized_path_for

    rollouts = args.rollouts_jsonl_fpath or config.get("rollouts_jsonl_fpath")
    inputs = args.materialized_inputs_jsonl_fpath or config.get("materialized_inputs_jsonl_fpath")
    default = str(materialized_path_for(rollouts)) if rollouts else ""  # so that the error names only the rollouts
    return {"materialized_inputs_jsonl_fpath": inputs or default}


def run(args: argparse.Namespace) -> int:
    from nemo_gym.metrics.scores import compute_scores
    from nemo_gym.reward_profile import RewardProfileConfig, RewardProfiler, RunProfile, count_reward_spread
    from nemo_gym.rollouts.run_identity import check_planned_rows
    from nemo_gym.wire.stored_rollout import REWARD_KEY

    config = options.resolve_config(args, needs_model=False).config
    settings = options.load_options(RewardProfileConfig, config, args, default_inputs(args, config))
    rollouts = settings.rollouts_jsonl_fpath
    check_planned_rows(Path(settings.materialized_inputs_jsonl_fpath))
    run_profile = RunProfile(Path(settings.materialized_inputs_jsonl_fpath), Path(rollouts))
    run_profile.check(allow_partial_rollouts=settings.allow_partial_rollouts)
    agents = run_profile.agents()
    tasks_path, agents_path = RewardProfiler().write_to_disk(run_profile.groups_with_inputs(), agents, rollouts)
    result = {
        "summary": run_profile.summary(),
        "spread": count_reward_spread(run_profile.stats),
        "agents": agents,
        "scores": compute_scores(run_profile.stats, [REWARD_KEY]),
        "reward_profiling": str(tasks_path),
        "agent_metrics": str(agents_path),
    }
    output.write_result(result, lambda: _print_profile(result), as_json=args.json)
    return 0


def _print_profile(profile: dict[str, Any]) -> None:
    """Print the counts of rollouts and tasks, a table per agent, the spread of rewards and the files."""
    summary = profile["summary"]
    rollouts = [str(summary[f"{kind}_rollout_rows"]) for kind in ("expected", "completed", "missing", "extra")]
    tasks = [str(summary[f"{kind}_input_rows"]) for kind in ("total", "complete", "missing")]
    output.write_table(
        [("", "expected", "complete", "missing", "extra"), ("rollouts", *rollouts), ("tasks", *tasks, "")]
    )
    if summary["missing_rollout_rows"]:
        incomplete, percent = summary["partial_input_rows"], summary["completion_pct"]
        output.write(f"{percent:.1f} % of the rollouts exist; {incomplete} tasks have only some of their rollouts")
    for agent in profile["agents"]:
        output.write(f"\n{agent['agent_ref']['name']}")
        names = [key.removeprefix("mean/") for key in agent if key.startswith("mean/")]
        rows = [[f"  {name}", *(_format_figure(agent.get(f"{kind}/{name}")) for kind in FIGURES)] for name in names]
        output.write_table([["", *FIGURES], *rows])
    spread = profile["spread"]
    spread_text = f"{spread['rewards_differ']} of {spread['num_tasks']} tasks have rollouts with different rewards"
    if "never_solved" in spread:
        spread_text += f"; {spread['never_solved']} were never solved, {spread['always_solved']} always"
    output.write(f"\n{spread_text}")
    output.write(f"\nper task   {profile['reward_profiling']}\nper agent  {profile['agent_metrics']}")


def _format_figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
