"""The supervisor leaves no process behind, and its receipt says how the command ended."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from nemo_gym.sandbox import process_supervisor
from nemo_gym.sandbox.process_supervisor import DEFAULT_CLEANUP_TIMEOUT, exec_timeout


def supervise(folder: Path, script: str, *options: str) -> dict[str, Any]:
    """Run a shell script under the supervisor; return the receipt."""
    program = [sys.executable, "-I", str(process_supervisor.__file__), "--receipt", str(folder / "receipt.json")]
    subprocess.run([*program, *options, "--", "sh", "-c", script], cwd=folder, timeout=60, check=False)
    receipt: dict[str, Any] = json.loads((folder / "receipt.json").read_text())
    return receipt


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_background_process_is_ended_with_the_command(tmp_path: Path) -> None:
    """A server that an agent leaves running would disturb the verifier."""
    receipt = supervise(tmp_path, "setsid sleep 300 & echo $! > pid; exit 3", "--timeout", "30")

    assert receipt == {"return_code": 3, "error": None, "timed_out": False, "cleanup_confirmed": True}
    assert not is_alive(int((tmp_path / "pid").read_text()))


def test_a_command_that_ignores_the_signal_is_killed_after_its_time(tmp_path: Path) -> None:
    """A sandbox costs money until its last process has ended."""
    script = "trap '' TERM; echo $$ > pid; while :; do sleep 1; done"

    receipt = supervise(tmp_path, script, "--timeout", "0.5", "--cleanup-timeout", "0.5")

    assert (receipt["timed_out"], receipt["cleanup_confirmed"]) == (True, True)
    assert not is_alive(int((tmp_path / "pid").read_text()))


def test_a_stop_file_ends_the_command(tmp_path: Path) -> None:
    """The server outside the sandbox can end a run early without its process id."""
    (tmp_path / "stop").touch()

    receipt = supervise(tmp_path, "sleep 300", "--timeout", "30", "--stop-file", str(tmp_path / "stop"))

    assert (receipt["return_code"], receipt["timed_out"], receipt["cleanup_confirmed"]) == (None, False, True)
    assert exec_timeout(timeout=60) == 60 + 3 * DEFAULT_CLEANUP_TIMEOUT + 30
