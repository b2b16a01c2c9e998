"""`python -m chaos` repeats a run by its seed, finds every process that a run leaves, and ends with a table."""

import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from chaos.commands import ROOT
from chaos.evaluation import Evaluation, wait_for

DAEMON_SCRIPT = """
import subprocess

from chaos.model_script import answer as model_answer


def answer(scene):
    if scene.seed == 0:
        subprocess.Popen(["sleep", "60"], start_new_session=True, env={}, stdout=subprocess.DEVNULL)
    return model_answer(scene)
"""


def test_a_scenario_is_repeated_by_its_seed_and_summarised_in_a_table() -> None:
    """A broken promise can be repeated, and the time per run tells how long ten thousand runs take."""
    command = [sys.executable, "-m", "chaos", "--runs", "1", "--seed", "3", "stateful"]
    chaos = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)

    header, line, last = chaos.stdout.splitlines()
    assert chaos.returncode == 0, chaos.stderr
    assert header.split() == ["scenario", "runs", "kept", "s/run", "max", "s", "CPU", "s/run", "example"]
    assert re.match(r"stateful +1 +1 +[\d.]+ +[\d.]+ +[\d.]+  killed the process of the ledger", line)
    assert float(line.split()[5]) > 0.1, "the CPU time of the processes of the run is not measured"
    assert last.startswith("0 promises broken, ")
    assert "1 of 1 runs" in chaos.stderr


def test_a_process_without_the_session_and_environment_of_its_run_is_found(tmp_path: Path) -> None:
    """A mark in the environment, or the session, would miss it."""
    job = Evaluation(
        tmp_path / "run",
        model={"responses_api_models": {"scripted_model": {"entrypoint": "app.py", "function": "daemons:answer"}}},
        overrides=["--search-dir", str(tmp_path)],
        tasks=2,
    )
    (tmp_path / "daemons.py").write_text(DAEMON_SCRIPT)

    with job.running():
        wait_for(lambda: "sleep" in command_names(job), "starting the daemon", 60.0)

    assert not job.processes()


def command_names(job: Evaluation) -> set[str]:
    names = set()
    for pid in job.processes():
        with suppress(OSError):  # the process has ended
            names.add(Path(f"/proc/{pid}/comm").read_text().strip())
    return names
