"""Run a command in a Linux sandbox and end every process it starts; a program that is copied into the sandbox.

    python process_supervisor.py --timeout 60 --receipt receipt.json -- bash run.sh

The supervisor adopts orphaned descendants (it is a child subreaper), so background processes are ended, too: SIGTERM,
then SIGKILL after the cleanup timeout. The receipt is written last. It uses only the standard library.
"""

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

DEFAULT_CLEANUP_TIMEOUT = 10.0
_PR_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS = 0.05


def exec_timeout(*, timeout: float, cleanup_timeout: float = DEFAULT_CLEANUP_TIMEOUT) -> float:
    """Return the time limit for the command that runs the supervisor: its own limit and the time for cleaning up."""
    return timeout + 3 * cleanup_timeout + 30


def main(arguments: list[str]) -> int:
    """Run the command and write the receipt; return the status of the command, 124 after a timeout."""
    parser = argparse.ArgumentParser(prog="process_supervisor")
    parser.add_argument("--timeout", type=float, required=True, help="seconds after which the command is ended")
    parser.add_argument("--cleanup-timeout", type=float, default=DEFAULT_CLEANUP_TIMEOUT, help="seconds until SIGKILL")
    parser.add_argument("--receipt", type=Path, required=True, help="JSON file for the result")
    parser.add_argument("--stop-file", type=Path, help="the command is ended when this file exists")
    parser.add_argument("command", nargs="+", help="the command, after --")
    options = parser.parse_args(arguments)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    result: dict[str, object] = {"return_code": None, "error": None, "timed_out": False}
    try:
        child = subprocess.Popen(options.command, start_new_session=True)
        status, result["timed_out"] = _wait_for(child.pid, time.monotonic() + options.timeout, options.stop_file)
        result["return_code"] = status
    except OSError as error:
        result["error"] = str(error)
    result["cleanup_confirmed"] = _end_descendants(options.cleanup_timeout)
    partial = options.receipt.with_name(f"{options.receipt.name}.partial")
    partial.write_text(json.dumps(result))
    partial.replace(options.receipt)
    code = result["return_code"]
    return 124 if result["timed_out"] else code if isinstance(code, int) else 127


def _wait_for(pid: int, deadline: float, stop_file: Path | None) -> tuple[int | None, bool]:
    """Wait for the command; return its status (None if it still runs) and whether its time is over."""
    while True:
        finished, status = os.waitpid(pid, os.WNOHANG)
        if finished:
            return os.waitstatus_to_exitcode(status), False
        if time.monotonic() > deadline:
            return None, True
        if stop_file is not None and stop_file.exists():
            return None, False
        time.sleep(_POLL_SECONDS)


def _end_descendants(cleanup_timeout: float) -> bool:
    """Send SIGTERM, then SIGKILL, to all descendants; return whether none is left."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + cleanup_timeout
        while pids := _descendants():
            for pid in pids:
                _send_signal(pid, number)
            _reap_children()
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_SECONDS)
    _reap_children()
    return not _descendants()


def _send_signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _reap_children() -> None:
    """Collect the status of every child that has ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return


def _descendants() -> list[int]:
    """Return the processes below this one that have not ended."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:  # the process has ended since
                continue
            if state != "Z":
                parents[int(entry.name)] = int(parent)
    below = {os.getpid()}
    for _ in range(len(parents)):
        more = {pid for pid, parent in parents.items() if parent in below} - below
        if not more:
            break
        below |= more
    return sorted(below - {os.getpid()})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
