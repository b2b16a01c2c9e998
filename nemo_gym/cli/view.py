"""View rollouts in the browser, or on the terminal with --text.

PATH is a file of rollouts or a folder with such files; several runs are shown side by side and can be compared. The
page of a run in progress is updated. TASK or TASK:REPEAT after the paths prints one rollout (with --text).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output

if TYPE_CHECKING:
    from nemo_gym.rollouts.run_files import RunFiles
    from nemo_gym.view.database import RunDatabase

ROLLOUT_NAME = re.compile(r"(\d+)(?::(\d+))?", re.ASCII)
"""TASK or TASK:REPEAT."""
LEGACY_KEY = "+jsonl_fpath="
"""Names the file in commands of earlier versions."""
MAX_REPEATS = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags = options.FlagGroup(parser)
    parser.add_argument("paths", nargs="*", metavar="PATH", help="file of rollouts, or folder with such files")
    flags.switch("--text", "print to the terminal instead of serving a page")
    flags.switch("--failed", "only failed rollouts (with --text or --export)")
    flags.text("--where", "FILTER", 'only rollouts that match, such as "reward < 1" (with --text or --export)')
    flags.text("--search", "WORDS", "only rollouts with these words (with --text)")
    flags.integer("--limit", "rows to print with --text (default: 50)", default=50)
    flags.text("--export", "DIR", "write pages that open from disk to this folder, and exit")
    parser.add_argument("--port", type=int, default=0, metavar="PORT", help="port to serve on (default: any free port)")
    host_help = "address to serve on; a token is required unless loopback"
    parser.add_argument("--host", default="127.0.0.1", metavar="HOST", help=host_help)
    flags.switch("--no-browser", "do not open a browser")
    flags.switch("--no-annotations", "the page cannot annotate rollouts, so nothing is written")
    flags.switch("--json", "print JSON (with --text)")


def run(args: argparse.Namespace) -> int:
    from nemo_gym.rollouts.run_files import NothingToView, find_runs

    paths = [word.removeprefix(LEGACY_KEY) for word in (*args.paths, *args.overrides)]
    rollout_name = ROLLOUT_NAME.fullmatch(paths[-1]) if len(paths) > 1 and args.text else None
    if rollout_name is not None:
        paths = paths[:-1]
    if not paths:
        output.report_error("PATH is missing; example: gym view results/latest")
        return 2
    conditions = (args.where, 'outcome == "failed"' if args.failed else "")
    row_filter = " and ".join(f"({condition})" for condition in conditions if condition)
    is_page = not (args.export or args.text)
    try:
        runs = find_runs(paths)
    except NothingToView:
        if not is_page or not all(Path(path).is_dir() for path in paths):
            raise
        runs = []  # the page of an empty folder says how to start a run, and shows it
    if args.export:
        return _write_pages(runs, Path(args.export), row_filter)
    if rollout_name is not None:
        return _print_rollouts(runs, int(rollout_name.group(1)), rollout_name.group(2), as_json=args.json)
    if args.text:
        return _print_table(runs, row_filter, args)
    if row_filter:
        output.report_error("--where and --failed need --text or --export; the page has its own filter")
        return 2
    return _serve(runs, partial(find_runs, paths), args)


def _build_databases(runs: Sequence[RunFiles]) -> list[RunDatabase]:
    """Return the database of each run with all its rollouts; show the progress of reading them."""
    from nemo_gym.view.database import RunDatabase

    databases = [RunDatabase(run) for run in runs]
    for database in databases:
        while database.grow():
            done, size = database.progress()
            output.show_status(f"reading {database.run.name}: {done * 100 // max(size, 1)} %")
        output.show_status("")
    return databases


def _serve(runs: Sequence[RunFiles], find_runs: Callable[[], Sequence[RunFiles]], args: argparse.Namespace) -> int:
    """Serve the page until interrupted, with runs that appear meanwhile; return the exit status."""
    import asyncio
    import secrets
    import webbrowser

    import uvicorn

    from nemo_gym.cli.explain import load_explanations
    from nemo_gym.launch.ports import listen
    from nemo_gym.serve.webserver import CHECKED_PROTOCOL, GUARDED_PROTOCOL
    from nemo_gym.view.database import RunDatabase
    from nemo_gym.view.server import LOOPBACK, view_app

    host = args.host
    token = None if host in LOOPBACK else secrets.token_urlsafe(24)
    with listen("gym view", host, args.port) as listener:
        address = f"http://{host}:{listener.getsockname()[1]}/" + (f"?token={token}" if token else "")
        databases = [RunDatabase(run) for run in runs]
        app = view_app(
            databases,
            token=token,
            hosts=LOOPBACK | {host},
            advice=load_explanations(),
            has_annotations=not args.no_annotations,
            find_runs=find_runs,
        )
        http = CHECKED_PROTOCOL if token is None else GUARDED_PROTOCOL  # loopback: refuse other users of this machine
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on", http=http))
        output.write(address)
        output.notify("press Ctrl-C to stop")
        if not args.no_browser:
            webbrowser.open(address)
        asyncio.run(server.serve(sockets=[listener]))
    return 0


def _write_pages(runs: Sequence[RunFiles], folder: Path, row_filter: str) -> int:
    """Write the pages of --export and return the exit status."""
    from nemo_gym.cli.explain import load_explanations
    from nemo_gym.view.export import export_bundle

    def show_progress(done: int, total: int) -> None:
        output.show_status(f"{done}/{total}" if done < total else "")

    databases = _build_databases(runs)
    advice = load_explanations()
    count = export_bundle(databases, folder, filter_text=row_filter, advice=advice, on_progress=show_progress)
    output.write(f"{count} rollout{'s' if count != 1 else ''} in {folder / 'index.html'}")
    return 0


def _print_table(runs: Sequence[RunFiles], row_filter: str, args: argparse.Namespace) -> int:
    """Print the summary and the matching rollouts of each run; return the exit status."""
    from nemo_gym.view import terminal
    from nemo_gym.view.summary import summarize

    selection = {"filter_text": row_filter, "words": args.search or "", "count": args.limit}
    databases = _build_databases(runs)
    if args.json:
        output.write_json([{**summarize(run), "rollouts": run.page(**selection).rows} for run in databases])
        return 0
    for run in databases:
        output.write("\n".join([*terminal.overview_lines(run), ""]))
        output.write_table(list(terminal.table_rows(run, **selection)))
    return 0


def _print_rollouts(runs: Sequence[RunFiles], task: int, repeat: str | None, *, as_json: bool) -> int:
    """Print one repeat of a task, or at most MAX_REPEATS if `repeat` is None, from each run; return the exit status."""
    from nemo_gym.view import terminal

    count = 0
    for database in _build_databases(runs):
        rows = database.page(filter_text=f"task == {task}", count=MAX_REPEATS).rows
        for number in [row["rollout"] for row in rows] if repeat is None else [int(repeat)]:
            record, lines = database.record((task, number)), terminal.rollout_lines(database, (task, number))
            if record is None or lines is None:
                continue
            count += 1
            output.write_json(record) if as_json else output.write("\n".join(lines))
    if not count:
        output.report_error(f"rollout {task}{':' + repeat if repeat else ''} not found in these files")
        return 1
    return 0
