"""Nodes and drivers are killed in the middle of a run: every rollout is stored once, with the reward it would have."""

import os
import random
import signal

import pytest

from tests.cluster.conftest import ROLLOUTS

SEEDS = range(int(os.environ.get("GYM_RAY_SEEDS", "2")))
"""The long form has 20, and GYM_RAY_ROLLOUTS=5000."""


@pytest.fixture(scope="session")
def living_nodes():
    """Numbers of the nodes that can be killed: not the head, without which there is no cluster."""
    return [1, 2]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_killed_node_and_one_that_joins_change_no_result(seed, cluster, workspace, local_rewards, living_nodes):
    """What was in flight on the node runs elsewhere, and the report names it."""
    chance = random.Random(seed)
    output = f"kill{seed}"
    run = workspace.start(
        "--engine", "ray", "--ray-address", cluster.address, "-o", f"{output}/r.jsonl", "--nodes", 3
    )  # fmt: skip
    workspace.wait_for_records(output, int(ROLLOUTS * chance.uniform(0.2, 0.6)), run)
    victim = chance.choice(living_nodes)
    cluster.kill(victim)
    living_nodes.remove(victim)
    living_nodes.append(cluster.add())
    report = workspace.finish(run)

    assert report["exit_status"] == 0, workspace.log()
    assert workspace.rewards(output) == local_rewards
    lost = [node for node in report["nodes"] if node["lost"]]
    assert len(lost) == 1, report["nodes"]
    assert sum(node["rollouts"] for node in report["nodes"]) == ROLLOUTS
    assert all(node["seconds_p95"] > 0 for node in report["nodes"] if node["rollouts"])


def test_a_killed_driver_leaves_a_run_that_resumes(cluster, workspace, local_rewards):
    """The journal is on the driver's disk; its actors end with it, and the next driver gets their places."""
    words = ("--engine", "ray", "--ray-address", cluster.address, "-o", "driver/r.jsonl")
    run = workspace.start(*words)
    workspace.wait_for_records("driver", ROLLOUTS // 4, run)
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate(timeout=60)
    stored = len(workspace.records("driver"))
    assert stored < ROLLOUTS

    report = workspace.run(*words, "--resume")

    assert report["finished_before"] >= stored - 1  # the last line may be torn
    assert report["scored"] + report["finished_before"] == ROLLOUTS
    assert workspace.rewards("driver") == local_rewards
