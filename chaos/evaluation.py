"""The short evaluation that scenarios disturb: its configuration, its processes and its results."""

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from chaos.commands import ROOT, Command, command_host
from nemo_gym.serve.run_registry import live_runs

TASKS, REPEATS = 12, 3
MAX_RUN_SECONDS = 120.0
"""A run that takes longer counts as hanging."""
MAX_START_SECONDS = 30.0
PRINTED = "printed.json"
AGENT = "arithmetic_simple_agent"

RolloutId = tuple[int, int]
"""Task index and rollout index."""


class BrokenPromise(AssertionError):
    """A check of a disturbed run failed."""


def scripted_model() -> dict[str, Any]:
    """Return the server block of a model without an endpoint that gives each rollout a constant answer."""
    return {
        "responses_api_models": {"scripted_model": {"entrypoint": "app.py", "function": "chaos.model_script:answer"}}
    }


@dataclass
class Evaluation:
    """One evaluation in a separate folder."""

    folder: Path
    model: dict[str, Any] = field(default_factory=scripted_model)
    overrides: list[str] = field(default_factory=list)
    tasks: int = TASKS
    repeats: int = REPEATS
    cells: int = 2
    command: Command | None = field(default=None, init=False)
    """The command that was started last."""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self.output = self.folder / "rollouts.jsonl"
        self.failures = self.folder / "rollouts_failures.jsonl"
        with (self.folder / "rows.jsonl").open("w", encoding="utf-8") as rows:
            for number in range(self.tasks):
                params = {"input": [{"role": "user", "content": f"What is {number} + {number * 7} ?"}]}
                rows.write(json.dumps({"responses_create_params": params, "expected_answer": number * 8}) + "\n")
        # One server runs as a separate process and the others in cells, so that both can be killed.
        agent = {
            "entrypoint": "app.py",
            "resources_server": {"type": "resources_servers", "name": "arithmetic"},
            "model_server": {"type": "responses_api_models", "name": "policy_model"},
        }
        resources = {"entrypoint": "app.py", "domain": "math", "hosting": "process"}
        config = {
            "arithmetic": {"resources_servers": {"arithmetic": resources}},
            AGENT: {"responses_api_agents": {"simple_agent": agent}},
            "policy_model": self.model,
        }
        (self.folder / "config.yaml").write_text(yaml.safe_dump(config))

    def rollout_ids(self) -> set[RolloutId]:
        """Return the ids of all rollouts the run must produce."""
        return {(task, repeat) for task in range(self.tasks) for repeat in range(self.repeats)}

    @contextmanager
    def running(self, *extra: str) -> Iterator[Command]:
        """Start `gym eval run` in a new session; kill all of its processes when the block ends."""
        words = [
            "eval", "run", "--config", str(self.folder / "config.yaml"),
            "--input", str(self.folder / "rows.jsonl"), "--agent", AGENT, "--output", str(self.output),
            "--num-repeats", str(self.repeats), "--concurrency", "6", "--json",
            "+num_repeats_add_seed=true", f"+num_cells={self.cells}", *self.overrides, *extra,
        ]  # fmt: skip
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        with (self.folder / PRINTED).open("w") as printed, (self.folder / "log.txt").open("a") as log:
            self.command = command_host().start(words, self.folder, env, printed.fileno(), log.fileno())
        try:
            yield self.command
        finally:
            self.command.close()

    def run(self, *extra: str) -> tuple[int, dict[str, Any]]:
        """Run to the end; return the exit status and the printed JSON object."""
        with self.running(*extra) as process:
            return self.finish(process)

    def finish(self, process: Command) -> tuple[int, dict[str, Any]]:
        """Wait for the end of the run; fail if it hangs or leaves a process behind."""
        try:
            status = process.wait(MAX_RUN_SECONDS)
        except subprocess.TimeoutExpired:
            raise BrokenPromise(f"the run had not ended after {MAX_RUN_SECONDS:g} s") from None
        self.check_no_process_is_left()
        printed = (self.folder / PRINTED).read_text(encoding="utf-8")
        return status, json.loads(printed) if printed.strip() else {}

    def processes(self) -> list[int]:
        """Return the ids of the live processes that the last command is or has started, in whatever session."""
        return self.command.processes() if self.command else []

    def check_no_process_is_left(self) -> None:
        """Fail if a process of the run is still alive after 20 seconds."""
        try:
            wait_for(lambda: not self.processes(), "ending every process of the run", 20.0)
        except BrokenPromise as problem:
            commands = [_command(pid) for pid in self.processes()]
            raise BrokenPromise(f"{problem}; still alive: {', '.join(commands)}") from None

    def resume_until_scored(self, max_resumes: int = 4) -> None:
        """Resume until every rollout is scored; each resume retries the rollouts that failed before."""
        for _ in range(max_resumes):
            status, _ = self.run("--resume")
            if status == 0:
                return
            if status != 1:
                raise BrokenPromise(f"resume ended with status {status}:\n{self.log_tail()}")
        raise BrokenPromise(f"after {max_resumes} resumes some rollouts still fail:\n{self.log_tail()}")

    def rewards(self) -> dict[RolloutId, float]:
        """Return the reward of every stored rollout; fail on a duplicate and on a failure with a reward."""
        rewards: dict[RolloutId, float] = {}
        for record in read_records(self.output):
            if rollout_id(record) in rewards:
                raise BrokenPromise(f"rollout {rollout_id(record)} is stored twice")
            rewards[rollout_id(record)] = record["reward"]
        for record in read_records(self.failures):
            if "reward" in record:
                raise BrokenPromise(f"a failure has a reward: {record}")
        return rewards

    def file_names(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}

    def log_tail(self) -> str:
        return (self.folder / "log.txt").read_text(encoding="utf-8")[-2000:]


def rollout_id(record: dict[str, Any]) -> RolloutId:
    return record["_ng_task_index"], record["_ng_rollout_index"]


def read_records(path: Path) -> list[dict[str, Any]]:
    """Read a JSONL file; fail if its last line is torn."""
    if not path.exists():
        return []
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):
        raise BrokenPromise(f"{path.name} ends with a torn line")
    return [json.loads(line) for line in content.splitlines()]


def wait_for(condition: Callable[[], bool], what: str, seconds: float) -> None:
    """Poll until `condition` holds; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise BrokenPromise(f"{what} took more than {seconds:g} s")
        time.sleep(0.02)


def send_signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):  # the process may just have ended
        os.kill(pid, number)


def wait_until(moment: float, process: Command) -> None:
    """Wait until the moment or the end of the run, whichever comes first."""
    while process.poll() is None and time.monotonic() < moment:
        time.sleep(0.005)


def server_pids(process: Command, job: Evaluation) -> dict[str, int]:
    """Return the process id of every server of a run, once the servers are up."""

    def head_ports() -> list[int]:
        return [run.port for run in live_runs() if run.pid == process.pid]

    try:
        wait_for(lambda: bool(head_ports()) or process.poll() is not None, "starting the servers", MAX_START_SECONDS)
        url = f"http://127.0.0.1:{head_ports()[0]}/server_instances"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return {instance["process_name"]: instance["pid"] for instance in json.loads(answer.read())}
    except (OSError, IndexError) as error:
        raise BrokenPromise(f"the run ended before it could be disturbed ({error}):\n{job.log_tail()}") from error


def _command(pid: int) -> str:
    """Return the start of the command line of a process; empty if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:300]
    return ""
