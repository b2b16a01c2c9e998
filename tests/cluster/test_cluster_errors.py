"""What is wrong with a cluster is said in one message: where, what, and what to do."""

import json
import os
import subprocess

import pytest


def error_of(workspace, *words):
    result = subprocess.run(
        workspace.command("--engine", "ray", "-o", "error/r.jsonl", *words),
        cwd=workspace.folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert "Traceback" not in result.stderr
    assert result.returncode in (2, 3), result.stderr
    return result.stderr


def test_no_cluster_answers_at_the_address(workspace):
    """Ray itself waits for minutes."""
    assert "no Ray cluster answers at 127.0.0.1:9" in error_of(workspace, "--ray-address", "127.0.0.1:9")
    assert "is not HOST:PORT" in error_of(workspace, "--ray-address", "head")


def test_a_resource_that_no_node_has_is_named(cluster, workspace):
    """Ray itself would wait for such a node without an end."""
    error = error_of(workspace, "--ray-address", cluster.address, "+node_resources={quantum: 1}")
    assert "no node has quantum 1" in error
    assert "CPU 1" in error


def test_fewer_nodes_than_asked_for(cluster, workspace):
    """The run must not silently be smaller."""
    words = ("--nodes", "9", "+node_start_timeout_seconds=1")
    assert "9 nodes are wanted, but the cluster has" in error_of(workspace, "--ray-address", cluster.address, *words)


def test_a_file_that_cannot_be_sent(cluster, workspace):
    """The error names the file and the shared path."""
    error = error_of(workspace, "--ray-address", cluster.address, "+node_files=[missing.json]")
    assert "missing.json does not exist" in error
    assert "node_shared_path" in error


def test_a_cluster_of_this_machine_writes_no_token_into_the_home_folder(workspace, tmp_path):
    """With such a file, every later `ray start` of the user makes a cluster that needs a token."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    result = subprocess.run(
        workspace.command("--engine", "ray", "--limit", "4", "-o", "own/r.jsonl"), cwd=workspace.folder,
        env={**environment, "HOME": str(tmp_path), "RAY_raylet_start_wait_time_s": "300"},
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip

    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["scored"] == 4
    assert not (tmp_path / ".ray").exists()


@pytest.mark.parametrize("amount", ["0", "many"])
def test_a_reservation_must_be_a_positive_number(workspace, amount):
    """It is reported before anything starts."""
    assert "must be a positive number" in error_of(workspace, f"+node_resources={{CPU: {amount}}}")
