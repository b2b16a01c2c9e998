"""An evaluation from its flags to its report: what `gym eval run` does."""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import uvloop
from omegaconf import DictConfig

from nemo_gym import component_search_roots, global_config
from nemo_gym.cli import output
from nemo_gym.cli.apart import on_thread
from nemo_gym.cli.eval_config import (
    Driver,
    check_agent,
    collection_config,
    driver_of,
    grace_seconds,
    misspelt,
    prepare_command,
)
from nemo_gym.cli.eval_report import (
    COMPLETE,
    INTERRUPTED,
    TOTAL,
    Report,
    as_json,
    as_text,
    one_line,
    read_entries,
    resumed,
)
from nemo_gym.cli.eval_rows import Told, gather_rows
from nemo_gym.cli.eval_session import (
    Collector,
    Session,
    Written,
    connected,
    driven,
    head_of,
    own_config,
    started,
    until_stopped,
)
from nemo_gym.cli.heard import heard
from nemo_gym.cli.inputs import config_overrides
from nemo_gym.cli.live import shown
from nemo_gym.cli.main import ALONE, GROUPS
from nemo_gym.cli.progress import Progress
from nemo_gym.cli.serving import Echo, interruptible, unless
from nemo_gym.cli.tracking import Tracking
from nemo_gym.errors import GymError, RolloutFailed, ServerUnreachable
from nemo_gym.launch.venv_rehearsal import rehearse
from nemo_gym.rollout_collection import (
    RolloutCollectionConfig,
    RolloutCollectionHelper,
    _get_max_rollout_attempts,
)
from nemo_gym.rollouts.jsonl import StoreError
from nemo_gym.rollouts.outcome import Failed
from nemo_gym.rollouts.planned import Planned
from nemo_gym.rollouts.tally import Tally
from nemo_gym.serve import garbage

USAGE, INFRASTRUCTURE = 2, 3


def evaluate(args: argparse.Namespace, rest: Sequence[str]) -> int:
    """Do what was asked, and return the exit status."""
    try:
        with heard(everything=args.verbose):
            return uvloop.run(_evaluate(args, config_overrides(args, rest), rest))
    except GymError as error:
        if os.environ.get("NEMO_GYM_DEBUG") or "--debug" in sys.argv:
            raise
        return tell_error(error, as_json=args.json)
    except KeyboardInterrupt:
        output.talk(f"interrupted; what was finished is saved\ncontinue  {resumed(typed(args))}")
        return INTERRUPTED


def tell_error(error: GymError, *, as_json: bool) -> int:
    """Say what went wrong, and return the exit status it stands for."""
    status = status_of(error)
    output.error(str(error))
    output.pointer(error)
    if as_json:
        told = {"kind": type(error).__name__, "problem": error.problem, "where": error.where, "fix": error.fix}
        output.json({"exit_status": status, "error": told})
    return status


def status_of(error: GymError) -> int:
    """Servers and disks are infrastructure; whatever else ends a run is wrong with what it was given."""
    if isinstance(error, StoreError | ServerUnreachable):
        return INFRASTRUCTURE
    if isinstance(error, RolloutFailed) or error.exit_status != GymError.exit_status:
        return error.exit_status
    return USAGE


@dataclass(frozen=True)
class Asked:
    """What this evaluation is to do, checked."""

    config: DictConfig
    collection: RolloutCollectionConfig
    driver: Driver | None
    grace: float


def _asked(args: argparse.Namespace, config: DictConfig, served: DictConfig) -> Asked:
    """Everything that can be found wrong before servers are started, is."""

    def gather(split: str | None, target: Path, prompted: bool) -> Path:
        return gather_rows(served, split, target, prompted=prompted, prepare=prepare_command(args))

    grace = grace_seconds(args, config)
    collection = collection_config(args, config, gather)
    check_agent(collection, served)
    driver = driver_of(collection)
    if driver is None:
        told = Told()

        def tell(rows: int, share: float) -> None:
            told(f"checking rows ({rows:,} so far)", round(100 * share), 100)

        RolloutCollectionHelper(on_reading=tell).check(collection, served)
    return Asked(config, collection, driver, grace)


async def _evaluate(args: argparse.Namespace, overrides: list[str], rest: Sequence[str]) -> int:
    config = own_config(args, overrides)
    for warning in misspelt(rest, config):
        output.talk(f"Warning: {warning}")
    async with interruptible() as stop, AsyncExitStack() as up:
        session = await on_thread(partial(connected, head_of(args, config))) if args.no_serve else None
        served = session.config if session else config
        asked = await unless(stop, on_thread(partial(_asked, args, config, served)))
        if session and asked.driver:
            output.talk("Warning: rollout_collection_driver is used only without --no-serve")
            asked = replace(asked, driver=None)
        if args.dry_run or config.get("dry_run"):
            return await _rehearse(args, asked, stop)
        tracking = Tracking(config)
        up.push_async_callback(tracking.close)
        async with AsyncExitStack() as serving:
            if session is None:
                session = await serving.enter_async_context(started(args, config, stop))
            report, problem = await _collect(args, asked, session, stop)
        if not report.interrupted:
            report = report.with_pages(
                await tracking.export(report.target, report.entries, upload=asked.collection.upload_rollouts)
            )
    return tell(args, report, problem)


