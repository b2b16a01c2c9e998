"""What `gym eval reverify` does: new verdicts for stored rollouts."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

from nemo_gym.cli import output
from nemo_gym.cli.inputs import config_overrides
from nemo_gym.cli.options import files_explained, options, resolved_without_model
from nemo_gym.cli.scoring import client_of, only, plain_config, show_scores, shown, unless_stopped
from nemo_gym.cli.serving import interruptible, servers
from nemo_gym.config.resolve import Resolved
from nemo_gym.rollout_reverification import Reverification, Reverified, RolloutReverificationConfig
from nemo_gym.rollouts.outcome import Outcome
from nemo_gym.rollouts.paths import materialized_path_for
from nemo_gym.rollouts.reverify import StoredRollouts, verifiers

COMMAND = "gym eval reverify"
INTERRUPTED = 130
EVERY = 1000
"""Progress is told after so many."""


def reverify(args: argparse.Namespace, rest: Sequence[str]) -> int:
    with files_explained():
        return _run(args, rest)


def _run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    resolved = resolved_without_model(config_overrides(args, rest))
    config = _asked_for(args, resolved)
    rollouts, inputs = Path(config.rollouts_jsonl_fpath), Path(config.materialized_inputs_jsonl_fpath)
    stored = StoredRollouts.read(rollouts, inputs, judge_failed_only=config.judge_failed_only)
    targets = verifiers(plain_config(resolved.config), stored.agents)
    job = Reverification(config, stored, targets)
    job.check_output()
    if config.judge_failed_only:
        output.talk(
            f"Warning: {job.store.output} will hold verdicts of two runs: those of {rollouts}, and "
            f"{len(stored.judge_failed)} new ones"
        )
    return uvloop.run(_reverify(args, job, resolved, set(targets.values())))


def _asked_for(args: argparse.Namespace, resolved: Resolved) -> RolloutReverificationConfig:
    config = resolved.config
    rollouts = args.rollouts or config.get("rollouts_jsonl_fpath")
    inputs = args.inputs or config.get("materialized_inputs_jsonl_fpath")
    beside = str(materialized_path_for(rollouts)) if rollouts else ""  # one thing missing is enough to say
    given = {
        "materialized_inputs_jsonl_fpath": ("--inputs", inputs or beside),
        "rollouts_jsonl_fpath": ("--rollouts", rollouts),
        "output_jsonl_fpath": ("--output", args.output),
        "num_samples_in_parallel": ("--concurrency", args.concurrency),
        "limit": ("--limit", args.limit),
        "force": ("--force", args.force or None),
        "overwrite": ("--overwrite", args.overwrite or None),
        "resume_from_cache": ("--resume", args.resume or None),
        "disable_aggregation": ("--disable-aggregation", args.disable_aggregation or None),
        "judge_failed_only": ("--judge-failed-only", args.judge_failed_only or None),
        "append": ("--append", args.append or None),
    }
    return options(RolloutReverificationConfig, config, given, command=COMMAND)


async def _reverify(args: argparse.Namespace, job: Reverification, resolved: Resolved, wanted: set[str]) -> int:
    config = only(resolved, wanted, with_others=True)
    async with interruptible() as stop, servers(config, stop, cells=1, echo=bool(args.verbose)) as running:
        client = client_of(running.config)
        unsafe = await job.check_modes(client)
        _warn_unsafe(job, unsafe)
        done = await unless_stopped(stop, job.run(client, [_Told(quiet=args.json)]))
    if done is None:
        output.talk(f"interrupted; what is verified is in {job.store.output}: continue with --resume")
        return INTERRUPTED
    _report(args, job, done)
    _warn_unsafe(job, unsafe)
    return int(done.tally.scored < done.tally.total)


def _warn_unsafe(job: Reverification, unsafe: Sequence[str]) -> None:
    if unsafe:
        output.talk(f"Warning: verdicts in {job.store.output} may be wrong: {', '.join(unsafe)} may need the session")


class _Told:
    """Says now and then how far it is."""

    def __init__(self, *, quiet: bool) -> None:
        self._count = 0
        self._quiet = quiet

    def __call__(self, _: Outcome) -> None:
        self._count += 1
        if not self._quiet and self._count % EVERY == 0:
            output.talk(f"{self._count} verified")


def _report(args: argparse.Namespace, job: Reverification, done: Reverified) -> None:
    told: dict[str, Any] = {
        "scored": done.tally.scored,
        "failed": {str(kind): count for kind, count in done.tally.failed.items()},
        "there_before": done.there_before,
        "copied": done.copied,
        "rollouts": str(job.store.output),
        "agents": [shown(entry) for entry in done.entries],
    }
    if args.json:
        output.json(told)
        return
    before = f" · {done.there_before} were there before" if done.there_before else ""
    copied = f" · {done.copied} copied" if done.copied else ""
    output.data(f"{done.tally}{before}{copied}")
    show_scores(done.entries)
    output.data(f"\nrollouts  {job.store.output}")
    if done.tally.failed:
        output.data(f"failures  {job.store.failures}")
