"""The short evaluation that is disturbed: what it runs, how it is started, what it must leave behind."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
MARK = "CHAOS_MARK"
TASKS, REPEATS = 12, 3
LONGEST_SECONDS = 120.0
"""After this a run that should have ended is called hanging."""
AGENT = "arithmetic_simple_agent"

Place = tuple[int, int]


class Broken(AssertionError):
    """A promise did not hold."""


def scripted_model() -> dict[str, Any]:
    """A model that needs no endpoint and answers each rollout always the same."""
    return {"responses_api_models": {"scripted_model": {"entrypoint": "app.py", "function": "chaos.play:answer"}}}


@dataclass
class Job:
    """One evaluation in a folder of its own. Its processes carry a mark, so that every last one can be found."""

    folder: Path
    model: dict[str, Any] = field(default_factory=scripted_model)
    overrides: list[str] = field(default_factory=list)
    tasks: int = TASKS
    repeats: int = REPEATS
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self.output = self.folder / "rollouts.jsonl"
        self.failures = self.folder / "rollouts_failures.jsonl"
        with (self.folder / "rows.jsonl").open("w", encoding="utf-8") as rows:
            for number in range(self.tasks):
                asked = {"input": [{"role": "user", "content": f"What is {number} + {number * 7} ?"}]}
                rows.write(json.dumps({"responses_create_params": asked, "expected_answer": number * 8}) + "\n")
        # One server in a process of its own, the others in cells: both ways of dying are tried.
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

    def places(self) -> set[Place]:
        return {(task, repeat) for task in range(self.tasks) for repeat in range(self.repeats)}

    @contextmanager
    def started(self, *extra: str) -> Iterator["subprocess.Popen[str]"]:
        """`gym eval run` in a session of its own; whatever happens here, none of its processes outlives the block."""
        command = [
            sys.executable, "-m", "nemo_gym.cli.main", "eval", "run", "--config", str(self.folder / "config.yaml"),
            "--input", str(self.folder / "rows.jsonl"), "--agent", AGENT, "--output", str(self.output),
            "--num-repeats", str(self.repeats), "--concurrency", "6", "--json",
            "+num_repeats_add_seed=true", "+num_cells=2", *self.overrides, *extra,
        ]  # fmt: skip
        env = {**os.environ, MARK: self.mark, "PYTHONPATH": str(ROOT)}
        with (self.folder / "log.txt").open("a", encoding="utf-8") as log:
            process = subprocess.Popen(
                command, cwd=self.folder, env=env, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        try:
            yield process
        finally:
            for pid in self.processes():
                kill(pid, signal.SIGKILL)
            process.communicate()

    def run(self, *extra: str) -> tuple[int, dict[str, Any]]:
        """Run to the end: the exit status and the object it printed."""
        with self.started(*extra) as process:
            return self.finish(process)

    def finish(self, process: "subprocess.Popen[str]") -> tuple[int, dict[str, Any]]:
        """Wait for the end. A run that hangs, or leaves a process behind, is broken."""
        try:
            printed, _ = process.communicate(timeout=LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            raise Broken(f"the run had not ended after {LONGEST_SECONDS:g} s") from None
        self.check_nothing_is_left()
        return process.returncode, json.loads(printed) if printed.strip() else {}

    def processes(self) -> list[int]:
        """Every living process of this job."""
        wanted = f"{MARK}={self.mark}".encode()
        return [pid for pid in _pids() if wanted in _environment(pid)]

    def check_nothing_is_left(self) -> None:
        wait_for(lambda: not self.processes(), "every process of the run to end", 20.0)

    def resume_to_the_end(self, tries: int = 4) -> None:
        """Resume until every rollout is scored. A run may end with failures; a further one mends them."""
        for _ in range(tries):
            status, _ = self.run("--resume")
            if status == 0:
                return
            if status != 1:
                raise Broken(f"resume ended with status {status}:\n{self.log_tail()}")
        raise Broken(f"after {tries} resumes some rollouts still fail:\n{self.log_tail()}")

    def rewards(self) -> dict[Place, float]:
        """The reward of every stored rollout; each may be there once only, and a failure never has one."""
        found: dict[Place, float] = {}
        for record in records(self.output):
            place = (record["_ng_task_index"], record["_ng_rollout_index"])
            if place in found:
                raise Broken(f"rollout {place} is stored twice")
            found[place] = record["reward"]
        for record in records(self.failures):
            if "reward" in record:
                raise Broken(f"a failure has a reward: {record}")
        return found

    def log_tail(self) -> str:
        return (self.folder / "log.txt").read_text(encoding="utf-8")[-2000:]


def records(path: Path) -> list[dict[str, Any]]:
    """The lines of a file, all of which must be whole."""
    if not path.exists():
        return []
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):
        raise Broken(f"{path.name} ends in the middle of a line")
    return [json.loads(line) for line in content.splitlines()]


def wait_for(holds: Callable[[], bool], what: str, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            raise Broken(f"waited {seconds:g} s in vain for {what}")
        time.sleep(0.02)


def kill(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):  # it may end by itself in this very moment
        os.kill(pid, number)


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def _environment(pid: int) -> bytes:
    try:
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
            return b""
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