async def _rehearse(args: argparse.Namespace, asked: Asked, stop: asyncio.Event) -> int:
    """What a dry run does: the rows are checked by now, servers are built, and nothing is collected."""
    if not args.no_serve:
        watch = Echo(everything=bool(args.verbose))
        await unless(stop, rehearse(asked.config, component_search_roots(), watch=watch))
    built = "the servers answer" if args.no_serve else "every server could be built"
    output.talk(f"dry run: {built}; rows would come from {asked.collection.input_jsonl_fpath}, nothing was collected")
    if args.json:
        output.json({"exit_status": COMPLETE, "dry_run": True, "input": asked.collection.input_jsonl_fpath})
    return COMPLETE


async def _collect(
    args: argparse.Namespace, asked: Asked, session: Session, stop: asyncio.Event
) -> tuple[Report, GymError | None]:
    """Collect, and report whatever happened; a problem that ended the collection comes with the report."""
    global_config._GLOBAL_CONFIG_DICT = session.config
    garbage.settle()
    progress = Progress(on_first_failure=_say_first_failure)
    target = Path(asked.collection.output_jsonl_fpath)
    collector = Collector(session, progress, on_plan=_say_plan)
    began = time.monotonic()
    interrupted, stopped, problem = False, None, None
    async with shown(progress, quiet=args.quiet, waiting=session.waiting):
        try:
            interrupted, tally = await until_stopped(
                _work(asked, session, collector), stop, partial(_land, progress, asked)
            )
            stopped = tally.stopped if tally is not None else None
        except GymError as error:
            if progress.planned is None:
                raise  # nothing was begun: there is nothing to report
            problem = error
    report = Report(
        target=target,
        progress=progress,
        words=typed(args),
        commands=frozenset([*ALONE, *(f"{group} {name}" for group, (_, known) in GROUPS.items() for name in known)]),
        seconds=time.monotonic() - began,
        max_attempts=asked.collection.max_rollout_attempts or _get_max_rollout_attempts(),
        limits={
            "steps": asked.collection.max_steps_per_rollout,
            "tokens": asked.collection.max_tokens_per_rollout,
            TOTAL: asked.collection.max_total_tokens,
        },
        interrupted=interrupted,
        stopped=stopped,
        entries=[] if interrupted or asked.collection.disable_aggregation else read_entries(target),
    )
    lost = session.lost()
    if lost and report.missing and problem is None:
        problem = ServerUnreachable("ended and will not be started again", where=", ".join(lost), fix="read its log")
    return report, problem


def typed(args: argparse.Namespace) -> list[str]:
    """The command as it can be typed again, also where an earlier name of it was used."""
    words = sys.argv[1:]
    if [word for word in words if not word.startswith("-")][:2] == ["eval", "run"]:
        return words
    return ["eval", "run", *(["--no-serve"] if args.no_serve and "--no-serve" not in words else []), *words]


async def _work(asked: Asked, session: Session, collector: Collector) -> Tally | None:
    if asked.driver is not None:
        session.by_http()
        written = Written(asked.collection.output_jsonl_fpath)
        name = str(asked.collection.rollout_collection_driver)
        try:
            await driven(partial(asked.driver, asked.collection, session.config), name, written)
        finally:
            if written:
                collector.read_back(written)
        return None
    return await collector.collect_from_config(asked.collection)


def _land(progress: Progress, asked: Asked) -> float:
    """Let nothing more take off, and say how long what is in flight may go on."""
    progress.flights.land()
    if len(progress.flights) and asked.grace:
        output.talk(f"waiting up to {asked.grace:g} s for {len(progress.flights)} rollouts in flight")
    return asked.grace


def _say_plan(planned: Planned) -> None:
    if planned.resumed:
        output.talk(
            f"resuming: {planned.finished} of {planned.total} rollouts are scored, "
            f"{planned.given_up} given up, {planned.to_run} to run"
        )
    for note in planned.notes:
        output.talk(f"Note: {note}")


def _say_first_failure(outcome: Failed) -> None:
    failure = outcome.failure
    output.talk(f"first {failure.kind} (rollout {outcome.job.key}): {failure.whom}: {one_line(failure.message)}")


def tell(args: argparse.Namespace, report: Report, problem: GymError | None) -> int:
    """Print the report and what ended the collection early, and return the exit status."""
    status = report.status if problem is None else max(report.status, status_of(problem))
    if args.json:
        told = as_json(report) | {"exit_status": status}
        output.json(told if problem is None else told | {"error": str(problem)})
    else:
        as_text(report)
    if problem is not None:
        output.error(str(problem))
        output.pointer(problem)
    return status
