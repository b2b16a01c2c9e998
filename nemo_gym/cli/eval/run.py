"""Start the servers, collect rollouts, score them and stop the servers.

Rows come from --input or from the datasets of the agents. Every result is written to disk at once; --resume continues
an interrupted run. With --no-serve the servers must be running: those of the run registered on this machine, or of the
head server named by --run or by head_server.host and head_server.port.

The first Ctrl-C lets rollouts in flight finish, saves, and prints how to continue; the second stops at once.
Exit status: 0 all rollouts scored, 1 some failed, 2 wrong usage, 3 servers or disk failed or the model endpoint refuses
the run (wrong key, no quota), 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output
from nemo_gym.config.keys import CLUSTER
from nemo_gym.errors import ConfigError, GymError, RolloutFailed, ServerUnreachable, raising_file_problems

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator

    from nemo_gym.cli.shared.collection import Session
    from nemo_gym.cli.shared.eval_request import EvalRequest
    from nemo_gym.cli.shared.report import Report
    from nemo_gym.cli.terminal.progress import Progress
    from nemo_gym.rollouts.outcome import FailedRollout, Failure, OutcomeCounts
    from nemo_gym.rollouts.plan import PlanSummary

USAGE, INFRASTRUCTURE, INTERRUPTED = 2, 3, 130
_ANSWERED = re.compile(r"^(?:the endpoint|/\S+|/run of \S+) (?:answered \d+|refuses the row \(\d+\)): ")
"""The words before the cause in the message of a failure."""
_RAISED_AT = re.compile(r" \(raised at [^()]*\)$")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_config_arguments(parser)
    rows = options.FlagGroup(parser, "rows")
    rows.text("-i --input", "FILE", "JSONL file with rows (default: the datasets of the agents)", "input_jsonl_fpath")
    rows.choice("--split", ("train", "validation", "benchmark", "example"), "type of the agents' datasets to run")
    rows.text("-a --agent", "NAME", "agent for rows that name no agent", "agent_name")
    rows.text("--limit", "N", "run only the first N rows, or with 10-20 the tenth to the twentieth")
    rows.text("--where", "CONDITION", "run only rows that match, such as 'level > 3 and topic == \"algebra\"'")
    rows.text("--ids", "ID,ID", "run only rows with these ids or task numbers")
    rows.switch("--shuffle", "use the rows in random order, before --limit")
    rows.integer("--seed", "seed of --shuffle (default: 0)", "shuffle_seed")
    rows.switch("--last-failed", "run only rows that the last run of this environment and model left without a score")
    rows.text("--num-repeats", "N", "rollouts per row; or per agent, as NAME=N,_default=N (default: 1)")
    rows.text("--prompt-config", "FILE", "prompt file that builds the input of every row")
    collection = options.FlagGroup(parser, "collection")
    output_help = "file for the rollouts (default: results/<time>-<environment>-<model>/rollouts.jsonl)"
    collection.text("-o --output", "FILE", output_help, "output_jsonl_fpath")
    collection.text("--name", "NAME", "name of the run, for `gym runs`", "run_label")
    collection.words("--tag", "TAG", "tag of the run, for `gym runs list --tag`; repeatable", "run_tags")
    collection.integer("--concurrency", "maximum rollouts in flight", "num_samples_in_parallel")
    collection.decimal("--temperature", "T", "sampling temperature; overrides the rows")
    collection.decimal("--top-p", "P", "nucleus sampling probability; overrides the rows")
    collection.integer("--max-output-tokens", "maximum output tokens per model call; overrides the rows")
    collection.switch("--disable-aggregation", "do not compute metrics at the end")
    earlier = options.FlagGroup(parser, "earlier results and failures")
    earlier.switch("--resume", "keep finished rollouts and run the others", "resume_from_cache")
    earlier.switch("--force-resume", "resume although data, configuration or code changed")
    earlier.switch("--overwrite", "delete earlier results instead of moving them aside")
    earlier.integer("--max-failures", "stop after N failed rollouts")
    earlier.switch("-x --fail-fast", "stop at the first rollout that fails")
    earlier.integer("--max-attempts", "maximum attempts per rollout", "max_rollout_attempts")
    limits = options.FlagGroup(parser, "limits (docs/evaluation.md lists more keys)")
    limits.decimal("--rollout-timeout", "SECONDS", "maximum wall time per rollout", "rollout_timeout_seconds")
    limits.integer("--max-steps", "maximum model turns per rollout", "max_steps_per_rollout")
    tokens_help = "maximum input and output tokens per rollout"
    limits.integer("--max-rollout-tokens", tokens_help, "max_tokens_per_rollout")
    limits.integer("--max-total-tokens", "stop the run after N tokens in total")
    limits.decimal("--max-cost", "DOLLARS", "stop the run at this cost, by the price table `prices`", "max_total_cost")
    cluster = options.FlagGroup(parser, CLUSTER)
    servers = options.FlagGroup(parser, "servers and output")
    servers.switch("--no-serve", "use servers that are running already")
    servers.text("--run", "RUN", "run to use with --no-serve: PID, head port or HOST:PORT", "run_name")
    options.add_key_flags([servers, cluster], "eval run")
    servers.switch("--dry-run", "check rows and build the servers, collect nothing")
    servers.switch("-q --quiet", "show no progress")
    servers.json()


def run(args: argparse.Namespace) -> int:
    models, agents = options.given_values(args, "model"), options.agent_types(args)
    if len(models) > 1 or len(agents) > 1:
        from nemo_gym.cli.shared.matrix import run_matrix

        return run_matrix(args, command_line(args), models, agents)
    # Imported before the fork, so that servers share these modules. No import starts a thread.
    from nemo_gym.cli.shared import collection, eval_request, report  # noqa: F401
    from nemo_gym.launch.prefork import preforked_zygote

    with nullcontext() if args.no_serve else preforked_zygote(args.initial_gc_threshold):
        return _run_evaluation(args)


def _run_evaluation(args: argparse.Namespace) -> int:
    """Run the evaluation, print its error if it fails, and return the exit status."""
    import uvloop

    from nemo_gym.cli.shared.report import resume_command
    from nemo_gym.cli.terminal.log import logging_to_stderr

    output.show_status("reading the configuration and the rows")
    try:
        with logging_to_stderr(verbose=args.verbose), raising_file_problems():
            return uvloop.run(_evaluate(args))
    except GymError as error:
        if args.debug:
            raise
        status = status_of(error)
        output.report_gym_error(error)
        if args.json:
            details = {"kind": type(error).__name__, "problem": error.problem, "where": error.where, "fix": error.fix}
            output.write_json({"exit_status": status, "error": details})
        return status
    except KeyboardInterrupt:
        output.notify(f"interrupted; finished rollouts are saved\ncontinue  {resume_command(command_line(args))}")
        return INTERRUPTED


def status_of(error: GymError) -> int:
    """Return the exit status of an error: 3 for servers and disks, else that of its class; 2 if the class sets none."""
    from nemo_gym.journal import StoreError

    if isinstance(error, StoreError | ServerUnreachable):
        return INFRASTRUCTURE
    if isinstance(error, RolloutFailed) or error.exit_status != GymError.exit_status:  # a failed rollout is no misuse
        return error.exit_status
    return USAGE


async def _evaluate(args: argparse.Namespace) -> int:
    """Check the request, start or find the servers, collect, export and report; return the exit status."""
    from nemo_gym.cli.shared.collection import Session, connect, find_head
    from nemo_gym.cli.shared.concurrency import cancel_on, interrupt_event, run_in_thread
    from nemo_gym.cli.shared.eval_request import check_request
    from nemo_gym.cli.shared.report import Trackers
    from nemo_gym.cli.shared.servers import allow_concurrency, client_for, load_servers_config, running_servers
    from nemo_gym.config.checks import read_key
    from nemo_gym.launch.ports import with_open_head_port

    config = with_open_head_port(options.resolve_config(args)) if args.no_serve else load_servers_config(args)
    async with interrupt_event() as stop, AsyncExitStack() as stack:
        session = await run_in_thread(partial(connect, find_head(args.run_name, config))) if args.no_serve else None
        server_config = session.config if session else config
        request = await cancel_on(stop, run_in_thread(partial(check_request, args, config, server_config)))
        stack.callback(request.discard_unused_folder)
        if session and request.driver:
            output.warn("rollout_collection_driver is ignored with --no-serve")
            request = replace(request, driver=None)
        if args.dry_run or config.get("dry_run"):
            return await _dry_run(args, request, stop)
        cells = 1 if session else read_key(config, "num_cells") or os.cpu_count() or 1
        allow_concurrency(server_config, request.collection.num_samples_in_parallel, cells=cells)
        trackers = Trackers(config)
        stack.push_async_callback(trackers.close)
        async with AsyncExitStack() as serving:
            if session is None:
                servers = running_servers(config, stop, cells=cells, verbose=bool(args.verbose))
                run = await serving.enter_async_context(servers)
                session = Session(run.config, client_for(run.config), run.pending_calls, run)
            report = await _collect(args, request, session, stop)
        if not report.interrupted:
            upload = request.collection.upload_rollouts
            report = replace(report, pages=await trackers.export(report.target, report.entries, upload=upload))
    return _print_report(args, report)


async def _dry_run(args: argparse.Namespace, request: EvalRequest, stop: asyncio.Event) -> int:
    """Construct the servers and collect nothing; `check_request` has checked the rows. Return the exit status."""
    from nemo_gym import component_search_roots
    from nemo_gym.cli.shared.concurrency import cancel_on
    from nemo_gym.cli.terminal.log import ServerLogPrinter
    from nemo_gym.launch.run import construct_servers

    if not args.no_serve:
        printer = ServerLogPrinter(verbose=bool(args.verbose))
        await cancel_on(stop, construct_servers(request.config, component_search_roots(), watch=printer))
    server_state = "the servers answer" if args.no_serve else "every server could be constructed"
    rows_path = request.collection.input_jsonl_fpath
    output.notify(f"dry run: {server_state}; rows would come from {rows_path}, nothing was collected")
    if args.json:
        output.write_json({"exit_status": 0, "dry_run": True, "input": rows_path})
    return 0


async def _collect(args: argparse.Namespace, request: EvalRequest, session: Session, stop: asyncio.Event) -> Report:
    """Collect the rollouts and return the report, also if an error ended the collection early."""
    from nemo_gym import global_config
    from nemo_gym.cli.shared.concurrency import CommandInterrupted, cancel_on
    from nemo_gym.cli.shared.report import LIMIT_KEYS, Report, read_entries
    from nemo_gym.cli.terminal.progress import Progress
    from nemo_gym.rollout_collection import _get_max_rollout_attempts
    from nemo_gym.serve import gc_tuning
    from nemo_gym.serve.head import HeadServerUnreachable
    from nemo_gym.transport import http_sessions

    http_sessions.configure(http_sessions.GlobalAIOHTTPAsyncClientConfig.from_global_config(session.config))
    global_config._GLOBAL_CONFIG_DICT = session.config
    gc_tuning.freeze()
    progress = Progress(on_first_failure=_print_first_failure)
    start = time.monotonic()
    interrupted, stop_reason = False, None
    problem: GymError | None = None

    def stop_sending() -> float:
        """Send no more rollouts; return the seconds to wait for those in flight."""
        nonlocal interrupted
        interrupted = True
        progress.in_flight.stop_admitting()
        if len(progress.in_flight) and request.grace:
            count = len(progress.in_flight)
            output.notify(f"waiting up to {request.grace:g} s for {count} rollout{'s' if count != 1 else ''} in flight")
        return request.grace

    collection, target = request.collection, Path(request.collection.output_jsonl_fpath)
    words = [*command_line(args), *(["--output", str(target)] if request.is_new_folder else [])]
    request = _with_command(request, words)
    async with _showing(progress, session, target, quiet=args.quiet):
        try:
            counts = await cancel_on(
                stop, _run_collector(request, session, progress, quiet=args.quiet), grace=stop_sending
            )
            stop_reason, problem = counts.stop_reason, counts.problem
        except GymError as error:
            if progress.plan is None:
                raise  # no rollout was sent, so there is no result to report
            problem = None if isinstance(error, CommandInterrupted) else error
            stop_reason = error.problem if isinstance(error, HeadServerUnreachable) else None
    report = Report(
        target=target,
        progress=progress,
        words=words,
        request=request,
        seconds=time.monotonic() - start,
        max_attempts=collection.max_rollout_attempts or _get_max_rollout_attempts(),
        limits={name: getattr(collection, key) for name, key in LIMIT_KEYS.items()},
        interrupted=interrupted,
        stopped=stop_reason,
        entries=[] if interrupted or collection.disable_aggregation else read_entries(target),
    )
    return replace(report, problem=problem or _lost_servers(session, report))


def _with_command(request: EvalRequest, words: list[str]) -> EvalRequest:
    """Return the request with the command and the prices of the run in its labels, for `gym view`."""
    from nemo_gym.cli.shared.report import masked_command

    started_as = {"command": masked_command(words), "prices": request.collection.prices or {}}
    return replace(request, labels=request.labels.model_copy(update=started_as))


def _lost_servers(session: Session, report: Report) -> GymError | None:
    """Return the error of servers that ended for good, if rollouts are missing."""
    names = session.run.lost_processes() if session.run and report.missing else []
    if not names:
        return None
    return ServerUnreachable("ended and will not be restarted", where=", ".join(names), fix="read its log")


@asynccontextmanager
async def _showing(progress: Progress, session: Session, target: Path, *, quiet: bool) -> AsyncIterator[None]:
    """Show the progress on the terminal, at `/metrics` of the head server and in the live file during the block."""
    from nemo_gym.cli.shared.live_file import live_file
    from nemo_gym.cli.shared.progress_metrics import progress_metrics
    from nemo_gym.cli.terminal.live import showing_progress
    from nemo_gym.serve.head import showing_metrics

    with showing_metrics(partial(progress_metrics, progress)):
        view = showing_progress(progress, quiet=quiet, wait_query=session.wait_query)
        async with view, live_file(progress, target, session.wait_query):
            yield


async def _run_collector(request: EvalRequest, session: Session, progress: Progress, *, quiet: bool) -> OutcomeCounts:
    """Run the collector, or the driver of the configuration; return the counts and the reason of an early stop."""
    from nemo_gym.cli.shared.collection import Collector, end_with_servers, run_driver
    from nemo_gym.transport import in_process

    collection = request.collection
    if request.driver is None:
        collector = Collector(session, progress, on_plan=partial(_begin_run, request, quiet=quiet))
        return await end_with_servers(session, collector.collect_from_config(collection))
    if session.run and session.run.pool is not None:
        fix = "leave out the driver, or use engine: local"
        raise ConfigError("runs on one machine only", where="rollout_collection_driver", fix=fix)
    for instance in session.run.instances if session.run else ():  # a driver has another loop; links need this one
        in_process.unmount(instance.host, instance.port)
    _label_run(request)
    driver = partial(request.driver, collection, session.config)
    await run_driver(driver, str(collection.rollout_collection_driver), collection.output_jsonl_fpath, progress)
    return progress.tally


def command_line(args: argparse.Namespace) -> list[str]:
    """Return the arguments of `gym` for this command, also if it was called by a name of an earlier version."""
    words = sys.argv[1:]
    if [word for word in words if not word.startswith("-")][:2] == ["eval", "run"]:
        return words
    return ["eval", "run", *(["--no-serve"] if args.no_serve and "--no-serve" not in words else []), *words]


def _label_run(request: EvalRequest) -> None:
    """Store the labels of the run, and link its folder as the latest one."""
    from nemo_gym.rollouts.run_folders import RunLabels, link_latest

    labels, stored = request.labels, RunLabels.read(request.output)
    tags = list(dict.fromkeys([*stored.tags, *labels.tags]))
    labels.model_copy(update={"name": labels.name or stored.name, "tags": tags}).write(request.output)
    if request.is_new_folder:
        link_latest(request.output)


def _begin_run(request: EvalRequest, plan: PlanSummary, *, quiet: bool) -> None:
    """Label the run; print its header, the counts of a resumed run, and the notes of the plan."""
    from nemo_gym.cli.shared.report import run_header

    _label_run(request)
    if not quiet:
        output.notify(f"{run_header(request, plan)} · {request.output}")
    if plan.resumed:
        counts = f"{plan.finished} of {plan.total} rollouts are scored, {plan.given_up} given up, {plan.to_run} to run"
        output.notify(f"resuming: {counts}")
    for note in plan.notes:
        output.notify(f"Note: {note}")


def _print_first_failure(outcome: FailedRollout) -> None:
    """Print a failure, unless the log of a server has named its cause, or the end of the run will name it."""
    from nemo_gym.cli.shared.report import one_line
    from nemo_gym.cli.terminal.log import was_shown

    failure = outcome.failure
    if _is_refusal_of_run(failure) or was_shown(_RAISED_AT.sub("", _ANSWERED.sub("", failure.message))):
        return
    output.notify(f"first {failure.kind} (rollout {outcome.job.key}): {failure.server}: {one_line(failure.message)}")


def _is_refusal_of_run(failure: Failure) -> bool:
    """Return whether the endpoint may refuse all rows: then the report or the error that ends the run says so."""
    return failure.refusal_status is not None and not failure.is_counted


def _print_report(args: argparse.Namespace, report: Report) -> int:
    """Print the report and the error that ended the collection early; return the exit status."""
    from nemo_gym.cli.shared.report import one_line, print_report, report_as_dict
    from nemo_gym.journal import StoreError
    from nemo_gym.rollouts.refusals import EndpointRefused

    problem = report.problem
    if problem is None and report.progress.tally.scored and not report.target.exists():
        problem = StoreError("the results were deleted", where=str(report.target), fix="run the same command again")
    status = report.status if problem is None else max(report.status, status_of(problem))
    if args.json:
        details = {} if problem is None else {"error": str(problem)}
        output.write_json({**report_as_dict(report), "exit_status": status, **details})
        for kind, failure in report.progress.first_failures.items():
            if _is_refusal_of_run(failure) and not isinstance(problem, EndpointRefused):
                output.notify(f"{kind}: {failure.server}: {one_line(failure.message)}")
    else:
        print_report(report)
    if problem is not None:
        output.report_gym_error(problem)
    return status
