"""Run programs on the coding task, two at a time, and judge each by what it did, never by its exit status alone."""

import json
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from nemo_gym.serve.rollout_budgets import Budget
from tools.clients.catalog import Client, Start, base_variables
from tools.clients.coding_task import FINAL_TEXT, TURNS, create_workspace, is_solved
from tools.clients.isolation import end_group, offline_variables, processes_in
from tools.clients.servers import RolloutAddress

TIMEOUT_SECONDS = 600.0
"""Maximum time of a program; it takes 3 to 20 s, and several minutes on a busy machine."""
CALL_LIMIT = 15
PROBLEM_CHARACTERS = 600


@dataclass(frozen=True)
class ClientRun:
    """One program, dialect and model server."""

    client: Client
    dialect: str
    server: str


@dataclass(frozen=True)
class ClientResult:
    """How a program finished the task."""

    run: ClientRun
    seconds: float
    problem: str | None
    """None if the program finished the task."""
    leftover_processes: int = 0


def run_clients(runs: Sequence[ClientRun], ports: Mapping[str, int], *, workers: int) -> Iterator[ClientResult]:
    """Run programs, `workers` at a time, each in a new folder with HOME and workspace; yield the results in order."""
    with tempfile.TemporaryDirectory(prefix="gym-clients-", ignore_cleanup_errors=True) as folder:

        def run_one(number_and_run: tuple[int, ClientRun]) -> ClientResult:
            number, run = number_and_run
            return run_client(run, ports[run.server], Path(folder, str(number)), f"{number}-0")

        with ThreadPoolExecutor(workers) as pool:
            yield from pool.map(run_one, enumerate(runs))


def run_client(run: ClientRun, port: int, folder: Path, rollout_id: str) -> ClientResult:
    """Run one program and judge it."""
    home, workspace = folder / "home", folder / "workspace"
    home.mkdir(parents=True)
    create_workspace(workspace)
    address = RolloutAddress(port, rollout_id, Budget(secrets.token_hex(8), steps=CALL_LIMIT))
    start = run.client.prepare(run.dialect, address, folder)
    for name, content in start.files.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    started = time.monotonic()
    status, output = _execute(start, home, workspace, folder)
    seconds = time.monotonic() - started
    leftover = len(processes_in(folder, seconds=0.5))
    counts = address.close()
    problem = _problem(status, output, counts, workspace)
    shutil.rmtree(folder, ignore_errors=True)
    return ClientResult(run, seconds, problem, leftover)


def _execute(start: Start, home: Path, workspace: Path, folder: Path) -> tuple[int | None, str]:
    """Run a program to its end or for TIMEOUT_SECONDS; return its exit status (None if it was killed) and output."""
    variables = base_variables(home) | offline_variables() | start.variables
    log = folder / "output.txt"
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                start.command,
                cwd=workspace,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return None, f"cannot be started: {error}"
        status: int | None = None
        try:
            status = process.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            end_group(process)
    return status, log.read_text(errors="replace")


def _problem(status: int | None, output: str, counts: Mapping[str, int], workspace: Path) -> str | None:
    """Return what is wrong with a finished run; None if the task is done with the expected calls."""
    problems = []
    if status != 0:
        problems.append("not done in time" if status is None else f"exit status {status}")
    if not is_solved(workspace):
        problems.append("the test does not pass")
    if FINAL_TEXT not in " ".join(output.split()):
        problems.append("the final text is missing")
    if counts["turns"] < TURNS:
        problems.append(f"only {counts['turns']} turns of {TURNS} were counted")
    if counts["calls"] != counts["turns"]:
        problems.append(f"{counts['calls'] - counts['turns']} model calls failed")
    if not counts["output_tokens"]:
        problems.append("no tokens were counted")
    return f"{'; '.join(problems)}: {output[-PROBLEM_CHARACTERS:].strip()!r}" if problems else None


def report_line(result: ClientResult) -> str:
    """Return one line about a run, for the terminal."""
    run = result.run
    name = f"{run.client.name} {run.dialect} {run.server}"
    extra = f", {result.leftover_processes} processes left" if result.leftover_processes else ""
    return f"{'failed' if result.problem else 'done  '} {name} in {result.seconds:.1f} s{extra}" + (
        f"\n       {result.problem}" if result.problem else ""
    )


def write_results(results: Sequence[ClientResult], path: Path) -> None:
    """Write the results as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        {
            "client": result.run.client.name,
            "dialect": result.run.dialect,
            "server": result.run.server,
            "seconds": round(result.seconds, 1),
            "problem": result.problem,
        }
        for result in results
    ]
    path.write_text("".join(json.dumps(line) + os.linesep for line in lines))
