"""Compute a reward profile: how hard each task is and how much the rewards of its rollouts differ.

Needs the rollouts of a run and the inputs stored beside them; no server. Writes <stem>_reward_profiling.jsonl (one line
per task) and <stem>_agent_metrics.json next to the rollouts. Collect with --num-repeats greater than 1 to see
differences. Exit status: 0 done, 1 the files do not fit together or rollouts are missing, 2 wrong usage.
"""

import argparse
from pathlib import Path
from typing import Any

from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output
from nemo_gym.errors import raising_file_problems

FIGURES = ("mean", "std", "min", "median", "max")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags = options.FlagGroup(parser)
    add_stored_run_arguments(flags)
    flags.switch("--allow-partial", "accept inputs without rollouts and profile the others", "allow_partial_rollouts")
    options.add_json_argument(parser)
    flags.switch("-v --verbose", "print more details")


def add_stored_run_arguments(flags: options.FlagGroup) -> None:
    """Add the flags that name the files of a stored run."""
    flags.value("--rollouts", "FILE", "rollouts of a run", "rollouts_jsonl_fpath")
    text = "materialized inputs of the run (default: those beside the rollouts)"
    flags.value("--inputs", "FILE", text, "materialized_inputs_jsonl_fpath")


def default_inputs(args: argparse.Namespace, config: Any) -> dict[str, Any]:
    """Return the inputs beside the rollouts as the option, unless a flag or key names others."""
    from nemo_gym.rollouts.run_files import materialized_path_for

    rollouts = args.rollouts_jsonl_fpath or config.get("rollouts_jsonl_fpath")
    inputs = args.materialized_inputs_jsonl_fpath or config.get("materialized_inputs_jsonl_fpath")
    beside = str(materialized_path_for(rollouts)) if rollouts else ""  # report only the missing rollouts
    return {"materialized_inputs_jsonl_fpath": inputs or beside}


def run(args: argparse.Namespace) -> int:
    from nemo_gym.metrics.profile import count_reward_spread
    from nemo_gym.metrics.scores import compute_scores
    from nemo_gym.reward_profile import RewardProfileConfig, RewardProfiler
    from nemo_gym.rollouts.rescoring import RunProfile
    from nemo_gym.wire.stored_rollout import REWARD_KEY

    config = options.resolve_config(args.overrides, needs_model=False).config
    settings = options.load_options(RewardProfileConfig, config, args, default_inputs(args, config))
    with raising_file_problems():
        stored = RunProfile(Path(settings.materialized_inputs_jsonl_fpath), Path(settings.rollouts_jsonl_fpath))
        stored.profile.check(allow_partial_rollouts=settings.allow_partial_rollouts)
        agents = stored.profile.agents()
        tasks_path, agents_path = RewardProfiler().write_to_disk(stored.groups(), agents, settings.rollouts_jsonl_fpath)
    profile = {
        "summary": stored.profile.summary(),
        "spread": count_reward_spread(stored.profile.stats),
        "agents": agents,
        "scores": compute_scores(stored.profile.stats, [REWARD_KEY]),
        "reward_profiling": str(tasks_path),
        "agent_metrics": str(agents_path),
    }
    if args.json:
        output.write_json(profile)
    else:
        _print_profile(profile)
    return 0


def _print_profile(profile: dict[str, Any]) -> None:
    summary = profile["summary"]
    rollouts = [str(summary[f"{kind}_rollout_rows"]) for kind in ("expected", "completed", "missing", "extra")]
    tasks = [str(summary[f"{kind}_input_rows"]) for kind in ("total", "complete", "missing")]
    output.write_table(
        [("", "expected", "complete", "missing", "extra"), ("rollouts", *rollouts), ("tasks", *tasks, "")]
    )
    if summary["missing_rollout_rows"]:
        incomplete, percent = summary["partial_input_rows"], summary["completion_pct"]
        output.write(f"{percent:.1f} % of the rollouts exist; {incomplete} tasks have only some of theirs")
    for agent in profile["agents"]:
        output.write(f"\n{agent['agent_ref']['name']}")
        names = [key.removeprefix("mean/") for key in agent if key.startswith("mean/")]
        rows = [[f"  {name}", *(_format_figure(agent.get(f"{kind}/{name}")) for kind in FIGURES)] for name in names]
        output.write_table([["", *FIGURES], *rows])
    spread = profile["spread"]
    text = f"{spread['rewards_differ']} of {spread['num_tasks']} tasks have rollouts with different rewards"
    if "never_solved" in spread:
        text += f"; {spread['never_solved']} were never solved, {spread['always_solved']} always"
    output.write(f"\n{text}")
    output.write(f"\nper task   {profile['reward_profiling']}\nper agent  {profile['agent_metrics']}")


def _format_figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
