"""Real Ray clusters on loopback, and a workspace with a stateful environment and a scripted model."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
if importlib.util.find_spec("ray") is None:
    collect_ignore_glob = ["test_*.py"]  # python3 dev.py ray installs it
ROLLOUTS = int(os.environ.get("GYM_RAY_ROLLOUTS", "600"))
GYM = Path(sys.executable).parent / "gym"
CONFIG = """
config_paths:
  - resources_servers/example_session_state_mgmt/configs/example_session_state_mgmt.yaml
policy_model:
  responses_api_models:
    scripted_model:
      entrypoint: app.py
      script:
        - tool_calls: [{name: increment_counter, arguments: {count: 4}}]
        - text: Done.
num_cells: 1
"""


def pytest_collection_modifyitems(items):
    """Several raylets start and die while these tests run, on machines that do other work."""
    for item in items:
        if Path(item.path).is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(900))


class HostedCluster:
    """The process of `cluster_host.py`."""

    def __init__(self, nodes: int) -> None:
        env = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.cluster_host"],
            cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.pid = self._process.pid
        self.address = self._read()["address"]
        for _ in range(nodes - 1):
            self.add()

    def _read(self) -> dict:
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise AssertionError("the cluster did not start")

    def _ask(self, line: str) -> dict:
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._read()

    def add(self, **resources: float) -> int:
        return self._ask(" ".join(["add", *(f"{name}={amount}" for name, amount in resources.items())]))["node"]

    def kill(self, node: int) -> None:
        self._ask(f"kill {node}")

    def close(self) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)
        self._process.stdout.close()


class Workspace:
    """A folder with rows of the stateful environment, in which `gym` is run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "counter.yaml").write_text(CONFIG)
        example = ROOT / "resources_servers" / "example_session_state_mgmt" / "data" / "example.jsonl"
        row = json.loads(example.read_text().splitlines()[0])
        with (folder / "rows.jsonl").open("w") as file:
            for number in range(max(ROLLOUTS, 1500)):
                initial = number % 5
                expected = initial + 4 if number % 3 else -1
                file.write(json.dumps({**row, "initial_count": initial, "expected_count": expected}) + "\n")

    def command(self, *words: object) -> list[str]:
        return [
            str(GYM), "eval", "run", "--config", "counter.yaml", "-i", "rows.jsonl", "--concurrency", "64", "--json",
            *([] if "--limit" in words else ["--limit", str(ROLLOUTS)]), *map(str, words),
        ]  # fmt: skip

    def start(self, *words: object) -> subprocess.Popen:
        log = (self.folder / "log.txt").open("ab")
        with log:
            return subprocess.Popen(
                self.command(*words), cwd=self.folder, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )

    def run(self, *words: object) -> dict:
        """Run an evaluation to its end and return its report."""
        return self.finish(self.start(*words))

    def finish(self, process: subprocess.Popen) -> dict:
        out, _ = process.communicate(timeout=800)
        assert out, self.log()
        return json.loads(out)

    def log(self) -> str:
        return (self.folder / "log.txt").read_text()

    def records(self, name: str) -> list[dict]:
        return [json.loads(line) for line in (self.folder / name / "r.jsonl").read_bytes().splitlines()]

    def rewards(self, name: str) -> dict:
        records = self.records(name)
        rewards = {(one["_ng_task_index"], one["_ng_rollout_index"]): one["reward"] for one in records}
        assert len(rewards) == len(records), "a rollout is stored twice"
        return rewards

    def wait_for_records(self, name: str, count: int, process: subprocess.Popen) -> None:
        """Return when an output has `count` lines."""
        path, deadline = self.folder / name / "r.jsonl", time.monotonic() + 600
        while not path.exists() or path.read_bytes().count(b"\n") < count:
            assert process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.1)  # another process writes the file


@pytest.fixture(scope="session")
def cluster():
    hosted = HostedCluster(3)
    yield hosted
    hosted.close()


@pytest.fixture(scope="session")
def workspace(tmp_path_factory):
    return Workspace(tmp_path_factory.mktemp("ray"))


@pytest.fixture(scope="session")
def local_rewards(workspace):
    """The rewards of the undisturbed run on one machine."""
    report = workspace.run("-o", "local/r.jsonl")
    assert report["scored"] == ROLLOUTS
    return workspace.rewards("local")
