"""Verify stored rollouts again, without running the agents.

Starts the resources servers that verified the rollouts (and the models that these servers call), sends each stored
response to /verify, and stops the servers. A server must declare that it can verify without a session; --force skips
this check and writes to a file named unsafe_…. --failed copies scored rollouts and verifies those whose verification
failed, without calling the policy model again; --judge-failed-only does so for those whose judge failed.
--input-format atif verifies trajectories of any agent, such as those of gym eval export. Exit status: 0
all verified, 1 some failed or the files cannot be used, 2 wrong usage, 3 servers did not start, 130 interrupted.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_gym.cli.eval.profile import add_stored_run_arguments, default_inputs
from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output

if TYPE_CHECKING:
    from nemo_gym.config.resolve import ResolvedConfig
    from nemo_gym.rollout_reverification import Reverification
    from nemo_gym.rollouts.outcome import Outcome

INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    files = options.FlagGroup(parser, "files")
    add_stored_run_arguments(files)
    files.choice(
        "--input-format", ("rollouts", "atif"), "rollouts of a run (default), or ATIF trajectories of any agent"
    )
    files.text("--atif-manifest", "FILE", "manifest of the trajectories; needs --inputs and --output")
    files.text("-o --output", "FILE", "file for the rollouts with new verdicts", "output_jsonl_fpath")
    verification = options.FlagGroup(parser, "verification")
    verification.integer("--concurrency", "maximum responses in flight", "num_samples_in_parallel")
    verification.integer("--limit", "verify only the first N rollouts")
    verification.switch("--force", "use servers that do not declare that they can verify without a session")
    verification.switch("--overwrite", "delete an earlier output first")
    verification.switch("--resume", "keep verified rollouts and verify the others", "resume_from_cache")
    verification.switch("--judge-failed-only", "copy scored rollouts, verify those whose judge failed")
    verification.switch("--failed", "copy scored rollouts, verify those whose verification failed")
    verification.switch("--append", "append to the output; needs --failed or --judge-failed-only")
    verification.switch("--disable-aggregation", "do not compute metrics at the end")
    verification.json()
    options.add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    import uvloop

    from nemo_gym.cli.terminal.log import logging_to_stderr
    from nemo_gym.rollout_reverification import Reverification, RolloutReverificationConfig, StoredRollouts
    from nemo_gym.rollouts.run_identity import check_planned_rows
    from nemo_gym.rollouts.scoring_rules import find_verifiers

    resolved = options.resolve_config(args, needs_model=False)
    if args.input_format == "atif" or args.atif_manifest:
        args.rollouts_jsonl_fpath = _read_trajectories(args)
    values = default_inputs(args, resolved.config)
    config = options.load_options(RolloutReverificationConfig, resolved.config, args, values)
    rollouts, inputs = Path(config.rollouts_jsonl_fpath), Path(config.materialized_inputs_jsonl_fpath)
    check_planned_rows(inputs)
    stored = StoredRollouts(rollouts, inputs, judge_failed_only=config.judge_failed_only, failed=config.failed)
    servers = find_verifiers(resolved.config, stored.agents)
    reverification = Reverification(config, stored, servers)
    reverification.check_output()
    if config.is_for_failed:
        target, count = reverification.store.output, len(stored)
        output.warn(f"{target} will contain verdicts of two runs: those of {rollouts}, and {count} new ones")
    with logging_to_stderr(verbose=args.verbose):
        return uvloop.run(_reverify(args, reverification, resolved, set(servers.values())))


def _read_trajectories(args: argparse.Namespace) -> str:
    """Write the trajectories of the manifest as rollouts next to the output, and return the path of the file.

    Raises:
        UsageError: a flag is missing, or contradicts trajectories.
        ConfigError: the output exists and is not to be overwritten.
        AtifError: a trajectory cannot be verified.
    """
    from nemo_gym.data.atif_import import write_rollouts
    from nemo_gym.errors import ConfigError
    from nemo_gym.rollouts.run_files import failures_path_for

    needed = {
        "--atif-manifest": args.atif_manifest,
        "--inputs": args.materialized_inputs_jsonl_fpath,
        "--output": args.output_jsonl_fpath,
        "--input-format atif": args.input_format == "atif",
    }
    missing = [flag for flag, value in needed.items() if not value]
    excluded = {"--rollouts": args.rollouts_jsonl_fpath, "--force": args.force, "--resume": args.resume_from_cache}
    excluded |= {"--append": args.append, "--judge-failed-only": args.judge_failed_only, "--failed": args.failed}
    contradicting = [flag for flag, value in excluded.items() if value]
    if missing:
        raise options.UsageError(f"trajectories need {', '.join(missing)}", where=args.prog)
    if contradicting:
        raise options.UsageError(f"trajectories exclude {', '.join(contradicting)}", where=args.prog)
    target = Path(args.output_jsonl_fpath)
    existing = [str(path) for path in (target, failures_path_for(target)) if path.exists()]
    if existing and not args.overwrite:
        fix = "--overwrite removes it, or choose another --output"
        raise ConfigError("the output already exists", where=", ".join(existing), fix=fix)
    target = target.with_name(f"{target.stem}_trajectories.jsonl")
    write_rollouts(Path(args.atif_manifest), Path(args.materialized_inputs_jsonl_fpath), target)
    return str(target)


async def _reverify(
    args: argparse.Namespace, reverification: Reverification, resolved: ResolvedConfig, names: set[str]
) -> int:
    """Run the servers called `names` and those they refer to, verify with them, and return the exit status."""
    from nemo_gym.cli.shared.concurrency import CommandInterrupted, cancel_on, interrupt_event
    from nemo_gym.cli.shared.scoring import keep_servers, print_scores, summarize_entry
    from nemo_gym.cli.shared.servers import allow_concurrency, client_for, running_servers

    config, store = keep_servers(resolved, names, with_references=True), reverification.store
    allow_concurrency(config, reverification.config.num_samples_in_parallel)
    verified_count = itertools.count(1)
    notice = output.ThrottledNotice()

    def show_count(_: Outcome) -> None:
        notice(f"{next(verified_count)} verified")

    def warn_of_unsafe_servers() -> None:
        if unsafe_servers:
            names = ", ".join(unsafe_servers)
            output.warn(f"verdicts in {store.output} may be wrong: {names} may need the session")

    verbose = bool(args.verbose)
    async with interrupt_event() as stop, running_servers(config, stop, cells=1, verbose=verbose) as servers:
        client = client_for(servers.config)
        unsafe_servers = await reverification.check_modes(client)
        warn_of_unsafe_servers()
        try:
            result = await cancel_on(stop, reverification.run(client, [] if args.json else [show_count]))
        except CommandInterrupted:
            output.notify(f"interrupted; verified rollouts are in {store.output}: continue with --resume")
            return INTERRUPTED
    facts = {
        "scored": result.tally.scored,
        "failed": {str(kind): count for kind, count in result.tally.failed.items()},
        "there_before": result.there_before,
        "copied": result.copied,
        "rollouts": str(store.output),
        "agents": [summarize_entry(entry) for entry in result.entries],
    }

    def print_text() -> None:
        earlier_text = f" · {result.there_before} verified before" if result.there_before else ""
        copied_text = f" · {result.copied} copied" if result.copied else ""
        output.write(f"{result.tally}{earlier_text}{copied_text}")
        print_scores(result.entries)
        output.write(f"\nrollouts  {store.output}")
        if result.tally.failed:
            output.write(f"failures  {store.failures}")

    output.write_result(facts, print_text, as_json=args.json)
    warn_of_unsafe_servers()  # again, as the first warning is far above the results
    return int(result.tally.scored < result.tally.total)
