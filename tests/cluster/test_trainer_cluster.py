"""Inside the cluster of a trainer: no second connection, no clash of ports, and the servers end with their actor."""

import json
import subprocess
import sys

from tests.cluster.conftest import ROOT


def test_two_actors_of_a_trainer_run_environments_side_by_side(cluster, workspace):
    """The shape that NeMo RL and verl use: `RunHelper` in an actor, rollouts through the head's address."""
    result = subprocess.run(
        [sys.executable, ROOT / "tests" / "cluster" / "trainer.py", cluster.address, workspace.folder / "counter.yaml",
         workspace.folder / "rows.jsonl"],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip

    assert result.returncode == 0, result.stderr[-3000:]
    answer = json.loads(result.stdout.splitlines()[-1])
    assert len(set(answer["ports"])) == 2
    assert [sorted(rewards) for rewards in answer["rewards"]] == [[0.0, 0.0, 1.0, 1.0, 1.0, 1.0]] * 2
