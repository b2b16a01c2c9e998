"""The Ray engine on one node against the local engine, side by side: CPU time, all processes counted.

The difference of a long and a short run is compared, so that the start of servers does not count; what Ray's own
processes use while the rollouts run does. The figures are printed: `pytest -s`.
"""

import os
import time
from pathlib import Path

from nemo_gym.processes import process_tree
from tests.ray.conftest import HostedCluster

LONG, SHORT = 1000, 200
MAX_RATIO = 1.3
TICKS = os.sysconf("SC_CLK_TCK")


def own_seconds(pid: int) -> float:
    """Return the CPU seconds of a process without its children; 0 if it has ended."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, words[11:13])) / TICKS


def cpu_of(process, host: int) -> float:
    """Return the CPU seconds that a run and the cluster use until its end.

    Sampled by process while it lives: Ray does not collect the times of its ended workers.
    """
    begun = {pid: own_seconds(pid) for pid in process_tree(host)}
    latest: dict[int, float] = {}
    while process.poll() is None:
        for pid in (*process_tree(process.pid), *process_tree(host)):
            latest[pid] = max(latest.get(pid, 0.0), own_seconds(pid))
        time.sleep(0.1)  # a sample, not a wait for an event
    return sum(seconds - begun.get(pid, 0.0) for pid, seconds in latest.items())


def test_a_rollout_costs_little_more_than_on_the_local_engine(workspace):
    """Most clusters are used because work outgrew a machine, not to pay for their messages."""
    one_node = HostedCluster(1)
    try:
        words = {"local": (), "ray": ("--engine", "ray", "--ray-address", one_node.address)}
        figures = {}
        for engine, flags in words.items():
            seconds = {}
            for count in (SHORT, LONG):
                output = f"overhead-{engine}-{count}/r.jsonl"
                process = workspace.start(*flags, "--limit", count, "-o", output)
                seconds[count] = cpu_of(process, one_node.pid)
                assert workspace.finish(process)["scored"] == count
            figures[engine] = 1000 * (seconds[LONG] - seconds[SHORT]) / (LONG - SHORT)
    finally:
        one_node.close()
    ratio = figures["ray"] / figures["local"]
    print(f"CPU ms per rollout: local {figures['local']:.2f}, ray {figures['ray']:.2f}, ratio {ratio:.2f}")
    assert ratio <= MAX_RATIO
